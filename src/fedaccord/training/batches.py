"""Shuffled batches of row indices."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor


def batches(
    samples: int,
    size: int,
    generator: torch.Generator,
    epochs: int | None = None,
    steps: int | None = None,
    drop_single: bool = False,
) -> Iterator[Tensor]:
    """Yield index tensors of `epochs` shuffled epochs, or of exactly `steps` batches.

    `drop_single` drops batches of one sample, for which batch norm has no variance.
    """
    remaining = steps if steps is not None else -1
    finished_epochs = 0
    if drop_single and (samples == 1 or size == 1):
        return
    while remaining != 0 and samples > 0:
        order = torch.randperm(samples, generator=generator)
        for start in range(0, samples, size):
            batch = order[start : start + size]
            if drop_single and len(batch) == 1:
                continue
            yield batch
            remaining -= 1
            if remaining == 0:
                return
        finished_epochs += 1
        if steps is None and finished_epochs >= (epochs or 1):
            return


def step_count(
    samples: int, size: int, epochs: int | None = None, steps: int | None = None, drop_single: bool = False
) -> int:
    """Return the number of index tensors that `batches` yields."""
    if samples == 0 or (drop_single and (samples == 1 or size == 1)):
        return 0
    if steps is not None:
        return steps
    batches_per_epoch = -(-samples // size) - (drop_single and samples % size == 1)
    return (epochs or 1) * batches_per_epoch
