"""Weighted means of whole models, and of head rows over the sites that inform them; at once or reply by reply."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedaccord.aggregation.replies import Aggregator, Replies, normalised
from fedaccord.models.layout import Layout

_LONGEST = 64  # replies per block; larger blocks are hardly faster
_BLOCK_BYTES = 2**27  # memory limit of a block, for large models


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
    variances = [name for name in at if name.endswith("running_var")]
    return [(at[f"{name.removesuffix('running_var')}running_mean"], at[name]) for name in variances]


class RunningMean:
    """The mean of replies by sample count; with `per_label`, a head row is averaged over the sites that inform it.

    Each reply is added and can then be freed. Replies are added in blocks, in the order of site names. The mean of a
    block is one matrix product in the model's precision; the sum over blocks is in double precision. The block size
    depends on the model alone, so the result does not depend on the engine, or on the order or number of replies that
    arrive at a time. (Sites trained as one cohort may count as one reply, which changes rounding: see
    `federation/streaming.py`.)
    """

    def __init__(
        self,
        layout: Layout,
        previous: Tensor,
        per_label: bool = False,
        used: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        """Start a mean; `used` returns which of the next replies, (replies, parameters), are used: bool (replies,)."""
        self._previous, self._used = previous, used
        self._sifted = 0  # replies of the block that `used` has seen
        self._rows = layout.head_rows() if per_label else torch.zeros(0, 0, dtype=torch.int64)
        self._block = max(1, min(_LONGEST, _BLOCK_BYTES // max(1, previous.nbytes)))
        self._buffer = previous.new_empty(0, 0)  # replies of the block that is not yet full
        self._waiting: list[tuple[float, Tensor]] = []  # their weights and the labels that they inform
        self._sum = torch.zeros(previous.shape, dtype=torch.float64)
        self._total = 0.0
        self._row_sums = torch.zeros(self._rows.shape, dtype=torch.float64)
        self._row_totals = torch.zeros(len(self._rows), dtype=torch.float64)

    def place(self) -> Tensor:
        """Return the tensor into which to write the next reply's flat vector before calling `add`."""
        if not len(self._buffer):
            self._buffer = self._previous.new_empty(self._block, len(self._previous))
        return self._buffer[len(self._waiting)]

    def add(self, weight: float, informs: Tensor) -> None:
        """Add the reply written to `place()`; `informs`, bool (labels,), marks the head rows that it informs."""
        self._waiting.append((weight, informs))
        if len(self._waiting) == self._block:
            self.sift()
        if len(self._waiting) == self._block:  # else more replies take the places of those left out
            self._fold_waiting()

    def add_all(self, matrix: Tensor, weights: Tensor, informs: Tensor) -> None:
        """Add a matrix of replies, replies x parameters, with one weight and one mask per reply."""
        assert not self._waiting  # otherwise blocks would start elsewhere than for single replies
        for start in range(0, len(matrix), self._block):
            end = start + self._block
            self._fold(matrix[start:end], weights[start:end], informs[start:end])

    def sift(self) -> None:
        """Remove the added replies that are not used."""
        new = len(self._waiting) - self._sifted
        if self._used is not None and new:
            used = self._used(self._buffer[self._sifted : len(self._waiting)]).tolist()
            kept = [*range(self._sifted), *(self._sifted + at for at in range(new) if used[at])]
            if len(kept) < len(self._waiting):
                self._buffer[: len(kept)] = self._buffer[kept]
                self._waiting = [self._waiting[at] for at in kept]
        self._sifted = len(self._waiting)

    def result(self) -> Tensor:
        """Return the mean; a head row that no site informed keeps its previous values."""
        self.sift()
        self._fold_waiting()
        tiny = torch.finfo(torch.float64).tiny
        mean = torch.empty_like(self._previous)
        torch.div(self._sum, max(self._total, tiny), out=mean)
        totals = self._row_totals[:, None]
        row_means = (self._row_sums / totals.clamp(min=tiny)).to(mean.dtype)
        mean[self._rows] = torch.where(totals > 0, row_means, self._previous[self._rows])
        return mean

    def _fold_waiting(self) -> None:
        if self._waiting:
            weights, informs = zip(*self._waiting, strict=True)
            self._fold(self._buffer[: len(weights)], torch.tensor(weights, dtype=torch.float64), torch.stack(informs))
            self._waiting, self._sifted = [], 0

    def _fold(self, matrix: Tensor, weights: Tensor, informs: Tensor) -> None:
        total = float(weights.sum())
        # Weights are normalised per block, so that the mean of a single reply is bit-identical to it.
        self._sum.add_(normalised(weights).to(matrix.dtype) @ matrix, alpha=total)
        self._total += total
        if len(self._rows):
            row_weights = informs * weights[:, None]
            totals = row_weights.sum(0)
            shares = (row_weights / totals.clamp(min=torch.finfo(totals.dtype).tiny)).to(matrix.dtype)
            rows = matrix.index_select(1, self._rows.flatten()).view(len(matrix), *self._rows.shape)
            self._row_sums += totals[:, None] * torch.einsum("sl,slk->lk", shares, rows)
            self._row_totals += totals
