"""Consensus, blocks, weights and noise of tag correlations: numbers of docs/methods.md 7.2 to 7.4 and edge cases."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import tensor

from fedaccord.labels.correlation import discrepancy, phi_of_sums, tag_sums
from fedaccord.methods.tags.consensus import Consensus, leave_one_out
from fedaccord.methods.tags.server import quality_weights, spectral_blocks
from fedaccord.methods.tags.site import noisy_sums

PHI = tensor([[0.38, 0.26, -0.316392], [0.26, 0.26, -0.316392], [-0.316392, -0.316392, 0.395833]])


def everywhere(tags):
    return torch.ones(tags, tags, dtype=torch.bool)


class TestConsensus:
    def left_out(self, operator, site, values=(0.1, 0.2, 0.3, 0.9)):
        matrices = {str(i): torch.full((2, 2), v) for i, v in enumerate(values)}
        informed = {name: everywhere(2) for name in matrices}
        found, _ = leave_one_out(matrices, informed, dict.fromkeys(matrices, 1.0), Consensus(operator), site)
        return float(found[0, 1])

    @pytest.mark.parametrize(
        ("operator", "first", "last"),
        [("uniform-mean", 0.466667, 0.2), ("median", 0.3, 0.2), ("trimmed-mean", 0.3, 0.2), ("mean", 0.466667, 0.2)],
    )
    def test_worked_example(self, operator, first, last):
        assert self.left_out(operator, "0") == pytest.approx(first, abs=1e-6)
        assert self.left_out(operator, "3") == pytest.approx(last, abs=1e-6)

    def test_the_median_of_an_even_number_is_between_the_two_in_the_middle(self):
        assert self.left_out("median", None) == pytest.approx(0.25)

    def test_a_trimmed_mean_of_ten_leaves_out_two_at_either_end(self):
        values = (0.0, 0.01, *([0.5] * 6), 0.99, 1.0)
        assert self.left_out("trimmed-mean", None, values) == pytest.approx(0.5)

    def test_one_or_two_sites_are_not_trimmed_away(self):
        assert self.left_out("trimmed-mean", None, (0.4,)) == pytest.approx(0.4)
        assert self.left_out("trimmed-mean", None, (0.4, 0.6)) == pytest.approx(0.5)

    def test_the_mean_is_by_sample_count(self):
        matrices = {"a": torch.zeros(2, 2), "b": torch.ones(2, 2)}
        says = {"a": everywhere(2), "b": everywhere(2)}
        found, _ = leave_one_out(matrices, says, {"a": 100, "b": 300}, Consensus("mean"))
        assert found[0, 1] == pytest.approx(0.75)

    @pytest.mark.parametrize("operator", ["mean", "uniform-mean", "median", "trimmed-mean"])
    def test_an_entry_is_taken_over_the_sites_that_know_it(self, operator):
        matrices = {"a": torch.full((2, 2), 0.5), "b": torch.full((2, 2), -1.0), "c": torch.full((2, 2), 0.5)}
        silent = torch.zeros(2, 2, dtype=torch.bool)
        says = {"a": everywhere(2), "b": silent, "c": everywhere(2)}
        found, pairs = leave_one_out(matrices, says, dict.fromkeys("abc", 1.0), Consensus(operator))
        assert found[0, 1] == pytest.approx(0.5)
        assert pairs.all()
        nobody, pairs = leave_one_out(
            matrices, dict.fromkeys("abc", silent), dict.fromkeys("abc", 1.0), Consensus(operator)
        )
        assert not nobody.any()
        assert not pairs.any()

    def test_a_single_site_has_no_teacher(self):
        assert leave_one_out({"a": PHI}, {"a": everywhere(3)}, {"a": 1.0}, Consensus(), "a") is None

    @pytest.mark.parametrize(("operator", "moved"), [("mean", True), ("median", False), ("trimmed-mean", False)])
    def test_robust_operators_withstand_a_made_up_matrix(self, operator, moved):
        generator = torch.Generator().manual_seed(0)
        honest = {f"s{i}": PHI + 0.02 * torch.randn(3, 3, generator=generator) for i in range(6)}
        says, weights = dict.fromkeys([*honest, "liar"], everywhere(3)), dict.fromkeys([*honest, "liar"], 100.0)
        before, _ = leave_one_out(honest, says, weights, Consensus(operator), "s0")
        after, _ = leave_one_out(honest | {"liar": -torch.sign(PHI)}, says, weights, Consensus(operator), "s0")
        assert (discrepancy(before, after, everywhere(3)) > 0.1) == moved


class TestBlocks:
    def test_worked_example(self):
        affinity = torch.zeros(4, 4)
        for (c, d), size in {(0, 1): 0.8, (2, 3): 0.7, (0, 2): 0.05, (1, 3): 0.05}.items():
            affinity[c, d] = affinity[d, c] = size
        blocks = spectral_blocks(affinity, everywhere(4), 2, 0)
        assert blocks[0] == blocks[1] != blocks[2] == blocks[3]
        # Only the strength of a correlation matters, not its sign.
        assert torch.equal(spectral_blocks(-affinity, everywhere(4), 2, 0), blocks)

    def test_tags_without_correlation_are_blocks_of_their_own(self):
        affinity = torch.zeros(5, 5)
        affinity[0, 1] = affinity[1, 0] = 0.5
        blocks = spectral_blocks(affinity, everywhere(5), 1, 0).tolist()
        assert blocks[0] == blocks[1]
        assert len(set(blocks)) == 4

    def test_pairs_that_nobody_knows_do_not_count(self):
        pairs = everywhere(3)
        pairs[0, 1] = pairs[1, 0] = False
        blocks = spectral_blocks(torch.ones(3, 3), pairs, 2, 0)
        assert blocks[0] != blocks[1] or blocks[0] == blocks[2]

    def test_more_blocks_than_tags_are_reduced(self):
        blocks = spectral_blocks(PHI, everywhere(3), 17, 0)
        assert sorted(blocks.tolist()) == [0, 1, 2]

    def test_disconnected_tags_are_told_apart(self):
        affinity = torch.block_diag(torch.ones(3, 3), torch.ones(4, 4), torch.ones(2, 2))
        blocks = spectral_blocks(affinity, everywhere(9), 3, 0).tolist()
        assert [len(set(part)) for part in (blocks[:3], blocks[3:7], blocks[7:])] == [1, 1, 1]
        assert len(set(blocks)) == 3

    def test_blocks_of_tags_that_hardly_correlate_are_not_thrown_together(self):
        generator = torch.Generator().manual_seed(0)
        block = torch.arange(60) // 10
        same = block[:, None] == block
        noise = 0.01 * torch.rand(60, 60, generator=generator)
        strength = torch.logspace(0, -1, 60)  # some blocks are strong, some weak
        affinity = torch.where(same, (strength[:, None] * strength).sqrt(), (noise + noise.T) * strength.mean())
        found = spectral_blocks(affinity, everywhere(60), 6, 0)
        assert torch.bincount(found).tolist() == [10] * 6

    def test_nothing_to_cluster(self):
        assert spectral_blocks(torch.zeros(3, 3), everywhere(3), None, 0).tolist() == [0, 1, 2]
        assert spectral_blocks(torch.zeros(1, 1), everywhere(1), None, 0).tolist() == [0]


class TestWeights:
    SIZES = tensor([0.25, 0.25, 0.5], dtype=torch.float64)

    def test_worked_example(self):
        distances = tensor([0.0, 0.5, 1.0], dtype=torch.float64)
        quality = quality_weights(distances, self.SIZES, 1.0, 0.0)
        assert quality.tolist() == pytest.approx([0.506480, 0.307196, 0.186324], abs=1e-6)
        mixed = quality_weights(distances, self.SIZES, 1.0, 0.75)
        assert mixed.tolist() == pytest.approx([0.314120, 0.264299, 0.421581], abs=1e-6)

    def test_equal_distances_are_uniform_and_large_ones_do_not_underflow(self):
        for distance in (0.0, 1e6):
            found = quality_weights(torch.full((3,), distance, dtype=torch.float64), self.SIZES, 5.0, 0.0)
            assert found.tolist() == pytest.approx([1 / 3] * 3)

    @settings(max_examples=30, deadline=None)
    @given(st.lists(st.floats(0, 2), min_size=1, max_size=6), st.floats(0, 100), st.floats(0, 1))
    def test_they_sum_to_one(self, distances, gamma, volume):
        sizes = torch.arange(1, len(distances) + 1, dtype=torch.float64)
        found = quality_weights(tensor(distances, dtype=torch.float64), sizes, gamma, volume)
        assert float(found.sum()) == pytest.approx(1)
        assert (found >= 0).all()


class TestNoise:
    def test_it_is_as_large_as_it_is_said_to_be(self):
        tags, zeros = 30, torch.full((30, 30), 1e9, dtype=torch.float64)
        sums = type(tag_sums(torch.zeros(1, 1)))(zeros, zeros / 2, zeros / 4)
        noisy = noisy_sums(sums, 0.5, np.random.default_rng(0))
        scale = 0.5 * (tags * tags + tags * (tags + 1)) ** 0.5
        assert float((noisy.first - sums.first).std()) == pytest.approx(scale, rel=0.1)
        assert torch.equal(noisy.both, noisy.both.T)
        assert not torch.equal(noisy.rows, sums.rows)

    def test_phi_of_noisy_sums_is_a_correlation(self):
        sums = tag_sums((torch.rand(40, 5, generator=torch.Generator().manual_seed(0)) < 0.4).to(torch.int8))
        found, _ = phi_of_sums(noisy_sums(sums, 1.0, np.random.default_rng(1)))
        assert torch.isfinite(found).all()
        assert found.abs().max() <= 1
