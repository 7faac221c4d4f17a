"""Averages taken in one pass: a reply is added and can be forgotten, however many there are.

Replies are taken in blocks, in the order of site names: the mean of a block is one product of matrices in the model's
own precision, and the sum over blocks is kept in double precision. Where a block ends depends on the model alone, so
the result does not depend on which engine brought the replies, in which order, or how many at a time. (Sites that train
as one program may count as one reply, which rounds otherwise: `federation/folding.py`.)
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedaccord.aggregation.replies import normalised
from fedaccord.models.layout import Layout

_LONGEST = 64  # replies in a block: more would hardly be faster
_BLOCK_BYTES = 2**27  # and of large models so few that they take no more memory than this


class RunningMean:
    """The mean of the replies so far, by sample count; with `per_label`, of a head row over those that inform it."""

    def __init__(self, layout: Layout, previous: Tensor, per_label: bool = False) -> None:
        self._previous = previous
        self._rows = layout.head_rows() if per_label else torch.zeros(0, 0, dtype=torch.int64)
        self._block = max(1, min(_LONGEST, _BLOCK_BYTES // max(1, previous.nbytes)))
        self._held = previous.new_empty(0, 0)  # replies that do not yet make a block
        self._waiting: list[tuple[float, Tensor]] = []  # their weights and what they inform
        self._sum = torch.zeros(previous.shape, dtype=torch.float64)
        self._total = 0.0
        self._row_sums = torch.zeros(self._rows.shape, dtype=torch.float64)
        self._row_totals = torch.zeros(len(self._rows), dtype=torch.float64)

    def place(self) -> Tensor:
        """Return where the next reply's flat vector is to be written, before it is added."""
        if not len(self._held):
            self._held = self._previous.new_empty(self._block, len(self._previous))
        return self._held[len(self._waiting)]

    def add(self, weight: float, informs: Tensor) -> None:
        """Add the reply that stands in its place; `informs`, bool (labels,), says which head rows it may teach."""
        self._waiting.append((weight, informs))
        if len(self._waiting) == self._block:
            self._fold_waiting()

    def add_all(self, matrix: Tensor, weights: Tensor, informs: Tensor) -> None:
        """Add replies that are there at once: a matrix, replies x parameters, and what `add` takes of each."""
        assert not self._waiting  # else blocks would not begin where they do for single replies
        for at in range(0, len(matrix), self._block):
            end = at + self._block
            self._fold(matrix[at:end], weights[at:end], informs[at:end])

    def result(self) -> Tensor:
        """Return the mean; a head row that nobody informed is the previous one."""
        self._fold_waiting()
        tiny = torch.finfo(torch.float64).tiny
        mean = torch.empty_like(self._previous)
        torch.div(self._sum, max(self._total, tiny), out=mean)
        totals = self._row_totals[:, None]
        own = (self._row_sums / totals.clamp(min=tiny)).to(mean.dtype)
        mean[self._rows] = torch.where(totals > 0, own, self._previous[self._rows])
        return mean

    def _fold_waiting(self) -> None:
        if self._waiting:
            weights, informs = zip(*self._waiting, strict=True)
            self._fold(self._held[: len(weights)], torch.tensor(weights, dtype=torch.float64), torch.stack(informs))
            self._waiting = []

    def _fold(self, matrix: Tensor, weights: Tensor, informs: Tensor) -> None:
        total = float(weights.sum())
        # By shares of the block, so that a reply alone is taken over bit for bit.
        self._sum.add_(normalised(weights).to(matrix.dtype) @ matrix, alpha=total)
        self._total += total
        if len(self._rows):
            row_weights = informs * weights[:, None]
            totals = row_weights.sum(0)
            shares = (row_weights / totals.clamp(min=torch.finfo(totals.dtype).tiny)).to(matrix.dtype)
            rows = matrix.index_select(1, self._rows.flatten()).view(len(matrix), *self._rows.shape)
            self._row_sums += totals[:, None] * torch.einsum("sl,slk->lk", shares, rows)
            self._row_totals += totals
