"""Weighted means of whole models, and of head rows over the sites that inform them."""

from __future__ import annotations

import torch
from torch import Tensor

from fedaccord.aggregation.replies import Aggregator, Replies, normalised
from fedaccord.aggregation.streaming import RunningMean
from fedaccord.models.layout import Layout


def weighted_mean(matrix: Tensor, weights: Tensor) -> Tensor:
    """Return `sum_k w_k x_k` over the rows of a matrix, with the weights normalised to sum to one."""
    return normalised(weights).to(matrix.dtype) @ matrix


def weighted_rows_mean(matrix: Tensor, weights: Tensor, row_weights: Tensor, rows: Tensor, previous: Tensor) -> Tensor:
    """Average the encoder by `weights`, and each label's head row by its column of `row_weights`, sites x labels.

    `rows` (labels x k) holds the indices of each label's row in the flat vector. A label with a total weight of zero
    keeps its previous row.
    """
    result = weighted_mean(matrix, weights)
    shares = row_weights.T  # labels x sites
    totals = shares.sum(1, keepdim=True)
    shares = (shares / totals.clamp(min=torch.finfo(weights.dtype).tiny)).to(matrix.dtype)
    head = torch.einsum("ls,slk->lk", shares, matrix[:, rows])
    result[rows] = torch.where(totals > 0, head, previous[rows])
    return result


def pooled_variance(means: Tensor, variances: Tensor, weights: Tensor) -> Tensor:
    """Return the variance of the pooled samples: the mean of the variances plus the spread of the means.

    Equal to `sum_k w_k (var_k + mu_k^2) - mu^2`, but never below zero when the means are large.
    """
    spread = (means - weighted_mean(means, weights)).square()
    return weighted_mean(variances + spread, weights)


def mean(replies: Replies) -> Tensor:
    """Average every parameter by sample count (FedAvg)."""
    return _in_one_pass(replies, per_label=False)


def per_label(replies: Replies) -> Tensor:
    """Average the encoder over all sites, and head rows over the sites that inform them or by `row_weights`."""
    if replies.row_weights is not None:
        rows = replies.layout.head_rows()
        return weighted_rows_mean(replies.matrix, replies.weights, replies.row_weights, rows, replies.previous)
    return _in_one_pass(replies, per_label=True)


def _in_one_pass(replies: Replies, per_label: bool) -> Tensor:
    # The same computation as for streamed replies, so that both results are bit-identical.
    running = RunningMean(replies.layout, replies.previous, per_label)
    running.add_all(replies.matrix, replies.weights, replies.informs)
    return running.result()


def with_pooled_batch_norm(aggregator: Aggregator) -> Aggregator:
    """Add the spread of the running means to the running variances, which plain averaging ignores."""

    def combine(replies: Replies) -> Tensor:
        result = aggregator(replies)
        for mean_at, variance_at in batch_norm_slices(replies.layout):
            result[variance_at] = pooled_variance(
                replies.matrix[:, mean_at], replies.matrix[:, variance_at], replies.weights
            )
        return result

    return combine


def with_server_step(aggregator: Aggregator, rate: float) -> Aggregator:
    """Scale the mean update by `rate`; leave batch-norm statistics alone."""

    def combine(replies: Replies) -> Tensor:
        result = aggregator(replies)
        moving = replies.layout.trainable_mask()
        result[moving] = torch.lerp(replies.previous[moving], result[moving], rate)
        return result

    return combine


def batch_norm_slices(layout: Layout) -> list[tuple[slice, slice]]:
    """Return pairs of slices of the flat vector: a running mean and its running variance."""
    at = {slot.name: slice(slot.start, slot.stop) for slot in layout.slots}
    pairs = []
    for name, variance_at in at.items():
        prefix, _, last = name.rpartition("running_var")
        if not last and name.endswith("running_var"):
            pairs.append((at[f"{prefix}running_mean"], variance_at))
    return pairs
