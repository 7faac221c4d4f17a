"""A site's file as text cells, so that messages can name a wrong cell by file, row, column and value."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedaccord.data.frames import frame_cells
from fedaccord.data.registry import existing
from fedaccord.errors import DataError, did_you_mean

if TYPE_CHECKING:
    import pandas as pd

Cells = NDArray[np.object_]
CSV_ENDINGS = (".csv", ".tsv", ".data", ".txt", ".csv.gz", ".tsv.gz")
SHOWN = 10
LARGEST = 1e30  # the variance of larger numbers would overflow
_TRUTH = {"true": 1.0, "false": 0.0}


@dataclass(frozen=True)
class Table:
    """Columns of text cells, and the line of each row in its file; in a .parquet file or a frame, its number."""

    path: Path
    columns: dict[str, Cells]
    lines: NDArray[np.int64]
    title: str = ""  # name of the file in messages; several sites' files may have the same name
    unit: str = "line"  # what `lines` count

    @property
    def shown(self) -> str:
        """The file's name in messages."""
        return self.title or self.path.name

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(self.lines)

    def column(self, name: str) -> Cells:
        """Return a column by name; raise DataError with the closest name for an unknown one."""
        if name not in self.columns:
            raise DataError(f"'{self.shown}' has no column '{name}'; {did_you_mean(name, self.columns)}")
        return self.columns[name]

    def wrong(self, row: int, column: str, what: str) -> str:
        """Return a sentence on a wrong cell, with its place."""
        return f"{self.shown}, {self.unit} {self.lines[row]}, column '{column}': {what}"


def is_table(path: Path) -> bool:
    """Return whether a file is a table, by its ending."""
    return path.name.lower().endswith((*CSV_ENDINGS, ".parquet"))


def read_table(path: Path, header: Sequence[str] | None = None, where: str = "", title: str = "") -> Table:
    """Read a .csv, .tsv or .parquet file; `header` names the columns of a text file without a header line.

    A column without a name, such as the row numbers that pandas writes, is left out.
    """
    existing(path, where)
    try:
        if path.name.lower().endswith(".parquet"):
            names, columns, lines = _read_parquet(path)
        else:
            names, columns, lines = _read_text(path, header)
    except (OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
        reason = "it is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else error
        raise DataError(f"'{path}' cannot be read as a table: {reason}") from None
    unit = "row" if path.name.lower().endswith(".parquet") else "line"
    return Table(path, _by_name(names, columns, f"'{path}'"), np.array(lines, dtype=np.int64), title, unit)


def frame_table(frame: pd.DataFrame, title: str, separators: Mapping[str, str] | None = None) -> Table:
    """Return a pandas frame as a table; its rows are counted from 1, and `title` names it in messages.

    Cells of the columns in `separators` may hold several names, which are joined.
    """
    names, columns = frame_cells(frame, title, separators)
    return Table(Path(), _by_name(names, columns, title), np.arange(1, len(frame) + 1), title, "row")


def _by_name(names: Sequence[str], columns: Sequence[Sequence[str]], where: str) -> dict[str, Cells]:
    if not columns or not len(columns[0]):
        raise DataError(f"{where} has no rows")
    for name in filter(None, names):
        if names.count(name) > 1:
            raise DataError(f"{where} has two columns named '{name}'")
    return {name: np.array(column, dtype=object) for name, column in zip(names, columns, strict=True) if name}


def report_cells(problems: Sequence[str]) -> None:
    """Raise the `cells_error` of these problems, if there are any."""
    if problems:
        raise cells_error(problems)


def cells_error(problems: Sequence[str], why: str = "") -> DataError:
    """Return an error with the first ten wrong cells and the number of others; `why` begins the message."""
    more = f"; and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
    cells = "a cell" if len(problems) == 1 else f"{len(problems)} cells"
    return DataError(f"{why}{cells} cannot be read: " + "; ".join(problems[:SHOWN]) + more)


def natural(name: str) -> tuple[int, float, str]:
    """Return a sort key that puts numbers first, by value, then words."""
    try:
        return (0, float(name), name)
    except ValueError:
        return (1, 0.0, name)


def are_missing(cells: Cells, missing: Collection[str]) -> NDArray[np.bool_]:
    """Return for each cell whether its value is missing."""
    words = {"", *missing}
    return np.fromiter((cell in words for cell in cells), dtype=bool, count=len(cells))


def read_numbers(cells: Cells, missing: Collection[str]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return a column as numbers, NaN for missing and wrong cells, and the rows of wrong cells."""
    values = np.full(len(cells), np.nan)
    given = np.flatnonzero(~are_missing(cells, missing))
    try:
        if any("_" in cell for cell in cells):  # Python would read 1_000 as a number
            raise ValueError
        values[given] = cells[given].astype(np.float64)
    except ValueError:
        values[given] = [_number(cell) for cell in cells[given]]
    values[~(np.abs(values) <= LARGEST)] = np.nan
    return values, given[np.isnan(values[given])]


def by_value(cells: Cells, missing: Collection[str]) -> tuple[list[str | None], NDArray[np.int64]]:
    """Return a column's distinct cells in order of appearance, None if missing, and the index of each row's cell."""
    place: dict[str, int] = {}
    codes = [place.setdefault(cell, len(place)) for cell in cells]
    absent = {"", *missing}
    return [None if word in absent else word for word in place], np.array(codes, dtype=np.int64)


def _read_text(path: Path, header: Sequence[str] | None) -> tuple[list[str], list[Sequence[str]], list[int]]:
    name = path.name.lower()
    opener = gzip.open if name.endswith(".gz") else open
    with opener(path, "rt", encoding="utf-8-sig", newline="") as file:  # the file may begin with a byte order mark
        rows = _rows_of(file, "\t" if ".tsv" in name else ",")
        names = [name.strip() for name in header] if header is not None else next(rows, (0, list[str]()))[1]
        if header is None and len(names) == 1 and any(mark in names[0] for mark in ";\t"):
            way = "cells are separated by commas, in a .tsv file by tabs"
            raise DataError(f"'{path}': its header is a single cell, '{names[0]}'; {way}")
        lines, cells, ragged = [], [], []
        for line, row in rows:
            if len(row) == len(names):
                lines.append(line)
                cells.append(row)
            else:
                ragged.append(f"line {line} has {len(row)} cells")
    if ragged:
        more = f"; and {len(ragged) - SHOWN} more" if len(ragged) > SHOWN else ""
        what = "are named" if header is not None else "are in its header"
        raise DataError(f"'{path}': {len(names)} columns {what}, but " + "; ".join(ragged[:SHOWN]) + more)
    columns: list[Sequence[str]] = list(zip(*cells, strict=True)) if cells else [() for _ in names]
    return names, columns, lines


def _rows_of(file: IO[str], separator: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a text file with the line in which each begins; skip empty lines."""
    reader = csv.reader(file, delimiter=separator, skipinitialspace=True, strict=True)
    line = 1
    for row in reader:
        cells = [cell.strip() for cell in row]
        if cells not in ([], [""]):
            yield line, cells
        line = reader.line_num + 1


def _read_parquet(path: Path) -> tuple[list[str], list[Sequence[str]], list[int]]:
    import pandas as pd  # imported here because pandas takes a second to load

    try:
        frame = pd.read_parquet(path)
    except ValueError as error:  # the base of pyarrow's errors
        raise DataError(f"'{path}' cannot be read as a table: {' '.join(str(error).split())}") from None
    names, columns = frame_cells(frame, f"'{path}'")
    return names, columns, list(range(1, len(frame) + 1))


def _number(cell: str) -> float:
    if "_" in cell:
        return np.nan
    try:
        return float(cell)
    except ValueError:
        return _TRUTH.get(cell.lower(), np.nan)
