"""Words of feature columns under the federation's names: the synonyms of `[features]`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from fedaccord.data.tables import Cells, Table
from fedaccord.errors import ConfigError, did_you_mean
from fedaccord.labels.synonyms import Renaming, Synonyms, rename_annotation, renaming

SEPARATOR = "|"  # between the candidate groups of a sensitive column


def renamed_cells(cells: Cells, names: Renaming) -> Cells:
    """Return a column with names for its words."""
    if not names:
        return cells
    new = {word: rename_annotation(word, SEPARATOR, names) for word in set(cells)}
    return np.array([new[cell] for cell in cells], dtype=object)


def with_names(table: Table, synonyms: Mapping[str, Synonyms]) -> Table:
    """Return a table with names for the words of the columns that have synonyms."""
    changed = {
        column: renamed_cells(table.columns[column], renaming(words))
        for column, words in synonyms.items()
        if column in table.columns
    }
    return replace(table, columns=table.columns | changed) if changed else table


def check_columns(synonyms: Mapping[str, Synonyms], tables: Iterable[Table]) -> None:
    """Raise ConfigError for synonyms of a column that no site has."""
    columns = {name for table in tables for name in table.columns}
    for column in synonyms:
        if column not in columns:
            raise ConfigError(f"features.synonyms: no site has a column '{column}'; {did_you_mean(column, columns)}")
