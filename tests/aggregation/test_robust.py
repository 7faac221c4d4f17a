"""Robust rules: hand-made cases, other people's implementations, and what a hostile site cannot do."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import trim_mean
from test_mean import drawn, normed, replies_of, small

from fedaccord.aggregation.mean import weighted_mean
from fedaccord.aggregation.robust import (
    RobustAggregation,
    Rule,
    krum_choice,
    krum_scores,
    median,
    trimmed_mean,
)
from fedaccord.errors import TooFewSitesError
from fedaccord.models.layout import Layout

# docs/methods.md 9
FIVE = torch.tensor([[0.0, 0], [1, 0], [0, 1], [1, 1], [10, 10]])
RULES = ["median", "trimmed-mean", "krum", "multi-krum"]


def combined(name, matrix, hostile=1):
    return Rule(name, hostile).over(matrix)(matrix)


class TestWorkedExample:
    def test_krum(self):
        assert krum_scores(FIVE, 1).tolist() == pytest.approx([2, 2, 2, 2, 343])
        assert krum_choice(FIVE, 1).tolist() == [0]
        assert combined("krum", FIVE).tolist() == [0, 0]

    def test_multi_krum(self):
        assert krum_choice(FIVE, 1, keep=3).tolist() == [0, 1, 2]
        assert combined("multi-krum", FIVE).tolist() == [0.5, 0.5]  # n - f = 4 of them

    def test_trimmed_mean_and_median(self):
        assert trimmed_mean(FIVE, 1).tolist() == pytest.approx([2 / 3, 2 / 3])
        assert median(FIVE).tolist() == [1, 1]

    def test_the_median_of_an_even_number_is_between_the_two_middle_ones(self):
        assert median(torch.tensor([[4.0], [1], [2], [9]])).tolist() == [3]

    @pytest.mark.parametrize(
        ("name", "expected"), [("median", 1), ("trimmed-mean", 2 / 3), ("krum", 0), ("multi-krum", 0.5)]
    )
    def test_by_name(self, name, expected):
        assert combined(name, FIVE).tolist() == pytest.approx([expected, expected])


def naive_krum_scores(matrix, hostile):
    """Blanchard et al. as one reads it: one pair after the other, in plain Python."""
    rows = matrix.double().tolist()
    scores = []
    for i, mine in enumerate(rows):
        others = [sum((a - b) ** 2 for a, b in zip(mine, row, strict=True)) for j, row in enumerate(rows) if j != i]
        scores.append(sum(sorted(others)[: len(rows) - hostile - 2]))
    return scores


SHAPES = st.tuples(st.integers(3, 12), st.integers(1, 6), st.integers(0, 2**32))


class TestOtherImplementations:
    @given(SHAPES)
    def test_numpys_median(self, shape):
        matrix = drawn(*shape)
        assert np.allclose(median(matrix).numpy(), np.median(matrix.numpy(), axis=0), atol=1e-6)

    @given(SHAPES, st.integers(0, 5))
    def test_scipys_trimmed_mean(self, shape, trim):
        matrix = drawn(*shape)
        trim = min(trim, (len(matrix) - 1) // 2)
        share = (trim + 0.5) / len(matrix)  # scipy takes a share and rounds down
        assert np.allclose(trimmed_mean(matrix, trim).numpy(), trim_mean(matrix.double().numpy(), share), atol=1e-6)

    @given(SHAPES, st.integers(0, 4))
    def test_krum_pair_by_pair(self, shape, hostile):
        matrix = drawn(*shape)
        hostile = min(hostile, (len(matrix) - 3) // 2)
        scores = naive_krum_scores(matrix, hostile)
        assert krum_scores(matrix, hostile).tolist() == pytest.approx(scores)
        best = sorted(range(len(scores)), key=lambda i: scores[i])
        assert torch.equal(combined("krum", matrix, hostile), matrix[best[0]])
        kept = matrix[best[: len(matrix) - hostile]]
        torch.testing.assert_close(combined("multi-krum", matrix, hostile), kept.mean(0), rtol=1e-5, atol=1e-6)


class TestHostileSites:
    @pytest.mark.parametrize("name", RULES)
    @pytest.mark.parametrize("far", [-3e38, 1e20, 3e38])
    def test_they_cannot_pull_the_result_out_of_the_honest_range(self, name, far):
        matrix = drawn(9, 4, 1)
        matrix[[2, 5, 7]] = far
        result = combined(name, matrix, hostile=3)
        honest = matrix[[0, 1, 3, 4, 6, 8]]
        assert bool((result >= honest.amin(0)).all())
        assert bool((result <= honest.amax(0)).all())
        assert not bool((matrix.mean(0) <= honest.amax(0)).all() and (matrix.mean(0) >= honest.amin(0)).all())

    @given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=5, max_size=5))
    def test_the_result_is_always_finite(self, values):
        matrix = torch.tensor(values)[:, None].expand(5, 2).contiguous()
        for name in RULES:
            assert bool(torch.isfinite(combined(name, matrix)).all())

    @pytest.mark.parametrize("name", RULES)
    def test_another_order_of_sites_changes_nothing(self, name):
        matrix = drawn(5, 3, 2)
        for order in itertools.permutations(range(5)):
            torch.testing.assert_close(combined(name, matrix[list(order)]), combined(name, matrix))

    @pytest.mark.parametrize("name", RULES)
    def test_the_caller_keeps_its_matrix(self, name):
        matrix = FIVE.clone()
        combined(name, matrix).add_(1)
        assert torch.equal(matrix, FIVE)


class TestTooFew:
    @pytest.mark.parametrize(
        ("call", "words"),
        [
            (lambda: krum_choice(FIVE, 2), "the rule 'krum' needs at least 7 sites against 2 hostile ones, and there"),
            (lambda: krum_choice(FIVE[:4], 1), "the rule 'krum' needs at least 5 sites against 1 hostile one, and"),
            (lambda: trimmed_mean(FIVE, 3), "the rule 'trimmed-mean' needs at least 7 sites against 3 hostile ones"),
            (lambda: median(FIVE[:0]), "the rule 'median' needs at least 1 sites, and there are 0"),
            (lambda: combined("median", FIVE[:2]), "the rule 'median' needs at least 3 sites, and there are 2"),
            (lambda: combined("multi-krum", FIVE, 2), "the rule 'multi-krum' needs at least 7 sites against 2 hostile"),
            (lambda: combined("trimmed-mean", FIVE, 0.49), None),
        ],
    )
    def test_it_is_said_in_a_sentence(self, call, words):
        if words is None:  # 0.49 of 5 sites is two of them, and five are enough
            assert call().tolist() == [1, 1]
            return
        with pytest.raises(TooFewSitesError) as caught:
            call()
        assert words in str(caught.value)

    @pytest.mark.parametrize("call", [lambda: trimmed_mean(FIVE, -1), lambda: krum_scores(FIVE, -1)])
    def test_fewer_than_none(self, call):
        with pytest.raises(ValueError, match="the number of hostile sites must be 0 or more, not -1"):
            call()

    @pytest.mark.parametrize(
        ("share", "sites", "hostile"), [(0.2, 10, 2), (0.2, 3, 1), (0.3, 9, 2), (0.29, 100, 29), (2, 10, 2)]
    )
    def test_a_share_is_rounded_down_to_at_least_one(self, share, sites, hostile):
        assert Rule("krum", share).hostile_among(sites) == hostile


def owners(*names, sites=5):
    """For each of three labels, a string of 1s and 0s that says which sites own it."""
    return torch.tensor([[name[site] == "1" for name in names] for site in range(sites)])


class TestPerLabel:
    @pytest.mark.parametrize("name", RULES)
    def test_the_encoder_is_everybodys_and_a_row_its_owners(self, name):
        informs = owners("11111", "11011", "10100")
        replies = replies_of(small(), drawn(5, 11, 3), (1, 2, 3, 4, 5), informs, drawn(1, 11, 4)[0])
        result = RobustAggregation(Rule(name, 1), per_label=True)(replies)
        rows, matrix = replies.layout.head_rows(), replies.matrix
        encoder = replies.layout.mask("encoder")
        assert torch.equal(result[encoder], combined(name, matrix[:, encoder]))
        assert torch.equal(result[rows[0]], combined(name, matrix[:, rows[0]]))
        four = matrix[[0, 1, 3, 4]][:, rows[1]]
        if name in ("median", "trimmed-mean"):
            assert torch.equal(result[rows[1]], combined(name, four))
        else:  # Krum needs five
            torch.testing.assert_close(result[rows[1]], weighted_mean(four, torch.tensor([1.0, 2, 4, 5])))
        two = matrix[[0, 2]][:, rows[2]]
        torch.testing.assert_close(result[rows[2]], weighted_mean(two, torch.tensor([1.0, 3])))

    @pytest.mark.parametrize("name", RULES)
    def test_a_label_without_owners_keeps_its_row_bit_for_bit(self, name):
        previous = drawn(1, 11, 4)[0]
        replies = replies_of(small(), drawn(5, 11, 3), [1] * 5, owners("11111", "00000", "11111"), previous)
        result = RobustAggregation(Rule(name, 1), per_label=True)(replies)
        kept = replies.layout.head_rows()[1]
        assert torch.equal(result[kept], previous[kept])
        assert not torch.equal(result, previous)

    @pytest.mark.parametrize("name", RULES)
    def test_a_site_outside_a_labels_owners_cannot_move_its_row(self, name):
        informs = owners("11110", "01111", "11111")
        replies, hostile = (replies_of(small(), drawn(5, 11, 3), [1] * 5, informs) for _ in range(2))
        hostile.matrix[4] *= -1000
        row = replies.layout.head_rows()[0]
        aggregate = RobustAggregation(Rule(name, 1), per_label=True)
        assert torch.equal(aggregate(replies)[row], aggregate(hostile)[row])

    def test_thin_rows_are_told_apart(self):
        informs = owners("11111", "11000", "00000")
        assert RobustAggregation(Rule("median"), True).underowned(informs).tolist() == [False, True, False]
        assert RobustAggregation(Rule("krum", 1), True).underowned(owners("11110", "11111")).tolist() == [True, False]
        assert RobustAggregation(Rule("median"), False).underowned(informs).tolist() == [False, False, False]

    def test_where_nothing_is_combined_no_row_is_thin(self):
        assert not RobustAggregation(Rule("krum", 2), True).underowned(owners("11111", "11000")).any()

    def test_a_number_is_lowered_only_as_far_as_what_a_defence_left_needs(self):
        replies = replies_of(small(), drawn(7, 11, 3), [1] * 7, owners("1111111", "1111100", "1111111", sites=7))
        aggregate = RobustAggregation(Rule("krum", 3), per_label=True)
        with pytest.raises(TooFewSitesError):
            aggregate(replies)
        left = aggregate(dataclasses.replace(replies, left_out=2))
        rows = replies.layout.head_rows()
        two, one = (RobustAggregation(Rule("krum", n), per_label=True)(replies) for n in (2, 1))
        assert torch.equal(left[rows[0]], two[rows[0]])  # seven owners fit two hostile ones
        assert torch.equal(left[rows[1]], one[rows[1]])  # five fit one
        assert aggregate.underowned(replies.informs, 2).tolist() == [False, False, False]
        assert aggregate.underowned(replies.informs, 1).tolist() == [False, True, False]
        assert Rule("krum", 1).among(3, 4) == Rule("krum", 0)
        assert Rule("krum", 0.3).among(3, 4) == Rule("krum", 0.3)

    @pytest.mark.parametrize("name", ["trimmed-mean", "multi-krum"])
    def test_honest_sites_that_a_defence_left_out_do_not_open_the_door(self, name):
        """Two of seven are hostile; a defence left out two honest ones, and the rule still fits the rest."""
        replies = replies_of(small(), drawn(7, 11, 3), [1] * 7, torch.ones(7, 3).bool())
        replies.matrix[5:] = 1e6
        left = dataclasses.replace(replies, left_out=2)
        assert RobustAggregation(Rule(name, 2))(left).abs().max() < 100

    def test_without_rows_of_owners_the_whole_model_is_combined_alike(self):
        replies = replies_of(small(), drawn(5, 11, 3), [1] * 5, owners("11111", "11000", "00000"))
        for name in RULES:
            assert torch.equal(RobustAggregation(Rule(name, 1))(replies), combined(name, replies.matrix))

    def test_too_few_replies_are_refused(self):
        replies = replies_of(small(), drawn(2, 11, 3), [1] * 2, torch.ones(2, 3).bool())
        with pytest.raises(TooFewSitesError, match="needs at least 3 sites"):
            RobustAggregation(Rule("median"), per_label=True)(replies)


def with_statistics(means, variances):
    """Replies of as many sites, whose models differ only in batch-norm statistics."""
    layout = Layout.of(normed())
    at = {slot.name: slot.start for slot in layout.slots}
    matrix = drawn(1, layout.size, 0).repeat(len(means), 1)
    matrix[:, at["encoder.1.running_mean"]] = torch.tensor(means)
    matrix[:, at["encoder.1.running_var"]] = torch.tensor(variances)
    sites = len(means)
    replies = replies_of(normed(), matrix, [1] * sites, torch.ones(sites, 2).bool())
    return replies, at["encoder.1.running_var"]


class TestBatchNorm:
    @pytest.mark.parametrize("pooled", [True, False])
    @pytest.mark.parametrize("name", RULES)
    def test_variances_stay_valid_and_no_hostile_site_sets_them(self, name, pooled):
        replies, at = with_statistics([0.0, 0.1, 0.2, 0.3, 1e19], [1.0, 1.1, 1.2, 1.3, -1e30])
        variance = float(RobustAggregation(Rule(name, 1), pooled=pooled)(replies)[at])
        assert 1.0 <= variance <= 1.4

    @pytest.mark.parametrize("name", RULES)
    def test_a_variance_below_zero_counts_as_zero(self, name):
        replies, at = with_statistics([0.0] * 5, [-1.0, -2.0, -3.0, -4.0, -5.0])
        model = RobustAggregation(Rule(name, 1))(replies)
        assert float(model[at]) == 0
        network = normed()
        replies.layout.load(network, model)
        assert bool(torch.isfinite(network.eval()(torch.ones(2, 1))).all())

    def test_pooling_adds_the_spread_of_the_means_of_those_who_count(self):
        # Multi-Krum leaves the fifth out: means 0, 2, 0, 2 have a spread of 1.
        replies, at = with_statistics([0.0, 2.0, 0.0, 2.0, 100.0], [0.5, 0.5, 0.5, 0.5, 0.5])
        plain, pooled = (RobustAggregation(Rule("multi-krum", 1), pooled=p)(replies)[at] for p in (False, True))
        assert (float(plain), float(pooled)) == (0.5, 1.5)
