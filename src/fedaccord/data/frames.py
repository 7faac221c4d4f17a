"""A pandas frame as columns of text cells, so that frames and files are read in the same way."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedaccord.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

NO_LISTS = "holds lists; write several labels as text, `a;b` or `a|b`"
_SEVERAL = (list, tuple, set, frozenset, np.ndarray)


def frame_cells(
    frame: pd.DataFrame, where: str, separators: Mapping[str, str] | None = None
) -> tuple[list[str], list[Sequence[str]]]:
    """Return the names and the text cells of a frame's columns; missing values are empty cells.

    A column with an entry in `separators` may hold several names in a cell, which are joined by that separator. Raise
    DataError for lists in any other column.
    """
    names, columns = [], list[Sequence[str]]()
    for number, name in enumerate(map(str, frame.columns)):
        column, separator = frame.iloc[:, number], (separators or {}).get(name.strip())
        missing = column.isna().to_numpy()
        values = _values(column)
        if separator is not None:
            values = [separator.join(_several(value)) if isinstance(value, _SEVERAL) else value for value in values]
        if any(isinstance(value, (*_SEVERAL, dict)) for value in values):
            raise DataError(f"{where}: column '{name}' {NO_LISTS}")
        names.append(name.strip())
        columns.append(["" if gone else as_text(value) for value, gone in zip(values, missing, strict=True)])
    return names, columns


def _values(column: pd.Series) -> list[Any]:
    """Return the values of a column; equal categories are one object, however many rows have them."""
    if column.dtype != "category":
        return column.tolist()
    categories = [*column.cat.categories.tolist(), None]  # the code of a missing value is -1
    return [categories[code] for code in column.cat.codes.tolist()]


def _several(values: Collection[Any]) -> list[str]:
    """Return names as texts; those of a set in a fixed order."""
    texts = [as_text(value) for value in values]
    return sorted(texts) if isinstance(values, set | frozenset) else texts


def as_text(value: Any) -> str:
    """Return the value of a typed cell as text."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))  # whole numbers in a column with missing values are floats
    return str(value).strip()
