"""The data sets that an experiment can name; importable without torch."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from fedaccord.errors import DataError, did_you_mean

DATA_VARIABLE = "FEDACCORD_DATA"


@dataclass(frozen=True)
class DatasetEntry:
    """A named data set and its files in the data folder; a bundled one has no files."""

    name: str
    summary: str
    files: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()  # names of its classes, if its files have none
    people: bool = False  # a table of people with sensitive columns, read by `data.people`


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
    DatasetEntry(
        "clinc150",
        "19,500 short texts hashed into 1,024 features, 150 intents in 10 named domains (`coarse`)",
        ("text_hierarchy/clinc150.csv.gz",),
    ),
    DatasetEntry(
        "clinc150-validation",
        "clinc150 judged on its validation part, for choosing settings without a look at the test part",
        ("text_hierarchy/clinc150.csv.gz",),
    ),
    DatasetEntry(
        "uci_har",
        "10,299 windows of 9 motion signals over 64 moments, 6 activities, 30 subjects (`subject`)",
        ("uci_har/uci_har_signals_30subjects.npz",),
        ("walking", "walking upstairs", "walking downstairs", "sitting", "standing", "lying"),
    ),
    DatasetEntry(
        "compas",
        "6,172 defendants, 8 features, risk Low, Medium or High; sensitive: race, sex",
        ("compas/compas-scores-two-years.csv.gz",),
        people=True,
    ),
    DatasetEntry(
        "compas_binary",
        "the same defendants, risk Low or Higher",
        ("compas/compas-scores-two-years.csv.gz",),
        people=True,
    ),
    DatasetEntry(
        "student",
        "2,392 students, 11 features without GPA, grades A to F; sensitive: Ethnicity, Gender",
        ("students/Student_performance_data.csv",),
        people=True,
    ),
    DatasetEntry(
        "student_gpa",
        "the same students, with GPA, which all but tells the grade",
        ("students/Student_performance_data.csv",),
        people=True,
    ),
    DatasetEntry(
        "adult",
        "48,842 adults of the 1994 census, 26 features, income at most or above 50K; sensitive: sex, race",
        ("tabular_fairness/adult.data.gz", "tabular_fairness/adult.test.gz"),
        people=True,
    ),
    DatasetEntry(
        "extrasensory",
        "18,500 minutes of 37 people (`user`), 225 sensor features, 51 tags of which 59 % are not annotated",
        ("extrasensory/extrasensory_37users.npz",),
    ),
    *(
        DatasetEntry(name, f"{summary}; tags, a published test part", (f"multi_label/{name}.npz",))
        for name, summary in {
            "scene": "2,407 pictures as 294 features, 6 kinds of scene",
            "emotions": "593 pieces of music as 72 features, 6 emotions",
            "corel5k": "5,000 pictures as 499 features, 374 words",
            "delicious": "16,105 web pages as 500 words, 983 bookmarks' tags",
            "birds": "645 recordings as 260 features, 19 birds",
            "medical": "978 reports as 1,449 words, 45 diagnoses",
        }.items()
    ),
    DatasetEntry(
        "cal500",
        "502 pieces of music as 68 features, 174 words; tags, no published test part",
        ("multi_label/cal500.npz",),
    ),
)
DATASETS: dict[str, DatasetEntry] = {entry.name: entry for entry in _ENTRIES}


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
