"""Features are scaled by what a site trains on, and moments of sites add up to the moments of all."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedaccord.data.scaling import apply_moments, fit_moments, pool_moments

values = st.floats(-1e3, 1e3, width=32) | st.just(np.nan)
tables = st.integers(0, 8).flatmap(lambda n: arrays(np.float32, (n, 3), elements=values))


def test_mean_and_variance():
    moments = fit_moments(np.array([[1.0, 5.0], [3.0, 5.0]]))
    assert (moments.n.tolist(), moments.mean.tolist(), moments.variance.tolist()) == ([2, 2], [2, 5], [1, 0])


def test_scaled_rows_have_mean_zero_and_variance_one():
    x = np.random.default_rng(0).normal(50, 7, (200, 4)).astype(np.float32)
    scaled = apply_moments(x, fit_moments(x))
    assert scaled.dtype == np.float32
    assert np.allclose(scaled.mean(0), 0, atol=1e-5)
    assert np.allclose(scaled.std(0), 1, atol=1e-5)


def test_missing_values_are_not_counted_and_become_the_mean():
    x = np.array([[1.0, np.nan], [3.0, np.nan], [np.inf, np.nan]])
    moments = fit_moments(x)
    assert (moments.n.tolist(), moments.mean.tolist(), moments.variance.tolist()) == ([2, 0], [2, 0], [1, 0])
    assert apply_moments(x, moments).tolist() == [[-1, 0], [1, 0], [0, 0]]


def test_a_constant_feature_becomes_zero():
    x = np.full((5, 1), 7.0)
    assert apply_moments(x, fit_moments(x)).tolist() == [[0]] * 5
    assert apply_moments(x + 1, fit_moments(x)).tolist() == [[1]] * 5  # elsewhere it may vary


def test_without_moments_only_missing_values_change():
    assert apply_moments(np.array([[1.5, np.nan, -np.inf]]), None).tolist() == [[1.5, 0, 0]]


def test_other_shapes_than_tables():
    x = np.random.default_rng(0).normal(3, 2, (50, 9, 4))
    assert fit_moments(x).mean.shape == (9, 4)
    assert np.allclose(apply_moments(x, fit_moments(x)).mean(0), 0, atol=1e-6)


@given(st.lists(tables, min_size=1, max_size=4))
def test_pooled_moments_are_those_of_the_pooled_rows(sites):
    pooled, direct = pool_moments([fit_moments(x) for x in sites]), fit_moments(np.concatenate(sites))
    assert pooled.n.tolist() == direct.n.tolist()
    assert pooled.mean == pytest.approx(direct.mean, abs=1e-6)
    assert pooled.variance == pytest.approx(direct.variance, rel=1e-6, abs=1e-6)


@given(st.lists(tables, min_size=2, max_size=4), st.randoms())
def test_the_order_of_sites_does_not_matter(sites, draw):
    parts = [fit_moments(x) for x in sites]
    other = draw.sample(parts, len(parts))
    assert pool_moments(parts).mean == pytest.approx(pool_moments(other).mean)
    assert pool_moments(parts).variance == pytest.approx(pool_moments(other).variance, abs=1e-6)


def test_a_large_mean_costs_no_digits():
    x = 1e9 + np.random.default_rng(0).normal(size=(300, 1))  # such as seconds since 1970
    pooled = pool_moments([fit_moments(x[:100]), fit_moments(x[100:])])
    assert pooled.variance == pytest.approx(x.var(0), rel=1e-6)


def test_a_value_far_out_is_cut_at_ten_deviations():
    train = np.array([[0.0], [1e-6]])
    assert apply_moments(np.array([[5.0], [-5.0]]), fit_moments(train)).tolist() == [[10], [-10]]
