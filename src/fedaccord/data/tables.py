"""A site's file as cells of text, so that every wrong cell can be named by file, row, column and value."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedaccord.data.registry import existing
from fedaccord.errors import DataError, did_you_mean

Cells = NDArray[np.object_]
CSV_ENDINGS = (".csv", ".tsv", ".data", ".txt", ".csv.gz", ".tsv.gz")
SHOWN = 10


@dataclass(frozen=True)
class Table:
    """Columns of text cells; `first_row` is the line number of the first data row in the file."""

    path: Path
    columns: dict[str, Cells]
    rows: int
    first_row: int

    def column(self, name: str) -> Cells:
        """Return a column by name; an unknown one is an error that says the closest."""
        if name not in self.columns:
            raise DataError(f"'{self.path.name}' has no column '{name}'; {did_you_mean(name, self.columns)}")
        return self.columns[name]

    def line(self, row: int) -> int:
        """Return the line of the file in which a row stands."""
        return row + self.first_row


def is_table(path: Path) -> bool:
    """Say whether a file is read as a table, by its ending."""
    return path.name.lower().endswith((*CSV_ENDINGS, ".parquet"))


def read_table(path: Path, header: Sequence[str] | None = None) -> Table:
    """Read a .csv or .parquet file; `header` names the columns of a file without a header line."""
    import pandas as pd  # imported here: pandas takes a second to load

    existing(path)
    try:
        if path.name.endswith(".parquet"):
            frame = pd.read_parquet(path)
        else:
            separator = "\t" if ".tsv" in path.name else ","
            frame = pd.read_csv(
                path, sep=separator, dtype=str, keep_default_na=False, skipinitialspace=True,
                header=0 if header is None else None, names=None if header is None else list(header),
                encoding="utf-8-sig", index_col=False,
            )  # fmt: skip
    except (ValueError, OSError, UnicodeDecodeError, pd.errors.ParserError) as error:
        raise DataError(f"'{path}' cannot be read as a table: {' '.join(str(error).split())}") from None
    if not len(frame):
        raise DataError(f"'{path}' has no rows")
    names = [str(name).strip() for name in frame.columns]
    for name in names:
        if names.count(name) > 1:
            raise DataError(f"'{path}' has two columns named '{name}'")
    columns = {name: _text(frame.iloc[:, i].to_numpy()) for i, name in enumerate(names)}
    return Table(path, columns, len(frame), 1 if header is not None or path.suffix == ".parquet" else 2)


def report_cells(what: str, problems: Iterable[str]) -> None:
    """Raise a DataError that shows the first ten wrong cells and counts the rest; nothing happens without any."""
    found = list(problems)
    if found:
        more = f"; and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        raise DataError(f"{what}: " + "; ".join(found[:SHOWN]) + more)


def read_numbers(cells: Cells, missing: Collection[str]) -> tuple[NDArray[np.float64], list[int]]:
    """Parse a column of numbers; missing cells are NaN, and the rows of cells that are no numbers are returned."""
    values = np.full(len(cells), np.nan)
    wrong = []
    for row, cell in enumerate(cells):
        if cell in missing:
            continue
        try:
            values[row] = float(cell)
        except ValueError:
            wrong.append(row)
            continue
        if not np.isfinite(values[row]):
            wrong.append(row)
    return values, wrong


def _text(values: NDArray[Any]) -> Cells:
    return np.array([_cell(value) for value in values.tolist()], dtype=object)


def _cell(value: Any) -> str:
    if value is None or value != value:
        return ""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))  # a whole number with gaps in its column arrives as a float
    if isinstance(value, bool):
        return str(int(value))
    return str(value).strip()
