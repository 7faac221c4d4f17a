"""Which data sets can be named in an experiment; importable without torch."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from fedaccord.errors import DataError, did_you_mean

DATA_VARIABLE = "FEDACCORD_DATA"


@dataclass(frozen=True)
class DatasetEntry:
    """A named data set: its files below the data folder, none for a bundled one."""

    name: str
    summary: str
    files: tuple[str, ...] = ()


_ENTRIES = (
    DatasetEntry("digits", "1,797 handwritten digits of 8x8 pixels, 10 classes; comes with scikit-learn"),
    DatasetEntry("mnist", "70,000 handwritten digits of 28x28 pixels, 10 classes", ("mnist/mnist.npz",)),
    DatasetEntry(
        "fashion_mnist", "70,000 pictures of clothes of 28x28 pixels, 10 classes", ("fashion_mnist/fashion_mnist.npz",)
    ),
    DatasetEntry("cifar10", "colour pictures of 32x32 pixels, 10 classes", ("cifar10/cifar10_subset.npz",)),
    DatasetEntry(
        "cifar100",
        "colour pictures of 32x32 pixels, 100 classes in 20 named groups (`coarse`)",
        ("cifar100/cifar100_train_a.npz", "cifar100/cifar100_test.npz"),
    ),
)
DATASETS: dict[str, DatasetEntry] = {entry.name: entry for entry in _ENTRIES}


def dataset_files(name: str, folder: Path) -> list[Path]:
    """Return the files of a data set: a catalogue name, or the path of an .npz file; empty for a bundled one."""
    if name.endswith(".npz"):
        return [existing(folder / name)]
    if name not in DATASETS:
        hint = did_you_mean(name, DATASETS)
        raise DataError(f"data.dataset: there is no data set '{name}' (an .npz file would end in .npz); {hint}")
    entry = DATASETS[name]
    if not entry.files:
        return []
    root = os.environ.get(DATA_VARIABLE)
    if not root:
        raise DataError(f"the data set '{name}' is read from the folder named by {DATA_VARIABLE}, which is not set")
    return [existing(Path(root) / file) for file in entry.files]


def existing(path: Path) -> Path:
    """Return the path of a file that can be read; otherwise say what is wrong with it."""
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "is not there"
        raise DataError(f"the file '{path}' {what}")
    if not os.access(path, os.R_OK):
        raise DataError(f"the file '{path}' may not be read")
    return path
