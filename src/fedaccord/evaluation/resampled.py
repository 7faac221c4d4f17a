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
    with_label, without = _by_score(scores, weights * positive, weights * ~positive)
    lower = without.cumsum(1) - without
    pairs = (with_label * (lower + without / 2)).sum(1)
    return ratio(pairs, with_label.sum(1) * without.sum(1))


def average_precision(scores: Array, positive: Array, weights: Array) -> Array:
    """Return the average precision of one column; equal scores share a threshold."""
    return _precision(*_by_score(scores, weights * positive, weights * ~positive))


def shuffled_average_precision(scores: Array, positive: Array, counted: Array, orders: Array) -> Array:
    """Return the average precision of one column if the rows' labels are put into each of these orders: (orders,).

    `counted` marks the rows whose label is known, `orders` (orders, rows) are permutations of the rows.
    """
    return _precision(*_by_score(scores, (counted & positive)[orders], (counted & ~positive)[orders]))


def _precision(with_label: Array, without: Array) -> Array:
    found = with_label[:, ::-1].cumsum(1)
    precision = ratio(found, found + without[:, ::-1].cumsum(1))
    return ratio((np.nan_to_num(precision) * with_label[:, ::-1]).sum(1), with_label.sum(1))


def _by_score(scores: Array, with_label: Array, without: Array) -> tuple[Array, Array]:
    """Return the sums of weights of rows with and without the label for each distinct score, ascending."""
    order = np.argsort(scores, kind="stable")
    ranked = scores[order]
    first = np.flatnonzero(np.r_[True, ranked[1:] != ranked[:-1]])
    sums = with_label[:, order].astype(float), without[:, order].astype(float)
    if len(first) == len(ranked):
        return sums
    return np.add.reduceat(sums[0], first, axis=1), np.add.reduceat(sums[1], first, axis=1)


def ratio(part: Array, whole: Array) -> Array:
    """Return the ratios; NaN where the whole is zero."""
    return np.divide(part, whole, out=np.full(np.broadcast(part, whole).shape, np.nan), where=whole > 0)
