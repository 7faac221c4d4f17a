"""Rates by group: worked numbers of docs/methods.md 10.1, empty cells, and a comparison with scikit-learn."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, recall_score

from fedaccord.evaluation.groups import (
    equal_opportunity_difference,
    fairness_figures,
    group_figures,
    pooled_figures,
    statistical_parity_difference,
)

Y = torch.tensor([1, 1, 1, 1, 1, 0, 0, 0])
A = torch.tensor([0, 0, 0, 1, 1, 0, 1, 1]).bool()
GIVEN = torch.tensor([1, 1, 0, 1, 0, 0, 0, 0])


def test_the_worked_numbers():
    assert equal_opportunity_difference(GIVEN == 1, Y == 1, A) == pytest.approx(0.166667, abs=1e-6)
    assert statistical_parity_difference(GIVEN == 1, A) == pytest.approx(0.25)
    figures = group_figures(GIVEN, Y, A, label=1)
    cells = ("members", "others", "members_with_label", "others_with_label")
    assert [figures[name] for name in cells] == [4, 4, 2, 3]
    assert figures["accuracy_group"] == pytest.approx(3 / 4)
    assert figures["accuracy_others"] == pytest.approx(3 / 4)


def test_an_empty_cell_has_no_rate():
    nobody = torch.zeros(8, dtype=torch.bool)
    figures = group_figures(GIVEN, Y, nobody, label=1)
    assert math.isnan(figures["eod"])
    assert math.isnan(figures["spd"])
    assert math.isnan(figures["accuracy_group"])
    assert figures["members"] == 0
    without_label = group_figures(GIVEN, Y, torch.tensor([0, 0, 0, 0, 0, 1, 1, 0]).bool(), label=1)
    assert math.isnan(without_label["eod"])
    assert without_label["spd"] == pytest.approx(3 / 6)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.booleans()), min_size=4, max_size=30))
def test_the_rates_are_those_of_an_independent_computation(rows):
    predicted, truth, member = (torch.tensor(column) for column in zip(*rows, strict=True))
    figures = group_figures(predicted, truth, member, label=2)
    parts = {name: (predicted[m].numpy(), truth[m].numpy()) for name, m in (("group", member), ("others", ~member))}

    def recall(name):
        said, actual = parts[name]
        return recall_score(actual == 2, said == 2) if (actual == 2).any() else math.nan

    def selected(name):
        return (parts[name][0] == 2).mean() if len(parts[name][0]) else math.nan

    assert figures["eod"] == pytest.approx(recall("others") - recall("group"), nan_ok=True)
    assert figures["spd"] == pytest.approx(selected("others") - selected("group"), nan_ok=True)
    for name, (said, actual) in parts.items():
        expected = accuracy_score(actual, said) if len(said) else math.nan
        assert figures[f"accuracy_{name}"] == pytest.approx(expected, nan_ok=True)


def test_true_and_candidate_groups_are_told_apart():
    sets = torch.tensor([[1, 0], [1, 1], [0, 1], [1, 1]]).bool()
    true = torch.tensor([0, 1, 1, 0])
    predicted, truth = torch.tensor([1, 1, 0, 0]), torch.tensor([1, 1, 1, 1])
    figures = fairness_figures(predicted, truth, sets, true, group=0, label=1, names=["a", "b"])
    assert figures["members"] == 2
    assert figures["members_candidate"] == 3
    assert figures["eod"] == pytest.approx(1 / 2 - 1 / 2)
    assert figures["eod_candidate"] == pytest.approx(0 - 2 / 3)
    assert figures["accuracy.a"] == 0.5
    certain = fairness_figures(predicted, truth, sets, None, group=0, label=1)
    assert certain["members"] == 1  # of who may be either nothing is known
    assert certain["others"] == 1


def test_rows_of_unknown_class_or_group_count_nowhere():
    figures = fairness_figures(
        torch.tensor([1, 1, 0]), torch.tensor([1, -1, 1]), torch.ones(3, 2).bool(), torch.tensor([0, 0, -1]), 0, 1
    )
    assert figures["members"] == 1
    assert figures["others"] == 0


ROWS = st.tuples(st.integers(0, 2), st.integers(-1, 2), st.integers(-1, 1), st.booleans())


@given(st.lists(st.lists(ROWS, min_size=1, max_size=12), min_size=1, max_size=4))
def test_pooled_figures_are_those_of_all_rows_together(sites):
    def figures(rows):
        predicted, truth, true, other = (torch.tensor(column) for column in zip(*rows, strict=True))
        sets = torch.stack([(true == 0) | other, (true == 1) | other | (true < 0)], 1)
        return fairness_figures(predicted, truth, sets, true, 0, 2)

    # What is not known does not travel.
    each = [{name: value for name, value in figures(rows).items() if not math.isnan(value)} for rows in sites]
    together = figures([row for rows in sites for row in rows])
    assert pooled_figures([*each, {"accuracy": 1.0}]) == pytest.approx(together, nan_ok=True)


def test_pooled_figures_say_how_many_know_true_groups_and_nobodys_are_none():
    sets = torch.tensor([[1, 0], [0, 1]]).bool()
    answer, truth = torch.tensor([1, 1]), torch.tensor([1, 0])
    known, certain = (fairness_figures(answer, truth, sets, true, 0, 1) for true in (torch.tensor([0, 1]), None))
    assert pooled_figures([known, certain])["true_groups"] == 0.5
    assert pooled_figures([certain])["true_groups"] == 0.0
    assert pooled_figures([{"accuracy": 0.5}]) == {}
