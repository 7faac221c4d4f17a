"""The weights that pFedPLL gives sites, by how far their features moved."""

import pytest
import torch

from fedaccord.methods.candidate_sets.recipe import kl_distances, kl_scores

ONE, TWO, COMMON = [1.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.5, 0.5, 0.0]


def features(*sites):
    return torch.tensor(sites)[:, None]


def test_the_worked_example_5_b():
    given = features(ONE, TWO), torch.tensor([COMMON])
    assert kl_distances(*given).tolist() == pytest.approx([0.088663, 0.345701], abs=1e-6)
    assert kl_scores(*given).tolist() == pytest.approx([0.204122, 0.795878], abs=1e-6)


def test_distances_are_means_over_the_inputs():
    both = torch.tensor([[ONE, COMMON]])
    alone = kl_distances(features(ONE), torch.tensor([COMMON]))
    assert kl_distances(both, torch.tensor([COMMON, COMMON])).item() == pytest.approx(alone.item() / 2)


def test_all_alike_where_nobody_moved():
    assert kl_scores(features(ONE, ONE, ONE, ONE), torch.tensor([ONE])).tolist() == [0.25] * 4


def test_one_site_has_all_the_weight():
    assert kl_scores(features(TWO), torch.tensor([COMMON])).tolist() == [1.0]
    assert kl_scores(features(ONE), torch.tensor([ONE])).tolist() == [1.0]


def test_adding_a_constant_to_all_features_is_no_distance():
    moved = torch.tensor([ONE]) + 100.0
    assert kl_distances(moved[None], torch.tensor([ONE])).item() == pytest.approx(0, abs=1e-12)


def test_a_site_without_finite_features_gets_no_weight():
    broken = [float("inf"), 0.0, 0.0]
    assert kl_scores(features(broken, TWO), torch.tensor([COMMON])).tolist() == [0.0, 1.0]
    assert kl_scores(features(broken, broken), torch.tensor([COMMON])).tolist() == [0.5, 0.5]
