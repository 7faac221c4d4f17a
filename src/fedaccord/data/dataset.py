"""Data sets as arrays: the bundled one, and .npz files (docs/files.md)."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedaccord.data.registry import DATASETS, dataset_files
from fedaccord.data.tables import natural
from fedaccord.data.unpacking import refuse_large_archive
from fedaccord.errors import DataError, did_you_mean

Array = NDArray[Any]
BRIGHTEST = 255  # value of a white pixel in files of bytes


@dataclass(frozen=True)
class Rows:
    """Samples with their true classes, tags, candidate sets and further columns, if they have them."""

    x: Array  # float32, (n, *shape)
    y: Array | None = None  # int64 (n,)
    tags: Array | None = None  # int8 (n, labels): 1, 0, -1 = not annotated
    candidates: Array | None = None  # bool (n, labels)
    columns: dict[str, Array] = field(default_factory=dict)
    groups: Array | None = None  # bool (n, groups): candidate groups of a sensitive attribute
    group: Array | None = None  # int64 (n,): the true group, -1 = unknown

    def __len__(self) -> int:
        return len(self.x)

    def take(self, index: Array) -> Rows:
        """Return some of the rows."""
        arrays = {name: values[index] for name, values in vars(self).items() if isinstance(values, np.ndarray)}
        return Rows(**arrays, columns={name: values[index] for name, values in self.columns.items()})


Grouped = Callable[[Rows, str], Rows]
"""Adds to other rows the groups that a data set's rows have; the text names these rows in messages."""


@dataclass(frozen=True)
class Dataset:
    """Training rows, the published test rows if there are any, and the names of the labels."""

    name: str
    train: Rows
    test: Rows | None
    labels: tuple[str, ...]
    images: bool
    groupings: dict[str, dict[str, list[str]]] = field(default_factory=dict)  # named: coarse labels and their classes
    brightest: int = BRIGHTEST
    scaled: bool = False  # its features need no standardisation
    sources: tuple[str, ...] = ()  # the column that each feature was made from, if known
    groups: tuple[str, ...] = ()  # of the sensitive attribute
    group_features: int | None = None  # index of the first feature that is a candidate group; None: none is
    grouped: Grouped | None = None  # adds groups to rows of the server's files

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.train.x.shape[1:])


def load_dataset(name: str, folder: Path) -> Dataset:
    """Load a data set by its catalogue name or the path of an .npz file, relative to `folder`."""
    files = dataset_files(name, folder)
    if not files:
        return _digits()
    if files[0].suffix != ".npz":
        from fedaccord.data.published import load_published

        return load_published(name, files)
    arrays = read_npz(files[0], "data.dataset")
    if name in DATASETS and DATASETS[name].labels:
        arrays["label_names"] = np.array(DATASETS[name].labels)
    if len(files) == 2:  # a training and a test file
        test = read_npz(files[1], "data.dataset")
        arrays = {f"{k}_train": v for k, v in arrays.items()} | {f"{k}_test": v for k, v in test.items()}
        arrays |= {k.removesuffix("_train"): v for k, v in arrays.items() if "_names" in k or "_to_" in k}
    return from_arrays(arrays, name)


def read_npz(path: Path, where: str) -> dict[str, Array]:
    """Read all arrays of an .npz file; raise DataError for pickled content."""
    try:
        refuse_large_archive(path)  # numpy would report a file that is no archive as a pickle
        archive = np.load(path, allow_pickle=False)
        with archive:
            arrays = {name: archive[name] for name in archive.files}
    except zipfile.BadZipFile:
        raise DataError(f"{where}: '{path}' is not an .npz file, as numpy.savez writes it, or damaged") from None
    except OSError as error:
        raise DataError(f"{where}: '{path}' cannot be read: {error.strerror or error}") from None
    except MemoryError:
        raise DataError(f"{where}: '{path}' holds more than fits into memory") from None
    except DataError:
        raise
    except (ValueError, EOFError, RuntimeError, zlib.error) as error:
        objects = "Object arrays" in str(error)  # unpickling may run any code
        reason = "it holds Python objects; save plain numbers and strings" if objects else error
        raise DataError(f"{where}: '{path}' cannot be read: {reason}") from None
    return {name: values for name, values in arrays.items() if isinstance(values, np.ndarray)}


def from_arrays(arrays: dict[str, Array], name: str) -> Dataset:
    """Return the data set in the arrays of an .npz file; docs/files.md lists their names."""
    arrays = dict(arrays)
    grouping = _grouping(arrays, name)
    for suffix in ("", "_train", "_test"):
        if f"fine{suffix}" in arrays:
            arrays[f"y{suffix}"] = arrays.pop(f"fine{suffix}")
    names = next((arrays[k] for k in ("label_names", "class_names", "fine_names") if k in arrays), None)
    names = _number_classes(arrays, names, name)
    if "x_train" in arrays:
        train, test = _rows(arrays, "_train", name), _rows(arrays, "_test", name) if "x_test" in arrays else None
    else:
        rows, published = _rows(arrays, "", name), arrays.get("is_test")
        is_test = np.zeros(len(rows), bool) if published is None else _zeros_and_ones(published, "is_test", name, 1)
        if len(is_test) != len(rows):
            raise DataError(f"'{name}': 'is_test' has {len(is_test)} rows, the samples {len(rows)}")
        train = rows.take(np.flatnonzero(~is_test))
        test = rows.take(np.flatnonzero(is_test)) if is_test.any() else None
    if not len(train):
        raise DataError(f"'{name}' has no training samples")
    if test is not None and test.x.shape[1:] != train.x.shape[1:]:
        shapes = f"{train.x.shape[1:]} for training and {test.x.shape[1:]} for the test"
        raise DataError(f"'{name}': the samples differ in shape: {shapes}")
    images = train.x.ndim == 4 and train.x.shape[1] in (1, 3)
    return Dataset(name, train, test, _labels(train, test, names, name), images, grouping)


def _number_classes(arrays: dict[str, Array], names: Array | None, name: str) -> Array | None:
    """Replace class names in `y` by class numbers, an empty name by -1, and return the names of the numbers.

    If no names are given, they are the names that occur, sorted.
    """
    keys = [key for key in ("y", "y_train", "y_test") if key in arrays and arrays[key].dtype.kind in "US"]
    found = {key: _words(arrays[key], key, name) for key in keys}
    if not found:
        return names
    used = {word for words in found.values() for word in words.ravel().tolist()} - {""}
    known = sorted(used, key=natural) if names is None else [str(label) for label in names.ravel()]
    for word in sorted(used - set(known), key=natural):
        problem = f"'y' holds the name '{word}', which is not in its list of labels"
        raise DataError(f"'{name}': {problem}; {did_you_mean(word, known)}")
    place = {"": -1} | {word: number for number, word in enumerate(known)}
    for key, words in found.items():
        arrays[key] = np.array([place[word] for word in words.ravel().tolist()], dtype=np.int64).reshape(words.shape)
    return np.array(known, dtype=str)


def _words(values: Array, key: str, name: str) -> Array:
    try:
        return np.char.strip(values if values.dtype.kind == "U" else np.char.decode(values, "utf-8"))
    except UnicodeDecodeError:
        raise DataError(f"'{name}': '{key}' holds text that is not UTF-8") from None


def _rows(arrays: dict[str, Array], suffix: str, name: str) -> Rows:
    def pick(*keys: str) -> Array | None:
        return next((arrays[k + suffix] for k in keys if k + suffix in arrays), None)

    x = pick("x", "X")
    if x is None:
        raise DataError(f"'{name}' has no array 'x{suffix}' of samples; it has {', '.join(sorted(arrays))}")
    samples = to_samples(x, name)
    y, tags, candidates = pick("y"), pick("Y"), pick("candidates")
    for key, values, dimensions in (("y", y, 1), ("Y", tags, 2), ("candidates", candidates, 2)):
        if values is not None and values.ndim != dimensions:
            raise DataError(f"'{name}': '{key}{suffix}' has {values.ndim} dimensions, {dimensions} are needed")
        if values is not None and len(values) != len(x):
            raise DataError(f"'{name}': '{key}{suffix}' has {len(values)} rows, the samples {len(x)}")
    if y is not None and y.dtype.kind not in "iub":
        raise DataError(f"'{name}': 'y{suffix}' holds {y.dtype} values; class names, or numbers from 0, are needed")
    if tags is not None and not np.isin(tags, (-1, 0, 1)).all():
        raise DataError(f"'{name}': 'Y{suffix}' should hold 1, 0 and, for what is not annotated, -1 only")
    sets = None if candidates is None else _zeros_and_ones(candidates, f"candidates{suffix}", name, 2)
    if sets is not None and not sets.any(1).all():
        row = int(np.flatnonzero(~sets.any(1))[0]) + 1
        raise DataError(f"'{name}': row {row} of 'candidates{suffix}' names no candidate")
    columns = {k.removesuffix(suffix): v for k, v in arrays.items() if k.endswith(suffix) and k != f"y{suffix}"}
    return Rows(
        samples,
        None if y is None else y.astype(np.int64),
        None if tags is None else tags.astype(np.int8),
        sets,
        columns={k: v for k, v in columns.items() if v.ndim == 1 and len(v) == len(x)},
    )


def _zeros_and_ones(values: Array, key: str, name: str, dimensions: int) -> Array:
    if values.ndim != dimensions or not np.isin(values, (0, 1)).all():
        raise DataError(f"'{name}': '{key}' should hold 0 and 1 only, in {dimensions} dimension(s)")
    return values.astype(bool)


def to_samples(x: Array, name: str, brightest: int = BRIGHTEST) -> Array:
    """Return float32 samples; bytes are pixels, which are scaled to -1..1 with channels first."""
    if x.dtype.kind not in "fiub" or x.ndim < 2 or 0 in x.shape[1:]:
        raise DataError(f"'{name}': the samples are of type {x.dtype} and shape {x.shape}; numbers by row are needed")
    if x.dtype == np.uint8 and x.ndim in (3, 4):
        pixels = x[:, None] if x.ndim == 3 else np.moveaxis(x, -1, 1)
        return pixels.astype(np.float32) / np.float32(brightest / 2) - np.float32(1)
    return x.astype(np.float32)


def _labels(train: Rows, test: Rows | None, names: Array | None, name: str) -> tuple[str, ...]:
    parts = [rows for rows in (train, test) if rows is not None]
    widths = [m.shape[1] for rows in parts for m in (rows.tags, rows.candidates) if m is not None]
    highest = [int(rows.y.max()) + 1 for rows in parts if rows.y is not None and len(rows.y)]
    needed = max([*widths, *highest], default=0)
    if names is not None and (names.ndim != 1 or len(names) < needed):
        raise DataError(f"'{name}' names {names.size} labels but uses {needed}")
    labels = tuple(str(n) for n in (range(needed) if names is None else names))
    for label in labels:
        if labels.count(label) > 1:
            raise DataError(f"'{name}' gives the name '{label}' to two labels")
    if any(width != len(labels) for width in widths):
        raise DataError(f"'{name}' has {len(labels)} labels, but a 0/1 matrix with {min(widths)} columns")
    return labels


def _grouping(arrays: dict[str, Array], name: str) -> dict[str, dict[str, list[str]]]:
    if not {"fine_to_coarse", "coarse_names", "fine_names"} <= arrays.keys():
        return {}
    coarse, fine = [str(n) for n in arrays["coarse_names"]], [str(n) for n in arrays["fine_names"]]
    group_of = arrays["fine_to_coarse"].tolist()
    if len(group_of) != len(fine) or not all(g in range(len(coarse)) for g in group_of):
        wanted = f"each of {len(fine)} classes one of {len(coarse)} groups"
        raise DataError(f"'{name}': 'fine_to_coarse' should give {wanted}")
    groups: dict[str, list[str]] = {name: [] for name in coarse}
    for label, group in zip(fine, group_of, strict=True):
        groups[coarse[group]].append(label)
    return {"coarse": groups}


def _digits() -> Dataset:
    from sklearn.datasets import load_digits  # imported here because scikit-learn takes a second to load

    bundle = load_digits()
    x = (bundle.images[:, None] / 8 - 1).astype(np.float32)
    groupings = {
        "shape": {"round": ["0", "6", "8", "9"], "straight": ["1", "4", "7"], "open": ["2", "3", "5"]},
        "parity": {"even": ["0", "2", "4", "6", "8"], "odd": ["1", "3", "5", "7", "9"]},
    }
    rows = Rows(x, bundle.target.astype(np.int64))
    return Dataset("digits", rows, None, tuple(str(d) for d in range(10)), True, groupings, brightest=16)
