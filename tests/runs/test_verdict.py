"""The verdict: what intervals say about each site, worked numbers of differences, and the sentences."""

import numpy as np
import pytest

from fedaccord.evaluation.differences import paired_difference, standing, unpaired_difference
from fedaccord.evaluation.intervals import Estimate
from fedaccord.runs.reading import Federation
from fedaccord.runs.verdict import in_words, missing_parts, verdict


@pytest.mark.parametrize(
    ("low", "high", "rows", "expected"),
    [
        (0.01, 0.2, 50, "better"),
        (-0.2, -0.01, 50, "worse"),
        (-0.1, 0.2, 50, "unclear"),
        (0.0, 0.2, 50, "unclear"),
        (0.3, 0.9, 9, "unclear"),  # so few rows allow no verdict
        (None, None, 50, "unclear"),
    ],
)
def test_the_interval_decides(low, high, rows, expected):
    assert standing(Estimate(0.1, low, high), rows) == expected
    assert standing(None, rows) == "unmeasured"


def test_paired_differences_use_the_same_resamples():
    old = np.linspace(0.5, 0.7, 201)
    new = np.linspace(0.55, 0.75 + 1e-8, 201)
    better = paired_difference("accuracy", new, old, 0.05, 100)  # always 5 points ahead, although the figures overlap
    assert (better.low, better.high) == pytest.approx((0.05, 0.05))
    shuffled = paired_difference("accuracy", old[::-1] + 0.05, old, 0.05, 100)
    assert (shuffled.low, shuffled.high) == pytest.approx((-0.14, 0.24))


def test_models_that_answer_alike_may_still_differ_on_other_rows():
    same = np.linspace(0.5, 0.7, 201)
    unseen = 1 - 0.025 ** (1 / 27)  # the exact interval of 0 of 27 rows ends at 12.8 %
    assert paired_difference("in_set", same, same, 0.0, 27) == Estimate(0.0, -unseen, unseen)
    assert paired_difference("map", same, same, 0.0, 27) == Estimate(0.0)  # no share of rows: no interval


def test_unpaired_intervals_add_like_standard_deviations():
    found = unpaired_difference(Estimate(0.8, 0.77, 0.84), Estimate(0.7, 0.67, 0.74))
    assert (found.value, found.low, found.high) == pytest.approx((0.1, 0.05, 0.15))
    assert unpaired_difference(Estimate(1.0), Estimate(0.7, 0.6, 0.8)).low is None


def test_sentences():
    better, worse, unclear, unmeasured = "better", "worse", "unclear", "unmeasured"
    assert verdict({"a": better, "b": better}) == "Better than guessing at both sites."
    assert verdict({"a": better}, better) == (
        "Better than guessing at its only site. The global model is better than guessing."
    )
    mixed = {"a": better, "b": unclear, "c": worse, "d": unmeasured, "e": better}
    assert verdict(mixed, unclear, {"a": unclear, "b": unclear}) == (
        "Better than guessing at 2 of 5 sites (a, e); worse at 1 (c); cannot tell at 1 (b); not measured at 1 (d). "
        "The global model cannot be told apart from guessing. Better than training alone at no site; cannot tell at 2 "
        "(a, b); no site is worse."
    )
    assert verdict({"a": unmeasured}, None, {}) == (
        "No site has enough test rows to compare the model with guessing. No site can be compared with training alone."
    )
    assert verdict({}) == "Whether the model is better than guessing was not measured."


@pytest.mark.parametrize(
    ("standings", "said"),
    [
        (["better", "better", "better"], "at all 3 sites."),
        (["better", "unclear", "better"], "at 2 of 3 sites (a, c); cannot tell at 1 (b); no site is worse."),
        (["better", "unclear", "worse"], "at 1 of 3 sites (a); worse at 1 (c); cannot tell at 1 (b)."),
        (["worse", "worse", "worse"], "at no site; worse at 3 (a, b, c)."),
    ],
)
def test_only_a_run_without_a_loser_says_that_no_site_is_worse(standings, said):
    alone = dict(zip("abc", standings, strict=True))
    assert verdict({"a": "better"}, None, alone).endswith(f" Better than training alone {said}")


def test_many_sites_are_counted_and_only_some_are_named():
    sites = {f"s{i}": "better" if i < 8 else "unclear" for i in range(10)}
    assert verdict(sites) == (
        "Better than guessing at 8 of 10 sites (s0, s1, s2, s3, s4, s5 and 2 more); cannot tell at 2 (s8, s9)."
    )


def federation(**sites):
    """A federation of the labels a to d; a site is its number of training rows and the labels that it teaches."""
    described = {
        name: {"view": {"kind": "exact"}, "train": rows, "test": 30, "informs": list(labels)}
        for name, (rows, labels) in sites.items()
    }
    return Federation(labels=list("abcd"), sites=described)


OVERLAP = "Labels that only one site has: {}; sites help each other with labels they share."
ROWS = "{} sites have fewer than 60 training rows; annotate more rows."


@pytest.mark.parametrize(
    ("sites", "said"),
    [
        ({"x": (90, "ab"), "y": (90, "cd")}, [OVERLAP.format("a, b, c, d")]),
        ({"x": (90, "abc"), "y": (90, "abd")}, [OVERLAP.format("c, d")]),  # half of the labels
        ({"x": (59, "abcd"), "y": (59, "abcd"), "z": (90, "abcd")}, [ROWS.format("2 of 3")]),
        ({"x": (90, "abc"), "y": (90, "abc"), "z": (5, "")}, ["Labels that no site has: d; add a site that does."]),
        ({"x": (9, "a"), "y": (9, "b")}, [OVERLAP.format("a, b"), ROWS.format("2 of 2")]),  # never more than two
        ({"x": (90, "abcd"), "y": (90, "abcd")}, ["More test rows would make the intervals narrower."]),
    ],
)
def test_a_federation_without_gains_is_told_what_is_missing(sites, said):
    assert missing_parts(federation(**sites), {"x": "unclear"}) == said


def test_nothing_is_suggested_where_more_test_rows_would_not_help():
    assert missing_parts(federation(x=(90, "abcd"), y=(90, "abcd")), {"x": "worse"}) == []


def test_few_rows_are_said_to_be_few():
    assert in_words("unclear", 9) == "cannot tell: too few rows"
    assert in_words("unclear", 10) == in_words("unclear") == "cannot tell"
    assert in_words("better", 9) == "better"
