"""Data sets of short texts, hashed into features: character n-grams weighted by their rarity."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedaccord.data.dataset import Dataset, Rows
from fedaccord.data.tables import read_table
from fedaccord.errors import DataError

WIDTH = 1024
OUT_OF_SCOPE = "oos"  # texts without an intent in CLINC150; the federation's classes are the intents
COLUMNS = ("split", "text", "intent", "domain")


def load_intents(path: Path, name: str, judged_on: str = "test") -> Dataset:
    """Load CLINC150 (Larson et al. 2019): 150 intents in 10 domains, its grouping `coarse`.

    `judged_on` is the published part used as the test: "test", or "val" to choose settings.
    """
    changed = path.stat().st_mtime_ns
    return _load(path, name, judged_on, changed)


@lru_cache(maxsize=1)  # hashing takes seconds, and a study of many runs loads the same texts repeatedly
def _load(path: Path, name: str, judged_on: str, changed: int) -> Dataset:
    table = read_table(path, where="data.dataset")
    for column in COLUMNS:
        if column not in table.columns:
            raise DataError(f"data.dataset: '{path}' has no column '{column}'; {name} has {', '.join(COLUMNS)}")
    split, text, intent, domain = (np.array(table.column(column)) for column in COLUMNS)
    inside = intent != OUT_OF_SCOPE
    labels = sorted(set(intent[inside].tolist()))
    groups: dict[str, list[str]] = {}
    for label, group in sorted(set(zip(intent[inside].tolist(), domain[inside].tolist(), strict=True))):
        groups.setdefault(group, []).append(label)
    number = {label: place for place, label in enumerate(labels)}
    train, test = (inside & (split == part) for part in ("train", judged_on))
    x_train, x_test = hashed(text[train].tolist(), text[test].tolist())

    def rows(x: NDArray[np.float32], part: NDArray[Any]) -> Rows:
        return Rows(x, np.array([number[label] for label in intent[part].tolist()], dtype=np.int64))

    grouping = {"coarse": dict(sorted(groups.items()))}
    return Dataset(name, rows(x_train, train), rows(x_test, test), tuple(labels), False, grouping, scaled=True)


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
