"""The order in which a site sees its samples."""

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
    """Yield index tensors: `epochs` shuffled passes, or exactly `steps` batches from as many passes as that takes.

    `drop_single` leaves out batches of one sample, since batch-norm has no variance there; a single sample gives none.
    """
    left = steps if steps is not None else -1
    passes = 0
    if drop_single and (samples == 1 or size == 1):
        return
    while left != 0 and samples > 0:
        order = torch.randperm(samples, generator=generator)
        for start in range(0, samples, size):
            batch = order[start : start + size]
            if drop_single and len(batch) == 1:
                continue
            yield batch
            left -= 1
            if left == 0:
                return
        passes += 1
        if steps is None and passes >= (epochs or 1):
            return


def step_count(
    samples: int, size: int, epochs: int | None = None, steps: int | None = None, drop_single: bool = False
) -> int:
    """Return how many index tensors `batches` yields."""
    if samples == 0 or (drop_single and (samples == 1 or size == 1)):
        return 0
    if steps is not None:
        return steps
    passed = -(-samples // size) - (drop_single and samples % size == 1)
    return (epochs or 1) * passed
