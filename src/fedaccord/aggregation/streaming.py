"""Averages taken in one pass: a reply is added and can be forgotten, however many there are.

Sums are kept in double precision and taken in the order of site names, so the result does not depend on which engine
brought the replies, or in which order.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedaccord.models.layout import Layout


class RunningMean:
    """The mean of the replies so far, by sample count; with `per_label`, of a head row over those that inform it."""

    def __init__(self, layout: Layout, previous: Tensor, per_label: bool = False) -> None:
        self._previous = previous
        self._rows = layout.head_rows() if per_label else None
        self._sum = torch.zeros(previous.shape, dtype=torch.float64)
        self._row = torch.empty_like(self._sum)  # kept, since getting so much memory anew costs more than the sum
        self._total = 0.0
        self._row_totals = torch.zeros(0 if self._rows is None else len(self._rows), dtype=torch.float64)

    def add(self, row: Tensor, weight: float, informs: Tensor) -> None:
        """Add one reply's flat vector; `informs`, bool (labels,), says which head rows it may teach."""
        part = self._row.copy_(row)
        if self._rows is not None:
            self._row_totals += informs * weight
            if not bool(informs.all()):
                part[self._rows[~informs]] = 0.0
        self._sum.add_(part, alpha=weight)
        self._total += weight

    def result(self) -> Tensor:
        """Return the mean; a head row that nobody informed is the previous one."""
        mean = self._sum / max(self._total, torch.finfo(torch.float64).tiny)
        if self._rows is not None:
            totals = self._row_totals[:, None]
            own = self._sum[self._rows] / totals.clamp(min=torch.finfo(torch.float64).tiny)
            mean[self._rows] = torch.where(totals > 0, own, self._previous[self._rows].double())
        return mean.to(self._previous.dtype)
