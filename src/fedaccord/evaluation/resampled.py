"""Figures of many resamples at once: each function takes weights (resamples, rows) and returns (resamples,).

With all weights equal to one they equal scikit-learn's figures. A class without rows in a resample is left out of the
mean over classes; NaN if none remains.
"""

from __future__ import annotations

import warnings

from fedaccord.lazy import Array, np


def weighted_mean(values: Array, weights: Array) -> Array:
    """Return the weighted mean of one value for each row, or the means of several columns: (resamples, columns)."""
    total = weights.sum(1)
    means: Array = (weights @ values).T / total
    return means.T


def mean_over_classes(values: Array) -> Array:
    """Return the mean over the columns, without NaN."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a resample without any class
        return np.nanmean(values, axis=1)


def class_recalls(actual: Array, said: Array, weights: Array) -> Array:
    """Return the recall of each class, (resamples, classes), from bool (rows, classes)."""
    return ratio(weights @ (actual & said), weights @ actual)


def class_f1(actual: Array, said: Array, weights: Array) -> Array:
    """Return the F1 of each class, (resamples, classes); NaN for a class without rows in the resample."""
    positive = weights @ actual
    f1 = ratio(2 * (weights @ (actual & said)), positive + weights @ said)
    return np.where(positive > 0, f1, np.nan)


def auroc(scores: Array, positive: Array, weights: Array) -> Array:
    """Return the area under the ROC curve of one column: P(a positive row scores higher), ties count half."""
    with_label, without = _by_score(scores, positive, weights)
    lower = without.cumsum(1) - without
    pairs = (with_label * (lower + without / 2)).sum(1)
    return ratio(pairs, with_label.sum(1) * without.sum(1))


def average_precision(scores: Array, positive: Array, weights: Array) -> Array:
    """Return the average precision of one column; equal scores share a threshold."""
    with_label, without = (sums[:, ::-1] for sums in _by_score(scores, positive, weights))
    found = with_label.cumsum(1)
    precision = ratio(found, found + without.cumsum(1))
    return ratio((np.nan_to_num(precision) * with_label).sum(1), with_label.sum(1))


def _by_score(scores: Array, positive: Array, weights: Array) -> tuple[Array, Array]:
    """Return the weights of positive and of negative rows for each distinct score, ascending."""
    order = np.argsort(scores, kind="stable")
    ranked = scores[order]
    first = np.flatnonzero(np.r_[True, ranked[1:] != ranked[:-1]])
    drawn = weights[:, order]
    with_label = drawn * positive[order]
    without = drawn - with_label
    if len(first) == len(ranked):
        return with_label, without
    return np.add.reduceat(with_label, first, axis=1), np.add.reduceat(without, first, axis=1)


def ratio(part: Array, whole: Array) -> Array:
    """Return the ratios; NaN where the whole is zero."""
    return np.divide(part, whole, out=np.full(np.broadcast(part, whole).shape, np.nan), where=whole > 0)
