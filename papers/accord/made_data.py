"""Files of arrays that the table makes from published files: heart disease in two forms, and GoEmotions."""

from __future__ import annotations

import csv
import gzip
import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedaccord.data.published import hashed
from fedaccord.data.registry import DATA_VARIABLE, existing

Arrays = dict[str, NDArray[Any]]
HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
HEALTHY = ("healthy", "disease")
HEART, GOEMOTIONS = "made/heart.npz", "made/goemotions.npz"
FLAMBY = {name: f"made/flamby-{name}.npz" for name in HOSPITALS}
FLAMBY_RAW = {name: f"made/flamby-raw-{name}.npz" for name in HOSPITALS}  # not scaled
FLAMBY_SEED, FLAMBY_TRAIN = 43, 0.66  # of FLamby's split of each hospital


def make_files(folder: Path) -> None:
    """Write all files that are not there yet into `made` in a folder."""
    makers: dict[str, Callable[[], Arrays]] = {HEART: heart_by_hospital, GOEMOTIONS: single_emotions}
    makers |= {file: partial(flamby_hospital, name) for name, file in FLAMBY.items()}
    makers |= {file: partial(flamby_hospital, name, scaled=False) for name, file in FLAMBY_RAW.items()}
    for file, make in makers.items():
        if not (folder / file).exists():
            arrays = make()
            partial_file = (folder / file).with_suffix(".tmp.npz")  # an interrupted run leaves no half a file
            partial_file.parent.mkdir(parents=True, exist_ok=True)
            np.savez(partial_file, allow_pickle=False, **arrays)
            partial_file.replace(folder / file)


def heart_by_hospital() -> Arrays:
    """Return all patients of the four hospitals: 13 numbers each, NaN where one is missing, and the diagnosis."""
    rows = [_patients(name) for name in HOSPITALS]
    table = np.concatenate(rows)
    hospital = np.repeat(HOSPITALS, [len(part) for part in rows])
    return {"x": table[:, :-1], "y": _diseased(table), "label_names": np.array(HEALTHY), "hospital": hospital}


def flamby_hospital(name: str, scaled: bool = True) -> Arrays:
    """Return a hospital's patients as FLamby's Fed-Heart-Disease has them: complete rows and its split.

    The columns slope, vessels and thal are dropped, then rows with a missing value; chest pain and ECG are one-hot
    without their first level. 66 % of the rows train, and if `scaled`, features are scaled by the moments of these.
    """
    from sklearn.model_selection import train_test_split

    table = _patients(name)
    y, x = _diseased(table), np.delete(table[:, :-1], (10, 11, 12), axis=1)
    complete = ~np.isnan(x).any(1)
    x, y = _one_hot(x[complete]), y[complete]
    counts = np.bincount(y, minlength=2)
    train, test = train_test_split(
        np.arange(len(x)),
        train_size=FLAMBY_TRAIN,
        random_state=FLAMBY_SEED,
        shuffle=True,
        stratify=y if (counts > 2).all() else None,
    )
    if scaled:
        spread = x[train].std(0, ddof=1)
        x = (x - x[train].mean(0)) / np.where(spread > 0, spread, 1.0)
    order = np.concatenate([train, test])
    is_test = np.arange(len(order)) >= len(train)
    return {"x": x[order], "y": y[order], "is_test": is_test, "label_names": np.array(HEALTHY)}


def single_emotions() -> Arrays:
    """Return the texts of GoEmotions that have one emotion, hashed; the published test part is marked."""
    file, mappings = (_source(f"text_labels/goemotions{end}") for end in (".csv.gz", "_mappings.json"))
    names: list[str] = json.loads(mappings.read_text(encoding="utf-8"))["emotions"]
    with gzip.open(file, "rt", encoding="utf-8", newline="") as lines:
        rows = [row for row in csv.DictReader(lines) if row["emotions"] in names and row["split"] in ("train", "test")]
    parts = [[row for row in rows if row["split"] == split] for split in ("train", "test")]
    train, test = ([row["text"] for row in part] for part in parts)
    x = hashed(train, test)
    y = [np.array([names.index(row["emotions"]) for row in part], dtype=np.int64) for part in parts]
    return {"x_train": x[0], "y_train": y[0], "x_test": x[1], "y_test": y[1], "label_names": np.array(names)}


def _patients(hospital: str) -> NDArray[np.float64]:
    file = _source(f"heart_disease/processed.{hospital}.data")
    return np.genfromtxt(file, delimiter=",", missing_values="?")


def _diseased(table: NDArray[np.float64]) -> NDArray[np.int64]:
    return (table[:, -1] > 0).astype(np.int64)


def _one_hot(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Replace chest pain (column 2: 1 to 4) and ECG (column 6: 0 to 2) by one column for each level but the first."""
    levels = {2: (2.0, 3.0, 4.0), 6: (1.0, 2.0)}
    kept = [x[:, [column]] for column in range(x.shape[1]) if column not in levels]
    coded = [(x[:, [column]] == level).astype(float) for column, found in levels.items() for level in found]
    return np.concatenate([*kept, *coded], axis=1)


def _source(name: str) -> Path:
    root = os.environ.get(DATA_VARIABLE, ".")
    return existing(Path(root) / name, f"--data or {DATA_VARIABLE}")
