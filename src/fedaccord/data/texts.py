"""Data sets of short texts, hashed into features: character n-grams weighted by their rarity."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

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
    inside = table.column("intent") != OUT_OF_SCOPE
    split, text, intent, domain = (table.column(column)[inside].astype(str) for column in COLUMNS)
    labels, y = np.unique(intent, return_inverse=True)
    groups = {group: np.unique(intent[domain == group]).tolist() for group in np.unique(domain).tolist()}
    train, test = split == "train", split == judged_on
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
