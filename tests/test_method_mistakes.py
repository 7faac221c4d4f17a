"""Mistakes in a method of one's own are named in one sentence, and none changes results silently."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from command_line import SMALL, command, write
from fedaccord import (
    ConfigError,
    Exact,
    Federation,
    LabelSpace,
    Recipe,
    RequireViews,
    RowObjective,
    SharedModelSettings,
    Site,
    shared_model_recipe,
)
from fedaccord.federation.state import Dropped
from fedaccord.messages.checks import NOT_FINITE

SPACE = LabelSpace(["a", "b"])
SHORT = {"rounds": 3, "steps": 4}


def federation():
    rng = np.random.default_rng(0)
    labels = [(rng.random(30) < share).astype(int) for share in (0.2, 0.9, 0.5, 0.6)]
    x = [rng.normal(size=(30, 3)) + y[:, None] for y in labels]
    return Federation([Site(f"s{i}", x[i], [SPACE.names[k] for k in y], Exact(SPACE)) for i, y in enumerate(labels)])


class OneSiteOnly(RowObjective):
    """Fails on a stack of sites at its second step, after it has changed the sites' memories in place."""

    def start(self, work):
        work.memory.tensors.setdefault("seen", torch.ones(len(work.site.train)))

    def row_state(self, work):
        return {"seen": work.memory.tensors["seen"]}

    def updates_from(self):
        return "forward"

    def updated_rows(self, view, logits, batch):
        return {"seen": batch.row_state["seen"] + 1}

    def row_losses(self, view, logits, batch):
        if logits.dim() == 3 and bool((batch.row_state["seen"] > 1).any()):
            raise IndexError("no axis of sites")
        return view.nll(logits, batch.target) / batch.row_state["seen"]


def one_site_only(settings: SharedModelSettings) -> Recipe:
    return shared_model_recipe(settings, OneSiteOnly())


@pytest.mark.parametrize("workers", [0, 2])
def test_a_method_that_cannot_be_batched_trains_as_if_it_had_not_been_tried(workers):
    apart, together = (
        federation().train(one_site_only, **SHORT, workers=workers, run={"batched": how}) for how in ("never", "always")
    )
    assert together.summary["model_sha256"] == apart.summary["model_sha256"]
    assert together.summary["bytes"] == apart.summary["bytes"]
    assert apart.summary["warnings"] == []
    (warning,) = together.summary["warnings"]
    assert re.fullmatch(
        r"sites trained one by one, because the method failed for several at once: "
        r"IndexError: no axis of sites \(test_method_mistakes\.py:\d+\)",
        warning,
    )
    assert (together.folder / "log.txt").read_text().count(warning) == 1


class Misspelt(RowObjective):
    def row_losses(self, view, logits, batch):
        return batch.row_state["scale"] * view.nll(logits, batch.target)


def misspelt(settings: SharedModelSettings) -> Recipe:
    return shared_model_recipe(settings, Misspelt())


def test_a_dropped_site_names_the_line_without_the_folder():
    result = federation().train(misspelt, **SHORT, workers=2)
    reasons = {drop["reason"] for drop in result.summary["dropped_replies"]}
    lines = Path(__file__).read_text().splitlines()
    line = next(number for number, text in enumerate(lines, 1) if 'row_state["scale"]' in text)
    assert reasons == {f"KeyError: 'scale' (test_method_mistakes.py:{line})"}
    assert not any("one by one" in warning for warning in result.summary["warnings"])


def class_instead_of_instance(settings: SharedModelSettings) -> Recipe:
    return shared_model_recipe(settings, Misspelt)


def returns_nothing(settings: SharedModelSettings) -> Recipe:
    shared_model_recipe(settings)


@pytest.mark.parametrize(
    ("method", "said"),
    [
        (
            class_instead_of_instance,
            r"^the objective of a recipe is an instance: Misspelt\(\.\.\.\), not the class Misspelt$",
        ),
        (
            returns_nothing,
            r"^method\.name: the function 'test_method_mistakes:returns_nothing' must return a Recipe, not None$",
        ),
    ],
)
def test_a_recipe_that_is_none(method, said):
    with pytest.raises(ConfigError, match=said):
        federation().train(method, **SHORT)


def test_an_unknown_property_of_views():
    with pytest.raises(ConfigError, match=r"unknown property 'one_lable'; known: 'one_label', 'one_name', 'exact', "):
        RequireViews("one_lable", "one label for each sample")
    assert '"one_label"' in RequireViews.__doc__


class TestNames:
    def test_a_module_without_its_function(self, tmp_path):
        (tmp_path / "fedrs.py").write_text("")
        file = write(tmp_path, SMALL.replace('"fedavg"', '"fedrs"'))
        done = command("check", file.name, "--trust", "fedrs", cwd=tmp_path)
        assert done.code == 2
        assert "unknown method 'fedrs'; for a function of the module 'fedrs', write 'fedrs:FUNCTION'" in done.err

    def test_a_module_that_can_be_imported(self, tmp_path, monkeypatch):
        (tmp_path / "importable_rules.py").write_text("")
        monkeypatch.syspath_prepend(str(tmp_path))
        with pytest.raises(ConfigError, match="write 'importable_rules:FUNCTION'"):
            federation().train("importable_rules", **SHORT)
        assert "importable_rules" not in sys.modules

    def test_a_module_in_another_folder(self, tmp_path):
        (tmp_path / "experiments").mkdir()
        write(tmp_path / "experiments", SMALL.replace('"fedavg"', '"missing_rules:rule"'))
        done = command("check", "experiments/experiment.toml", "--trust", "missing_rules", cwd=tmp_path)
        assert done.code == 2
        said = " ".join(done.err.split())
        assert "No module named 'missing_rules'; looked among the installed packages and in the folders " in said
        assert f"'{tmp_path.name}'" in said
        assert "'experiments'" in said


def test_a_number_that_is_not_finite_hints_at_the_cause():
    drop = Dropped(1, "a", "train", "model/encoder.1.weight", NOT_FINITE)
    assert str(drop) == (
        "round 1: site 'a' dropped from train: model/encoder.1.weight: it holds NaN or infinite values; "
        "lower the learning rate, or check the loss"
    )
