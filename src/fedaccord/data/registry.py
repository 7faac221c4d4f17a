"""The data sets that an experiment can name; importable without torch."""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedaccord.errors import DataError, did_you_mean

DATA_VARIABLE = "FEDACCORD_DATA"


@dataclass(frozen=True)
class DatasetEntry:
    """A named data set and its files in the data folder; a bundled one has no files."""

    name: str
    summary: str
    files: Sequence[str] = ()
    labels: Sequence[str] = ()  # names of its classes, if its files have none
    header: Sequence[str] = ()  # names of its columns, if its files have none
    numbers: Sequence[str] = ()  # columns of a table of people that are features as they are


_CATALOGUE = tomllib.loads(Path(__file__).with_name("datasets.toml").read_text(encoding="utf-8"))
DATASETS = {name: DatasetEntry(name, **entry) for name, entry in _CATALOGUE.items()}


def check_dataset(name: str) -> None:
    """Raise DataError for a name that is neither in the catalogue nor of an .npz file; do not look for the file."""
    if not name.endswith(".npz") and name not in DATASETS:
        hint = did_you_mean(name, DATASETS)
        raise DataError(f"there is no data set '{name}' (an .npz file would end in .npz); {hint}")


def dataset_files(name: str, folder: Path, by: str = "") -> list[Path]:
    """Return the files of a data set, by its catalogue name or the path of an .npz file; empty for a bundled one.

    `by` names the command-line option that gives the data folder, for messages.
    """
    check_dataset(name)
    if name.endswith(".npz"):
        return [existing(locate(name, folder), "data.dataset")]
    entry = DATASETS[name]
    if not entry.files:
        return []
    root = os.environ.get(DATA_VARIABLE)
    if not root:
        named = by or f"the environment variable {DATA_VARIABLE}"
        raise DataError(f"data.dataset: '{name}' is read from the folder named by {named}, which is not set")
    return [existing(Path(root) / file, f"data.dataset: '{name}', by {by or DATA_VARIABLE}") for file in entry.files]


def locate(name: str, folder: Path) -> Path:
    """Return the path of a file that an experiment names: relative to its folder, or else to the data folder."""
    beside, root = folder / name, os.environ.get(DATA_VARIABLE)
    if root and not os.path.exists(beside) and os.path.exists(Path(root) / name):  # Path.exists may raise
        return Path(root).resolve() / name
    return beside


def existing(path: Path, where: str = "") -> Path:
    """Return the path of an existing file; raise DataError with the key or site that names it otherwise."""
    place = f"{where}: " if where else ""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        missing = isinstance(error, FileNotFoundError | NotADirectoryError)
        what = "is not there" if missing else f"cannot be read: {error.strerror}"
        raise DataError(f"{place}the file '{path}' {what}") from None
    if not stat.S_ISREG(mode):
        what = "a folder" if stat.S_ISDIR(mode) else "a device or a pipe"
        raise DataError(f"{place}'{path}' is {what}, not a file")
    return path
