"""Published tables as data sets: people for studies of fairness (docs/fairness.md), and short texts."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedaccord.data.dataset import Dataset, Rows
from fedaccord.data.registry import DATASETS
from fedaccord.data.tables import read_table
from fedaccord.errors import DataError

Columns = dict[str, NDArray[np.str_]]
Feature = tuple[str, NDArray[Any]]  # the source column of a feature, and its values

GRADES = ("A", "B", "C", "D", "F")
ETHNICITIES = ("Caucasian", "African American", "Asian", "Other")
WIDTH = 1024
OUT_OF_SCOPE = "oos"  # texts without an intent in CLINC150; the federation's classes are the intents
COLUMNS = ("split", "text", "intent", "domain")


def load_published(name: str, files: Sequence[Path]) -> Dataset:
    """Load one of the tables by its catalogue name."""
    return _load(name, tuple(files), tuple(file.stat().st_mtime_ns for file in files))


@lru_cache(maxsize=4)  # hashing texts takes seconds, and a study of many short runs loads the same table repeatedly
def _load(name: str, files: tuple[Path, ...], changed: tuple[int, ...]) -> Dataset:
    if name.startswith("clinc150"):
        return _intents(name, files[0])
    try:
        if name == "adult":
            return _adult(name, *files)
        table = _read(files[0])
        return _compas(name, table) if name.startswith("compas") else _student(name, table)
    except (KeyError, ValueError, OSError, EOFError) as error:
        raise DataError(f"data.dataset: '{files[0].name}' is not the table that '{name}' reads: {error}") from None


def _compas(name: str, table: Columns) -> Dataset:
    """Keep the defendants of ProPublica's filter; leave out the decile score, which determines the label."""
    days = np.array([float(cell) if cell else np.nan for cell in table["days_b_screening_arrest"]])
    kept = (np.abs(days) <= 30) & (table["is_recid"] != "-1") & (table["c_charge_degree"] != "O")
    kept &= table["score_text"] != "N/A"
    table = {column: cells[kept] for column, cells in table.items()}
    features = [
        *_numbers(name, table),
        ("sex", table["sex"] == "Male"),
        ("c_charge_degree", table["c_charge_degree"] == "F"),
    ]
    binary = name == "compas_binary"
    labels = ("Low", "Higher") if binary else ("Low", "Medium", "High")
    levels = {"Low": 0, "Medium": 1, "High": 1 if binary else 2}
    y = np.array([levels[cell] for cell in table["score_text"].tolist()], dtype=np.int64)
    rows = _rows(features, y, {"race": table["race"], "sex": table["sex"]})
    return Dataset(name, rows, None, labels, False, sources=tuple(column for column, _ in features))


def _student(name: str, table: Columns) -> Dataset:
    features = _numbers(name, table)
    y = table["GradeClass"].astype(np.float32).astype(np.int64)
    ethnicity = np.array([ETHNICITIES[int(cell)] for cell in table["Ethnicity"].tolist()])
    gender = np.where(table["Gender"] == "1", "1", "0")
    rows = _rows(features, y, {"Ethnicity": ethnicity, "Gender": gender})
    return Dataset(name, rows, None, GRADES, False, sources=tuple(column for column, _ in features))


def _adult(name: str, train: Path, test: Path) -> Dataset:
    """Read the published parts; leave out `relationship`, which reveals the sex."""
    header = DATASETS[name].header
    tables = [_read(path, header, lambda row: len(row) == len(header)) for path in (train, test)]
    words = {column: sorted(set(tables[0][column].tolist()) - {"?"}) for column in ("marital-status", "occupation")}
    parts = list[Rows]()
    for table in tables:
        features = _numbers(name, table)
        features += [(column, table[column] == value) for column, values in words.items() for value in values]
        y = np.array([cell.startswith(">") for cell in table["income"].tolist()], dtype=np.int64)
        parts.append(_rows(features, y, {"sex": table["sex"], "race": table["race"]}))
    return Dataset(name, parts[0], parts[1], ("<=50K", ">50K"), False, sources=tuple(column for column, _ in features))


def _numbers(name: str, table: Columns) -> list[Feature]:
    return [(column, table[column].astype(np.float32)) for column in DATASETS[name].numbers]


def _rows(features: Sequence[Feature], y: NDArray[np.int64], columns: Columns) -> Rows:
    x = np.stack([values.astype(np.float32) for _, values in features], axis=1)
    return Rows(x, y, columns=columns)


def _read(path: Path, header: Sequence[str] | None = None, is_row: Callable[[list[str]], bool] = bool) -> Columns:
    """Read a table of text cells; the last of several columns with the same name wins."""
    opener = gzip.open if path.name.endswith(".gz") else open
    with opener(path, "rt", encoding="utf-8-sig", newline="") as file:
        lines = csv.reader(file, skipinitialspace=True)
        names = list(header or next(lines))
        rows = [row for row in lines if is_row(row)]
    cells = np.array(rows, dtype=str)
    return {name: np.char.strip(cells[:, place]) for place, name in enumerate(names)}


def _intents(name: str, path: Path) -> Dataset:
    """Read CLINC150 (Larson et al. 2019): 150 intents in 10 domains, its grouping `coarse`."""
    table = read_table(path, where="data.dataset")
    for column in COLUMNS:
        if column not in table.columns:
            raise DataError(f"data.dataset: '{path}' has no column '{column}'; {name} has {', '.join(COLUMNS)}")
    inside = table.column("intent") != OUT_OF_SCOPE
    split, text, intent, domain = (table.column(column)[inside].astype(str) for column in COLUMNS)
    labels, y = np.unique(intent, return_inverse=True)
    groups = {group: np.unique(intent[domain == group]).tolist() for group in np.unique(domain).tolist()}
    train, test = split == "train", split == ("val" if name.endswith("validation") else "test")
    x_train, x_test = hashed(text[train].tolist(), text[test].tolist())
    parts = Rows(x_train, y[train]), Rows(x_test, y[test])
    return Dataset(name, *parts, tuple(labels.tolist()), False, {"coarse": groups}, scaled=True)


def hashed(train: list[str], test: list[str], width: int = WIDTH) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return texts as hashed character 3- and 4-grams within words, weighted by rarity in training texts, of norm one.

    In a federation the rarity of a gram needs one sum of document counts over the sites.
    """
    from sklearn.feature_extraction.text import HashingVectorizer  # imported here because it takes a second

    grams = HashingVectorizer(
        analyzer="char_wb", ngram_range=(3, 4), n_features=width, alternate_sign=False, norm=None, dtype=np.float32
    )
    found = [grams.transform(texts).toarray() for texts in (train, test)]
    seen = (found[0] > 0).sum(0)
    rarity = np.log((1 + len(train)) / (1 + seen)) + 1
    weighted = [np.log1p(counts) * rarity for counts in found]
    lengths = [np.linalg.norm(x, axis=1, keepdims=True) for x in weighted]
    first, second = ((x / np.maximum(n, 1e-12)).astype(np.float32) for x, n in zip(weighted, lengths, strict=True))
    return first, second
