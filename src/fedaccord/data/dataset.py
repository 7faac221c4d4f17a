"""Data sets as arrays: the bundled one, and .npz files of the described form."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedaccord.data.registry import dataset_files
from fedaccord.errors import DataError

Array = NDArray[Any]


@dataclass(frozen=True)
class Rows:
    """Samples with what is known of them: true class, tags, candidate sets, and further columns."""

    x: Array  # float32, (n, *shape)
    y: Array | None = None  # int64 (n,)
    tags: Array | None = None  # int8 (n, labels): 1, 0, -1 = not annotated
    candidates: Array | None = None  # bool (n, labels)
    columns: dict[str, Array] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.x)

    def take(self, index: Array) -> Rows:
        """Return some of the rows."""

        def part(values: Array | None) -> Array | None:
            return None if values is None else values[index]

        columns = {name: values[index] for name, values in self.columns.items()}
        return Rows(self.x[index], part(self.y), part(self.tags), part(self.candidates), columns)


@dataclass(frozen=True)
class Dataset:
    """Training rows, the published test rows where there are some, and the names of the labels."""

    name: str
    train: Rows
    test: Rows | None
    labels: tuple[str, ...]
    images: bool
    groupings: dict[str, dict[str, list[str]]] = field(default_factory=dict)  # named coarse labels and their classes

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.train.x.shape[1:])


def load_dataset(name: str, folder: Path) -> Dataset:
    """Load a data set by its catalogue name or the path of an .npz file, from `folder` when relative."""
    files = dataset_files(name, folder)
    if not files:
        return _digits()
    arrays = read_npz(files[0])
    if len(files) == 2:  # a training and a test file of the same form
        test = read_npz(files[1])
        arrays = {f"{k}_train": v for k, v in arrays.items()} | {f"{k}_test": v for k, v in test.items()}
        arrays |= {k.removesuffix("_train"): v for k, v in arrays.items() if "_names" in k or "_to_" in k}
    return from_arrays(arrays, name)


def read_npz(path: Path) -> dict[str, Array]:
    """Read all arrays of an .npz file; pickled content is refused."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (OSError, ValueError, zipfile.BadZipFile, AttributeError, EOFError) as error:
        raise DataError(f"'{path}' is not an .npz file of plain arrays: {error}") from None


def from_arrays(arrays: dict[str, Array], name: str) -> Dataset:
    """Understand the arrays of an .npz file; see the documentation of the experiment file for their names."""
    arrays = dict(arrays)
    grouping = _grouping(arrays)
    for suffix in ("", "_train", "_test"):
        if f"fine{suffix}" in arrays:
            arrays[f"y{suffix}"] = arrays.pop(f"fine{suffix}")
    names = next((arrays[k] for k in ("label_names", "class_names", "fine_names") if k in arrays), None)
    if "x_train" in arrays:
        train, test = _rows(arrays, "_train", name), _rows(arrays, "_test", name) if "x_test" in arrays else None
    else:
        rows, published = _rows(arrays, "", name), arrays.get("is_test")
        is_test = np.zeros(len(rows), bool) if published is None else published.astype(bool)
        train = rows.take(np.flatnonzero(~is_test))
        test = rows.take(np.flatnonzero(is_test)) if is_test.any() else None
    images = train.x.ndim == 4 and train.x.shape[1] in (1, 3)
    return Dataset(name, train, test, _labels(train, test, names, name), images, grouping)


def _rows(arrays: dict[str, Array], suffix: str, name: str) -> Rows:
    def pick(*keys: str) -> Array | None:
        return next((arrays[k + suffix] for k in keys if k + suffix in arrays), None)

    x = pick("x", "X")
    if x is None:
        raise DataError(f"'{name}' has no array 'x{suffix}' of samples; it has {', '.join(sorted(arrays))}")
    if x.dtype.kind not in "fiub" or x.ndim < 2:
        raise DataError(f"'{name}': the samples are of type {x.dtype} and shape {x.shape}; numbers by row are needed")
    y, tags, candidates = pick("y"), pick("Y"), pick("candidates")
    for key, values in (("y", y), ("Y", tags), ("candidates", candidates)):
        if values is not None and len(values) != len(x):
            raise DataError(f"'{name}': '{key}{suffix}' has {len(values)} rows, the samples {len(x)}")
    if y is not None and y.dtype.kind not in "iub":
        raise DataError(f"'{name}': 'y{suffix}' holds {y.dtype} values; class numbers from 0 are needed")
    columns = {k: v for k, v in arrays.items() if v.ndim == 1 and len(v) == len(x) and k != f"y{suffix}"}
    return Rows(
        _samples(x),
        None if y is None else y.astype(np.int64),
        None if tags is None else tags.astype(np.int8),
        None if candidates is None else candidates.astype(bool),
        columns,
    )


def _samples(x: Array) -> Array:
    """Return float32 samples: bytes are pixels, scaled to -1..1 and put channel first."""
    if x.dtype == np.uint8 and x.ndim in (3, 4):
        pixels = x[:, None] if x.ndim == 3 else np.moveaxis(x, -1, 1)
        return pixels.astype(np.float32) / np.float32(127.5) - np.float32(1)
    return x.astype(np.float32)


def _labels(train: Rows, test: Rows | None, names: Array | None, name: str) -> tuple[str, ...]:
    parts = [rows for rows in (train, test) if rows is not None]
    widths = [m.shape[1] for rows in parts for m in (rows.tags, rows.candidates) if m is not None]
    highest = [int(rows.y.max()) + 1 for rows in parts if rows.y is not None and len(rows.y)]
    needed = max([*widths, *highest], default=0)
    if names is not None:
        if len(names) < needed:
            raise DataError(f"'{name}' names {len(names)} labels but uses {needed}")
        return tuple(str(n) for n in names)
    return tuple(str(n) for n in range(needed))


def _grouping(arrays: dict[str, Array]) -> dict[str, dict[str, list[str]]]:
    if "fine_to_coarse" not in arrays or "coarse_names" not in arrays:
        return {}
    coarse, fine = [str(n) for n in arrays["coarse_names"]], [str(n) for n in arrays["fine_names"]]
    groups: dict[str, list[str]] = {name: [] for name in coarse}
    for name, group in zip(fine, arrays["fine_to_coarse"].tolist(), strict=True):
        groups[coarse[group]].append(name)
    return {"coarse": groups}


def _digits() -> Dataset:
    from sklearn.datasets import load_digits  # imported here: scikit-learn takes a second to load

    bundle = load_digits()
    x = (bundle.images[:, None] / 8 - 1).astype(np.float32)
    groupings = {
        "shape": {"round": ["0", "6", "8", "9"], "straight": ["1", "4", "7"], "open": ["2", "3", "5"]},
        "parity": {"even": ["0", "2", "4", "6", "8"], "odd": ["1", "3", "5", "7", "9"]},
    }
    rows = Rows(x, bundle.target.astype(np.int64))
    return Dataset("digits", rows, None, tuple(str(d) for d in range(10)), True, groupings)
