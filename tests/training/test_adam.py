"""Adam against torch.optim, which we do not import at run time."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedaccord.errors import ConfigError
from fedaccord.federation.recipe import plain_solver
from fedaccord.methods.registry import make_recipe
from fedaccord.training.adam import Adam, AdamStepper
from fedaccord.training.settings import TrainingSettings

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
