"""Verdicts follow from the interval that is shown; its numbers are scipy's."""

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from fedaccord.evaluation.judge import (
    judge_at_least,
    judge_at_most,
    judge_better,
    judge_equivalent,
    judge_not_worse,
    mean_interval,
    paired_differences,
)

# Mean 1.2, standard deviation 0.8367, t(4) = 2.7764: 1.2 +- 1.0389.
FIVE = [0.0, 1.0, 1.0, 2.0, 2.0]
NUMBERS = st.floats(-100, 100).map(lambda x: round(x, 3))
DIFFERENCES = st.lists(NUMBERS, min_size=2, max_size=12)
FLIPPED = {"holds": "refuted", "refuted": "holds", "undecided": "undecided"}


def test_the_interval_is_that_of_a_paired_t_test():
    found = mean_interval(FIVE)
    assert (found.mean, found.low, found.high) == pytest.approx((1.2, 0.1611, 2.2389), abs=1e-4)
    by_scipy = stats.ttest_1samp(FIVE, 0).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((by_scipy.low, by_scipy.high), rel=1e-12)


@pytest.mark.parametrize(
    ("differences", "verdict"),
    [
        (FIVE, "holds"),
        ([-d for d in FIVE], "refuted"),
        ([0.0, 1.0, 2.0], "undecided"),  # 1 +- 2.48
        ([0.5, 0.5], "holds"),
        ([0.0, 0.0], "undecided"),
        ([5.0], "undecided"),
        ([], "undecided"),
    ],
)
def test_better(differences, verdict):
    assert judge_better(differences).verdict == verdict


@pytest.mark.parametrize(
    ("bound", "least", "most"),
    [(0.1, "holds", "refuted"), (1.2, "undecided", "undecided"), (2.3, "refuted", "holds")],
)
def test_a_mean_is_judged_against_a_bound_by_the_same_interval(bound, least, most):
    """FIVE has the interval 0.1611 to 2.2389."""
    assert judge_at_least(FIVE, bound).verdict == least
    assert judge_at_most(FIVE, bound).verdict == most
    assert judge_at_least(FIVE, bound).interval == mean_interval(FIVE)
    assert judge_at_least([*FIVE, None], bound).verdict == "undecided"


@pytest.mark.parametrize(
    ("margin", "equivalent", "not_worse"),
    [(3.0, "holds", "holds"), (1.0, "undecided", "holds"), (0.1, "refuted", "holds")],
)
def test_margins_against_two_one_sided_tests_of_scipy(margin, equivalent, not_worse):
    assert judge_equivalent(FIVE, margin).verdict == equivalent
    assert judge_not_worse(FIVE, margin).verdict == not_worse
    above = stats.ttest_1samp(FIVE, -margin, alternative="greater").pvalue
    below = stats.ttest_1samp(FIVE, margin, alternative="less").pvalue
    assert (max(above, below) < 0.025) == (equivalent == "holds")


def test_not_worse_is_refuted_below_the_margin_only():
    worse = [-d for d in FIVE]  # -2.24 to -0.16
    verdicts = [judge_not_worse(worse, margin).verdict for margin in (2.3, 1.0, 0.1)]
    assert verdicts == ["holds", "undecided", "refuted"]


@pytest.mark.parametrize("margin", [0.0, -1.0, math.nan, math.inf])
def test_a_margin_is_a_number_above_zero(margin):
    with pytest.raises(ValueError, match="should be a finite number above 0"):
        judge_equivalent(FIVE, margin)


@pytest.mark.parametrize("missing", [None, math.nan, math.inf])
def test_a_pair_without_a_figure_leaves_every_claim_undecided_and_is_counted(missing):
    found = judge_better([*FIVE, missing])
    assert (found.verdict, found.failed, found.interval) == ("undecided", 1, mean_interval(FIVE))
    assert found.sentence.startswith("better: undecided; 1 of 6 pairs have no figure; of the others: mean difference")
    assert judge_equivalent([0.0, 0.0, missing], 1.0).verdict == "undecided"


def test_sentences_say_what_the_verdict_rests_on():
    said = "better: holds; mean difference +1.2, 95 % interval +0.1611 to +2.239, 5 seeds"
    assert judge_better(FIVE).sentence == said
    assert judge_better([2.0]).sentence == "better: undecided; mean difference +2, and one seed has no interval"
    assert judge_better([]).sentence == "better: undecided; no pair was measured"
    assert judge_better([None]).sentence == "better: undecided; 1 of 1 pairs have no figure"
    assert judge_equivalent([0.0, 0.0], 0.5).sentence.endswith("2 seeds, all with the same difference")


def test_pairs_are_of_the_same_seed_and_positive_where_the_first_is_better():
    accuracy = paired_differences({0: 0.75, 1: 0.5, 2: math.nan, 3: 0.5, 9: 1.0}, {3: None, 2: 0.5, 1: 0.25, 0: 0.25})
    assert accuracy == [0.5, 0.25, None, None]
    assert paired_differences({0: 0.5}, {0: 0.75}, more_is_better=False) == [0.25]


@given(DIFFERENCES)
def test_exchanging_the_methods_exchanges_holds_and_refuted(differences):
    one, other = judge_better(differences), judge_better([-d for d in differences])
    assert other.verdict == FLIPPED[one.verdict]
    assert (other.interval.low, other.interval.high) == (-one.interval.high, -one.interval.low)
    assert judge_equivalent(differences, 5).verdict == judge_equivalent([-d for d in differences], 5).verdict


@given(DIFFERENCES, st.sampled_from([0.01, 100.0]))
def test_the_unit_of_the_figures_changes_no_verdict(differences, scale):
    scaled = [scale * d for d in differences]
    interval, margin = mean_interval(differences), 5.0
    # Rounding may move an end that lies exactly on a bound.
    assume(all(abs(abs(end) - bound) > 1e-9 for end in (interval.low, interval.high) for bound in (0, margin)))
    assert judge_better(scaled).verdict == judge_better(differences).verdict
    assert judge_equivalent(scaled, scale * margin).verdict == judge_equivalent(differences, margin).verdict


@pytest.mark.parametrize("n", [2, 5, 10])
def test_the_interval_covers_the_true_mean_in_95_percent_of_experiments(n):
    draws = np.random.default_rng(n).normal(0.3, 1.0, size=(4000, n)).tolist()
    covered = [found.low <= 0.3 <= found.high for found in map(mean_interval, draws)]
    assert abs(np.mean(covered) - 0.95) < 3 * math.sqrt(0.95 * 0.05 / 4000)
    # A claim that is wrong holds in at most 2.5 % of the experiments.
    wrong = [judge_better([d - 0.3 for d in row]).verdict == "holds" for row in draws]
    assert np.mean(wrong) < 0.025 + 3 * math.sqrt(0.025 * 0.975 / 4000)
