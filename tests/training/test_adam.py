"""Adam against torch.optim, which we do not import at run time."""

import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from command_line import command
from fedaccord.config import load_experiment
from fedaccord.errors import ConfigError
from fedaccord.extensions import trusting
from fedaccord.federation.recipe import plain_solver
from fedaccord.methods.registry import METHODS, make_recipe
from fedaccord.training.settings import TrainingSettings
from fedaccord.training.solvers import Adam, AdamStepper

SHAPES = [(3, 2), (3,), (2, 3, 2)]


def tensors(seed):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


@settings(max_examples=20, deadline=None)
@given(lr=st.sampled_from([1e-4, 0.01, 1.0]), weight_decay=st.sampled_from([0.0, 1e-3, 0.1]))
def test_it_steps_as_torch_does(lr, weight_decay):
    ours = tensors(0)
    stepper = AdamStepper(Adam(weight_decay), ours, lr)
    theirs = [torch.nn.Parameter(p) for p in tensors(0)]
    optimiser = torch.optim.AdamW(theirs, lr=lr, weight_decay=weight_decay)
    for step in range(6):
        stepper.step(tensors(100 + step))
        for parameter, gradient in zip(theirs, tensors(100 + step), strict=True):
            parameter.grad = gradient
        optimiser.step()
        for mine, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(mine, other.detach(), rtol=1e-5, atol=1e-6)


def test_it_clips_before_a_step():
    ours, clipped = tensors(0), tensors(0)
    AdamStepper(Adam(clip=0.1), ours, 0.1).step(tensors(1))
    norm = torch.cat([g.flatten() for g in tensors(1)]).norm()
    AdamStepper(Adam(), clipped, 0.1).step([g * (0.1 / norm) for g in tensors(1)])
    for mine, other in zip(ours, clipped, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-6)


def test_the_settings_choose_it():
    assert plain_solver(TrainingSettings(optimiser="adam", weight_decay=0.1, clip=2.0)) == Adam(0.1, 2.0)
    assert make_recipe("fedavg", {"optimiser": "adam"}).site_solver == Adam()
    for name in ("fedmom", "slowmo"):  # momentum of the server alone: sites step as they like
        assert make_recipe(name, {"optimiser": "adam"}).site_solver == Adam()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("scaffold", "control variates correct steps of SGD"),
        *(
            (name, "the momentum of this method is part of steps of SGD")
            for name in ("mime", "domo", "fedadc", "fednag", "fastslowmo", "pfedmo", "representation")
        ),
    ],
)
def test_who_steps_by_a_rule_of_its_own_refuses_it(name, said):
    with pytest.raises(ConfigError, match=f"method.optimiser is 'adam', but {said}"):
        make_recipe(name, {"optimiser": "adam"})


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        (
            "fedharmony",
            {"lr": 0.05},
            "0.05, but fedharmony uses Adam, with 0.0001 by default; leave method.lr out, or ",
        ),
        (
            "fedharmony+",
            {"lr": 0.05},
            "0.05, but fedharmony+ uses Adam, with 0.003 by default; leave method.lr out, or ",
        ),
        ("fedavg", {"optimiser": "adam"}, "0.05, a learning rate for SGD, but method.optimiser is 'adam'; set "),
        (
            "fedharmony",
            {"optimiser": "sgd"},
            "0.0001, the default of fedharmony for Adam, but method.optimiser is 'sgd'",
        ),
        ("fedharmony", {}, None),
        ("fedharmony", {"lr": 0.01}, None),
        ("fedharmony", {"lr": 0.05, "optimiser": "sgd"}, None),
        ("fedavg", {"lr": 1e-4}, None),
        ("fedavg", {"lr": 40.0}, None),
        ("fedavg", {"lr": 3e-3, "optimiser": "adam"}, None),
    ],
)
def test_a_learning_rate_for_another_optimiser_is_noticed(name, settings, said):
    warning = METHODS[name].settings(**settings).lr_warning(name)
    assert (warning is None) if said is None else warning.startswith(f"method.lr is {said}")


def test_no_method_or_example_has_such_a_learning_rate():
    root = Path(__file__).parents[2]
    asked = {name: (name, entry.settings()) for name, entry in METHODS.items()}
    for path in (*root.glob("examples/**/*.toml"), *root.glob("src/fedaccord/*.toml")):
        with trusting(["vit"]):
            experiment, _ = load_experiment(path)
        asked[str(path)] = experiment.method_name, experiment.settings
    assert {what: said for what, (name, settings) in asked.items() if (said := settings.lr_warning(name))} == {}


def test_check_and_run_say_so(tmp_path):
    copy = shutil.copytree(Path(__file__).parents[2] / "examples/tags", tmp_path / "tags")
    change = ("--set", "method.name=fedharmony+")
    said = "method.lr is 0.1, but fedharmony+ uses Adam, with 0.003 by default"
    assert f"warning: {said}" in command("check", "federation.toml", *change, cwd=copy).out
    run = ("run", "federation.toml", *change, "--set", "method.rounds=1", "--workers", "0", "--out", "run")
    assert said in command(*run, cwd=copy).out
    assert said in (copy / "run/log.txt").read_text(encoding="utf-8")
