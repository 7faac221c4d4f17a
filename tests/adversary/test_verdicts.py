"""Verdicts: worked numbers of docs/methods.md 10.5, ties, too few sites, the gate, and confidence over rounds."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedaccord.adversary.verdicts import minority, next_confidence, peeling, two_means

NAN = math.nan


def hostile(rule, *scores, **options):
    marks = rule(torch.tensor(scores, dtype=torch.float64), **options)
    return marks.nonzero().flatten().tolist()


def test_the_clusters_of_the_worked_example():
    assert hostile(two_means, 0.01, -0.02, 0.03, 0.00, 0.40, 0.38) == [4, 5]
    assert hostile(two_means, 0.2, 0.2, 0.2, 0.2) == []


def test_the_smaller_cluster_is_hostile_in_either_direction():
    assert hostile(two_means, -0.5, 0.1, 0.11, 0.12) == [0]
    assert hostile(two_means, 0.4, 0.41, 0.0, 0.01) == [0, 1]  # a tie: the one far from zero
    assert hostile(two_means, -0.4, -0.41, 0.1, 0.11) == [0, 1]


def test_too_few_sites_or_scores_are_no_clusters():
    assert hostile(two_means, 0.0, 0.0, 9.0) == []
    assert hostile(two_means, 0.0, 9.0, NAN, NAN, NAN) == []
    assert hostile(two_means, NAN, 0.01, 0.0, 9.0, NAN) == [3]  # who has no score is benign
    assert hostile(two_means, 1.0, 1.0, 1.0 + 1e-12, 1.0) == []
    assert hostile(minority, 0.0, 0.0, 9.0, gate=0.0) == []


def test_the_minority_has_to_stand_apart():
    calm = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
    assert hostile(minority, *calm, gate=3.5) == []
    assert hostile(minority, *calm, gate=2.5) == [4, 5]  # even steps have a ratio of about 3
    assert hostile(minority, *calm, 5.0, 5.1, 5.2, gate=2.5) == [6, 7, 8]
    assert hostile(minority, *calm, -5.0, -5.1, -5.2, gate=2.5) == []  # one-sided: low scores are never hostile
    assert hostile(minority, 0.0, 0.0, 0.0, 1.0, 1.0, gate=2.5) == []  # two of five are no third
    assert hostile(minority, 0.0, 0.0, 0.0, 1.0, 1.0, gate=2.5, most=0.5) == [3, 4]
    assert hostile(minority, 0.0, NAN, 0.01, 0.02, 1.0, NAN, gate=2.5) == [4]


def test_peeling_finds_hostile_sites_that_are_not_alike():
    calm = (0.0, 0.1, 0.2, -0.1, -0.2, 0.05, -0.05)
    assert hostile(minority, *calm, 2.6, 5.7, 6.4, gate=3.0) == [8, 9]
    assert hostile(peeling, *calm, 2.6, 5.7, 6.4, gate=3.0) == [7, 8, 9]
    assert hostile(peeling, *calm, 2.6, 5.7, 6.4, gate=3.0, most=0.2) == [8, 9]  # no more than a share
    assert hostile(peeling, *calm, 2.6, gate=3.0) == hostile(minority, *calm, 2.6, gate=3.0) == [7]
    assert hostile(peeling, *calm, -2.6, -5.7, -6.4, gate=3.0) == []
    assert hostile(peeling, 0.0, 0.0, 0.0, 0.0, 1.0, 9.0, gate=3.0) == [4, 5]  # the rest are all the same
    assert hostile(peeling, 0.0, 0.0, 9.0, gate=3.0) == []


def test_who_cannot_be_computed_with_counts_among_the_most():
    scores = (0.0, 0.1, 0.2, 0.1, 5.0, math.inf, math.inf)
    for rule in (minority, peeling):
        assert hostile(rule, *scores, gate=2.5) == [5, 6]  # two of seven are the third
        assert hostile(rule, *scores, gate=2.5, most=0.5) == [4, 5, 6]


def test_the_ratio_by_hand():
    """Means 0.1 and 1: a gap of 0.9; squares about the means 0.02, over 4 - 2: a deviation of 0.1, a ratio of 9."""
    scores = (0.0, 0.1, 0.2, 1.0)
    assert hostile(minority, *scores, gate=8.99) == [3]
    assert hostile(minority, *scores, gate=9.01) == []


@given(st.lists(st.floats(-5, 5), min_size=4, max_size=12), st.randoms())
def test_verdicts_follow_the_sites_and_never_hit_a_majority(values, random):
    order = list(range(len(values)))
    random.shuffle(order)
    scores = torch.tensor(values, dtype=torch.float64)
    for rule in (two_means, lambda s: minority(s, gate=1.0), lambda s: peeling(s, gate=1.0)):
        marks, moved = rule(scores), rule(scores[order])
        if len(set(values)) == len(values):  # equal scores are told apart by order only
            assert torch.equal(marks[order], moved)
        assert 2 * int(marks.sum()) <= len(values)
    few, more = minority(scores, gate=1.0), peeling(scores, gate=1.0)
    assert 3 * int(more.sum()) <= len(values)
    assert bool((few <= more).all())  # who is found at once stays found


def test_the_confidence_of_the_worked_example():
    benign, guilty = [0.5], [0.5]
    for _ in range(20):
        benign.append(next_confidence(benign[-1], hostile=False))
        guilty.append(next_confidence(guilty[-1], hostile=True))
    assert benign[1:5] == pytest.approx([0.55, 0.595, 0.6355, 0.67195])
    assert guilty[1:4] == pytest.approx([0.45, 0.405, 0.3645])
    assert benign[15] < 0.9 <= benign[16] == pytest.approx(0.907349, abs=1e-6)
    assert guilty[15] > 0.1 >= guilty[16] == pytest.approx(0.092651, abs=1e-6)
    assert benign[16:] == [benign[16]] * 5
    assert guilty[16:] == [guilty[16]] * 5


def test_the_guard_is_directional_unless_told():
    assert next_confidence(0.95, hostile=True) == pytest.approx(0.855)
    assert next_confidence(0.05, hostile=False) == pytest.approx(0.145)
    assert next_confidence(0.95, hostile=True, absolute=True) == 0.95
    assert next_confidence(0.05, hostile=False, absolute=True) == 0.05
    assert next_confidence(0.5, hostile=False, absolute=True) == pytest.approx(0.55)


@pytest.mark.parametrize("rule", [two_means, lambda s: minority(s, 2.5), lambda s: peeling(s, 3.0)])
def test_an_infinite_score_is_hostile_and_the_rest_is_judged_without_it(rule):
    scores = torch.tensor([0.0, 0.01, math.inf, 0.02, math.nan, 9.0, 0.015], dtype=torch.float64)
    assert rule(scores).tolist() == [False, False, True, False, False, True, False]
    assert rule(torch.tensor([math.inf, 0.0, 1.0])).tolist() == [True, False, False]
