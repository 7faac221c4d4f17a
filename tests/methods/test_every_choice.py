"""Every method runs with every choice of every enumerated setting, and its model folder can be used afterwards.

A choice may be refused with a message; it may not crash, drop a site or predict something that is not finite.
"""

from __future__ import annotations

import re

import pytest

from every_choice import attacks_and_defences, cases, choices, experiment, play, write_data
from fedaccord.methods.registry import METHODS
from pace import mostly_slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("choices")
    write_data(made)
    return made


def sweep(folder, method, swept):
    """Play all cases of a method; return those that went wrong, and the number that was played and refused."""
    wrong, count = {}, {"played": 0, "refused": 0, "wrong": 0}
    for number, (case, settings) in enumerate(swept):
        how, reason = play(folder, f"{method}-{number}", experiment(method, settings))
        count[how] += 1
        if how == "wrong" or (how == "refused" and not re.match(r"error: .{20,}", reason)):
            wrong[case] = reason
    return wrong, count


@pytest.mark.parametrize("method", mostly_slow([*METHODS], "fedavg", "pfedmo", "private-labels"))
def test_every_choice_of_a_method_runs_or_is_refused(folder, method):
    wrong, count = sweep(folder, method, cases(method))
    assert wrong == {}
    assert count["played"] >= 2  # a sweep that is refused throughout shows nothing


@pytest.mark.slow
def test_every_attack_and_defence_runs_or_is_refused(folder):
    wrong, count = sweep(folder, "fed-clpl", attacks_and_defences())
    assert wrong == {}
    assert count["played"] > count["refused"] > 0


def test_choices_are_found_in_every_form_of_annotation():
    fields = METHODS["private-labels"].settings.model_fields
    assert choices(fields["tuning"].annotation) == ["none", "mse", "pairwise", "balance"]
    assert choices(fields["mask_absent"].annotation) == [True, False]
    assert "scaffold" in choices(fields["local"].annotation, tuple(fields["local"].metadata))
    assert choices(fields["rounds"].annotation) == []
    assert {name for name, _ in cases("private-labels")} >= {"defaults", 'tuning = "balance"', "mask_absent = false"}
