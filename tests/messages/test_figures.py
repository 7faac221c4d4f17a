"""Figures that a site reports have expected names, are in their range, and count no more than its test rows."""

import math
from dataclasses import replace

import pytest
import torch

from fedaccord.evaluation.ranges import EVALUATED, EXAMINED, fairness_ranges
from fedaccord.messages.checks import Problem
from fedaccord.messages.figures import FigureSpec, find_metrics_problem
from fedaccord.messages.message import Message
from fedaccord.messages.names import CALIBRATION

RANGES = EVALUATED | fairness_ranges(["north", "south"])
SPEC = FigureSpec(RANGES, answers=2, labels=3)
EXAMINATION = FigureSpec(EVALUATED | EXAMINED, 2, 3, "rows", True, frozenset({CALIBRATION}), most_rows=40)


def figures(**changes):
    numbers = {"round": 5, "samples": 4, "accuracy": 0.5} | changes
    return Message({"confusion": torch.eye(2, dtype=torch.int64)}, numbers, {"run": "r"})


def problem(reply, spec=SPEC):
    return find_metrics_problem(reply, spec, "r", 5)


def test_figures_as_asked_have_no_problem():
    assert problem(figures()) is None
    assert problem(Message(numbers={"round": 5, "samples": 0}, words={"run": "r"})) is None
    fair = {"eod": -1.0, "members": 4.0, "others_given_candidate": 0, "accuracy.north": 1.0, "rows.south": 3}
    assert problem(figures(nll=12.5, tags_judged=3, matrix_change=0.1, **fair)) is None


def test_run_and_round_are_those_of_the_question():
    assert find_metrics_problem(figures(), SPEC, "s", 5).tensor == "run"
    assert find_metrics_problem(figures(), SPEC, "r", 6).tensor == "round"


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("accuracy", math.nan, "the metric is nan"),
        ("samples", math.inf, "the metric is inf"),
        ("accuracy", 1e200, "the metric is 1e+200"),
        ("accuracy", 9e99, "the metric is 9e+99, not between 0 and 1"),
        ("accuracy", -0.1, "the metric is -0.1, not between 0 and 1"),
        ("accuracy", 1.01, "the metric is 1.01, not between 0 and 1"),
        ("eod", -1.5, "the metric is -1.5, not between -1 and 1"),
        ("nll", 1e12, "the metric is 1e+12, not between 0 and 1e+09"),
        ("members", 5, "the metric is 5, not between 0 and 4"),
        ("members", 1.5, "the metric is 1.5, not a whole number"),
        ("rows.north", 5, "the metric is 5, not between 0 and 4"),
        ("samples", -1, "the metric is -1, not between 0 and 1e+09"),
        ("samples", 2.5, "the metric is 2.5, not a whole number"),
        ("tags_judged", 4, "the metric is 4, not between 0 and 3"),
        ("rows.west", 1, "the metric was not asked for; a view lists its own metrics in `figures`"),
        ("figure 17", 1, "the metric was not asked for; a view lists its own metrics in `figures`"),
        ("a\nb", 1, "is not a valid metric name"),
        ("\ud800", 1, "is not a valid metric name"),
        ("x" * 201, 1, "is not a valid metric name"),
    ],
)
def test_a_number_is_expected_and_in_its_range(name, value, reason):
    assert problem(figures(**{name: value})) == Problem(name, reason)


@pytest.mark.parametrize(
    ("counts", "reason"),
    [
        (torch.zeros(2, 3, dtype=torch.int64), "not torch.int64, 2 x 2"),
        (torch.zeros(4, dtype=torch.int64), "not torch.int64, 2 x 2"),
        (torch.zeros(2000, 2000, dtype=torch.int64), "not torch.int64, 2 x 2"),
        (torch.zeros(2, 2), "the counts are torch.float32"),
        (torch.zeros(2, 2, dtype=torch.complex64), "the counts are torch.complex64"),
        (torch.zeros(2, 2, dtype=torch.uint64), "the counts are torch.uint64"),
        (torch.tensor([[3, 0], [-1, 2]]), "a count is below zero"),
        (torch.tensor([[3, 0], [0, 2]]), "more than the 4 test rows"),
        (torch.full((2, 2), 2**62), "more than the 4 test rows"),
    ],
)
def test_confusion_counts_have_the_shape_of_the_answers_and_count_test_rows(counts, reason):
    found = problem(replace(figures(), tensors={"confusion": counts}))
    assert found.tensor == "confusion"
    assert reason in found.reason


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ([[0, 0, 2], [1999, 5, 2]], None),
        ([], None),
        ([[0, 0, 5]], "more than the 4 test rows"),
        ([[0, 0, -1]], "a count is below zero"),
        ([[0, 2000, 1]], "a cell is outside the 2000 answers"),
        ([[-1, 0, 1]], "a cell is outside the 2000 answers"),
        ([[0, 0, 0]] * 5, "there are 5 cells for 4 test rows"),
    ],
)
def test_counts_of_many_answers_are_cells(cells, reason):
    spec = replace(SPEC, answers=2000)
    sent = torch.tensor(cells, dtype=torch.int64).reshape(-1, 3)
    found = problem(replace(figures(), tensors={"confusion": sent}), spec)
    assert found is None if reason is None else reason in found.reason
    whole = replace(figures(), tensors={"confusion": torch.zeros(2000, 2000, dtype=torch.int64)})
    assert "not torch.int64, cells x 3" in problem(whole, spec).reason


def test_a_tensor_that_was_not_asked_for_is_refused():
    extra = replace(figures(), tensors={"rows of the site": torch.zeros(3)})
    assert problem(extra) == Problem("rows of the site", "the tensor was not asked for")


def examination(tensors=None, **changes):
    numbers = {"round": 5, "rows": 40, "classes": 2, "resamples": 1000, "ece": 0.9, "ece.high": 1.8}
    return Message(tensors or {}, numbers | changes, {"run": "r"})


@pytest.mark.parametrize(
    ("changes", "at_fault"),
    [
        ({}, None),
        ({"over_guess": -0.2, "over_guess.low": -0.4, "gain/accuracy": -1.0, "alone/accuracy": 1.0}, None),
        ({"gain/accuracy": 1.2}, "gain/accuracy"),
        ({"alone/accuracy": -0.2}, "alone/accuracy"),
        ({"accuracy.low": -9.0}, "accuracy.low"),
        ({"rows": 41}, "rows"),
        ({"classes": 4}, "classes"),
        ({"resamples": 10**6}, "resamples"),
    ],
)
def test_an_examination_has_figures_with_ends_of_intervals(changes, at_fault):
    found = problem(examination(**changes), EXAMINATION)
    assert (None if found is None else found.tensor) == at_fault


@pytest.mark.parametrize(
    ("row", "is_fine"), [([8, 0.5, 0.4, 0.2, 0.6], True), ([8, 0.5, 9.0, 0.2, 0.6], False), ([-8, 0, 0, 0, 0], False)]
)
def test_a_calibration_curve_has_shares(row, is_fine):
    curve = torch.tensor([row], dtype=torch.float64)
    found = problem(examination({"calibration": curve}), EXAMINATION)
    assert (found is None) == is_fine
    assert problem(examination({"calibration": curve.float()}), EXAMINATION).tensor == "calibration"
    assert problem(examination({"calibration": curve.expand(11, 5)}), EXAMINATION).tensor == "calibration"
