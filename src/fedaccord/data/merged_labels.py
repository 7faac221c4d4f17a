"""Labels of arrays under the federation's names: two names that are synonyms become one label."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from fedaccord.data.dataset import Array, Dataset, Rows
from fedaccord.data.label_columns import LabelWords
from fedaccord.labels.synonyms import Renaming, rename, rename_all
from fedaccord.labels.views import NOT_ANNOTATED


def merge_labels(dataset: Dataset, names: Renaming) -> Dataset:
    """Return a data set whose labels have the federation's names; labels of the same name become one."""
    labels = tuple(rename_all(dataset.labels, names))
    if labels == dataset.labels:
        return dataset
    place = np.array([labels.index(rename(label, names)) for label in dataset.labels])
    groupings = {
        grouping: {coarse: rename_all(members, names) for coarse, members in groups.items()}
        for grouping, groups in dataset.groupings.items()
    }
    train = _merged(dataset.train, place, len(labels))
    test = None if dataset.test is None else _merged(dataset.test, place, len(labels))
    return replace(dataset, train=train, test=test, labels=labels, groupings=groupings)


def _merged(rows: Rows, place: Array, labels: int) -> Rows:
    y = None if rows.y is None else np.where(rows.y >= 0, place[rows.y], rows.y)
    tags, candidates = (_columns(values, place, labels) for values in (rows.tags, rows.candidates))
    return replace(rows, y=y, tags=tags, candidates=candidates)


def _columns(values: Array | None, place: Array, labels: int) -> Array | None:
    """Return the largest of the columns of each label: a tag is present if one of its columns says so."""
    if values is None:
        return None
    columns = [values[:, place == label].max(1) for label in range(labels)]
    return np.stack(columns, 1)


def only_labels(rows: Rows, names: Sequence[str], allowed: Collection[str]) -> Rows:
    """Return rows without the labels that are not allowed; a row without another one is not annotated."""
    known = np.array([name in allowed for name in names])
    y = None if rows.y is None else np.where((rows.y >= 0) & known[rows.y], rows.y, NOT_ANNOTATED)
    candidates = None if rows.candidates is None else rows.candidates & known
    if candidates is not None:
        candidates[~candidates.any(1)] = known  # any label may be the true one
    return replace(rows, y=y, candidates=candidates)


def label_counts(dataset: Dataset) -> LabelWords:
    """Return the number of training rows that name each label, and of those that are not annotated."""
    rows, counts = dataset.train, np.zeros(len(dataset.labels), dtype=np.int64)
    if rows.y is not None:
        counts += np.bincount(rows.y[rows.y >= 0], minlength=len(counts))
    for values in (rows.tags, rows.candidates):
        if values is not None:
            counts += (values == 1).sum(0)
    missing = 0 if rows.y is None else int((rows.y < 0).sum())
    return LabelWords(dict(zip(dataset.labels, counts.tolist(), strict=True)), {"-1": missing} if missing else {})
