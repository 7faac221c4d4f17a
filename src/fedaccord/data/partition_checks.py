"""Validation of a partition's parameters; each function raises PartitionError."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fedaccord.errors import PartitionError

IntArray = npt.NDArray[np.int64]


def require(condition: Any, message: str) -> None:
    """Raise PartitionError with a message unless a condition holds."""
    if not condition:
        raise PartitionError(message)


def whole(name: str, value: Any, least: int, most: int | None = None) -> int:
    """Return a whole number between two limits."""
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    bounds = f"of at least {least}" if most is None else f"from {least} to {most}"
    fits = whole and value >= least and (most is None or value <= most)
    require(fits, f"{name} must be a whole number {bounds}, not {value!r}")
    return int(value)


def number(name: str, value: Any) -> float:
    """Return a finite number."""
    fits = isinstance(value, int | float | np.number) and not isinstance(value, bool) and np.isfinite(value)
    require(fits, f"{name} must be a finite number, not {value!r}")
    return float(value)


def site_count(sites: Any, samples: int) -> int:
    """Return a number of sites, at most the number of samples."""
    count = whole("sites", sites, 1)
    require(count <= samples, f"{count} sites cannot be made from {samples} samples")
    return count


def class_index(y: IntArray, total: int | None = None) -> IntArray:
    """Return class indices, one for each sample, below `total`."""
    index = np.asarray(y)
    fits = index.ndim == 1 and index.dtype.kind in "iu" and not (index < 0).any()
    require(fits, "this partition needs one class index (0, 1, 2, ...) for each sample")
    require(total is None or not (index >= total).any(), f"a class index does not fit into {total} classes")
    return index.astype(np.int64)
