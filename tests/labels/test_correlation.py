"""Correlations of tags: the worked numbers of docs/methods.md 7.1, and edge cases."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import tensor

from fedaccord.labels.correlation import k_means, pair_sums, phi, phi_of_scores, phi_of_sums, tag_sums

SCORES = tensor([[0.9, 0.8, 0.1], [0.7, 0.6, 0.2], [0.2, 0.1, 0.9], [0.2, 0.5, 0.4]])
PHI = tensor([[0.38, 0.26, -0.316392], [0.26, 0.26, -0.316392], [-0.316392, -0.316392, 0.395833]])


class TestPhi:
    def test_worked_example(self):
        found, pairs = phi_of_scores(SCORES)
        torch.testing.assert_close(found.float(), PHI, atol=1e-6, rtol=0)
        assert pairs.tolist() == [[False, True, True], [True, False, True], [True, True, False]]

    def test_a_constant_tag_is_zero_and_says_nothing(self):
        for constant in (0.0, 0.3, 1.0):
            scores = SCORES.clone()
            scores[:, 2] = constant
            found, pairs = phi_of_scores(scores)
            assert found[2].abs().max() < 1e-7
            torch.testing.assert_close(found[:2, :2].float(), PHI[:2, :2], atol=1e-6, rtol=0)
            assert not pairs[2].any()
            assert pairs[0, 1]

    def test_of_labels_it_is_pearsons_correlation_over_the_rows_where_both_are_annotated(self):
        rng = np.random.default_rng(0)
        target = torch.from_numpy(rng.integers(-1, 2, (200, 4)).astype(np.int8))
        found, _ = phi_of_sums(tag_sums(target))
        for c in range(4):
            for d in range(c):
                both = (target[:, c] >= 0) & (target[:, d] >= 0)
                true = np.corrcoef(target[both, c], target[both, d])[0, 1]
                assert found[c, d] == pytest.approx(true, abs=1e-6)

    def test_sums_of_sites_add_up_and_can_be_taken_out_again(self):
        target = torch.from_numpy(np.random.default_rng(1).integers(-1, 2, (50, 3)).astype(np.int8))
        a, b, both = tag_sums(target[:20]), tag_sums(target[20:]), tag_sums(target)
        torch.testing.assert_close((a + b).both, both.both)
        torch.testing.assert_close(phi_of_sums(both - a)[0], phi_of_sums(b)[0])

    def test_shrinkage_trusts_few_rows_less(self):
        sums = tag_sums(tensor([[1, 1], [0, 0], [1, 1], [0, 0]], dtype=torch.int8))
        assert phi_of_sums(sums)[0][0, 1] == pytest.approx(1, abs=1e-6)
        assert phi_of_sums(sums, 20)[0][0, 1] == pytest.approx(4 / 24, abs=1e-6)

    def test_a_pair_that_is_nowhere_annotated_together_says_nothing(self):
        found, pairs = phi_of_sums(tag_sums(tensor([[1, -1], [0, -1], [-1, 1], [-1, 0]], dtype=torch.int8)))
        assert not pairs.any()
        assert found[0, 1] == 0

    @settings(max_examples=40, deadline=None)
    @given(st.integers(0, 10**6), st.integers(1, 12))
    def test_it_is_symmetric_and_at_most_one(self, seed, rows):
        generator = torch.Generator().manual_seed(seed)
        scores = torch.rand(rows, 4, generator=generator).round(decimals=1)
        mask = torch.rand(rows, 4, generator=generator) < 0.7
        found, pairs = phi_of_sums(pair_sums(scores, mask))
        assert torch.isfinite(found).all()
        assert found.abs().max() <= 1
        torch.testing.assert_close(found, found.T)
        assert torch.equal(pairs, pairs.T)

    def test_its_gradient_is_right_and_finite_at_constants(self):
        scores = SCORES.double().requires_grad_()

        def off_diagonal(f):
            mean, both = f.mean(0), f.T @ f / len(f)
            return phi(mean[:, None], mean[None], both)[0, 1:]

        assert torch.autograd.gradcheck(off_diagonal, (scores,))
        still = torch.zeros(4, 3, dtype=torch.float64, requires_grad=True)
        assert torch.isfinite(torch.autograd.grad(off_diagonal(still).sum(), still)[0]).all()


def test_k_means_of_fewer_points_than_clusters():
    points = tensor([[0.0], [0.0], [1.0]])
    found = k_means(points, 3, seed=0)
    assert found[0] == found[1] != found[2]
