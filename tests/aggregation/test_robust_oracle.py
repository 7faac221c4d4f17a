"""The robust rules against another implementation of them, Flower's."""

import numpy as np
import pytest
import torch
from flwr.server.strategy.aggregate import aggregate_krum, aggregate_median, aggregate_trimmed_avg
from hypothesis import given, settings
from hypothesis import strategies as st

from fedaccord.aggregation.robust import Rule, median, trimmed_mean


def flowers(matrix):
    """The sites' models as Flower takes them: each a list of arrays, with the same number of samples."""
    return [([row[:2].numpy(), row[2:].numpy()], 1) for row in matrix]


def flat(arrays):
    return torch.from_numpy(np.concatenate([np.ravel(array) for array in arrays]))


@settings(max_examples=40, deadline=None)
@given(st.integers(7, 13), st.integers(0, 2), st.integers(0, 10_000))
def test_the_rules_are_flowers(sites, hostile, seed):
    matrix = torch.randn(sites, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    matrix[:hostile] += 20
    results = flowers(matrix)
    assert torch.allclose(median(matrix), flat(aggregate_median(results)))
    assert torch.allclose(trimmed_mean(matrix, hostile), flat(aggregate_trimmed_avg(results, (hostile + 0.5) / sites)))
    for name, keep in (("krum", 0), ("multi-krum", sites - hostile)):
        combined = Rule(name, hostile).over(matrix)(matrix)
        assert torch.allclose(combined, flat(aggregate_krum(results, hostile, keep)))


def test_the_oracle_tells_other_rules_apart():
    matrix = torch.tensor([[0.0, 0, 0], [1, 0, 0], [0, 1, 0], [1, 1, 0], [10, 10, 0]]).double()
    assert flat(aggregate_median(flowers(matrix))).tolist() == [1, 1, 0]
    with pytest.raises(AssertionError):
        assert torch.allclose(matrix.mean(0), flat(aggregate_median(flowers(matrix))))
