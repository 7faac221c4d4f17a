"""Standardisation of features by moments of training rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedaccord.data.dataset import Array

FARTHEST = 10.0  # standard deviations


@dataclass(frozen=True)
class Moments:
    """Number of present values, mean and variance of each feature."""

    n: Array
    mean: Array
    variance: Array


def fit_moments(x: Array, group_features: int | None = None) -> Moments:
    """Return the moments of training rows; a feature that is missing everywhere has mean 0 and variance 0.

    Features from `group_features` on are candidate groups and stay as they are: their moments are 0 and 1.
    """
    seen = np.isfinite(x)
    n = seen.sum(0)
    filled = np.where(seen, x, 0).astype(np.float64)
    mean = filled.sum(0) / np.maximum(n, 1)
    variance = (np.where(seen, filled - mean, 0) ** 2).sum(0) / np.maximum(n, 1)
    if group_features is not None:
        mean[group_features:], variance[group_features:] = 0.0, 1.0
    return Moments(n, mean, variance)


def pool_moments(parts: Sequence[Moments]) -> Moments:
    """Return the pooled moments of several sites from their moments."""
    n = np.sum([p.n for p in parts], axis=0)
    total = np.maximum(n, 1)
    mean = np.sum([p.n * p.mean for p in parts], axis=0) / total
    # Variance within sites plus variance between sites; a difference of squares would cancel for a large mean.
    variance = np.sum([p.n * (p.variance + (p.mean - mean) ** 2) for p in parts], axis=0) / total
    return Moments(n, mean, variance)


def apply_moments(x: Array, moments: Moments | None) -> Array:
    """Return standardised rows; constant features and missing values become 0."""
    if moments is not None:
        spread = np.sqrt(moments.variance)
        x = (x - moments.mean) / np.where(spread > 1e-12, spread, 1.0)
    x = np.nan_to_num(x, posinf=0.0, neginf=0.0)
    if moments is not None:
        # A feature that is nearly constant in training rows must not explode in test rows.
        x = np.clip(x, -FARTHEST, FARTHEST)
    return x.astype(np.float32)
