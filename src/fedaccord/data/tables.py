"""A site's file as text cells, so that messages can name a wrong cell by file, row, column and value."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray

from fedaccord.data.declarations import Reading
from fedaccord.data.dialect import Dialect, describe_numbers
from fedaccord.data.frames import frame_cells
from fedaccord.data.number_marks import doubts_of, recognise_marks, with_plain_numbers
from fedaccord.data.parquet_files import read_parquet_table
from fedaccord.data.registry import existing
from fedaccord.data.spreadsheets import read_sheet
from fedaccord.data.text_files import RawTable, read_text_table
from fedaccord.errors import ConfigError, DataError, are_lists_in_full, did_you_mean, first_problems

if TYPE_CHECKING:
    import pandas as pd

Cells = NDArray[np.object_]
TEXT_ENDINGS = (".csv", ".tsv", ".data", ".txt")
ENDINGS = (*TEXT_ENDINGS, *(f"{ending}.gz" for ending in TEXT_ENDINGS), ".parquet", ".xlsx")
LONGEST_MESSAGE = 1000  # characters on one wrong cell
LARGEST = 1e30  # the variance of larger numbers would overflow
_TRUTH = {"true": 1.0, "false": 0.0}


@dataclass(frozen=True)
class Table:
    """Columns of text cells, and the line of each row in its file; in a frame, .parquet or .xlsx file, its number.

    `read_as` says how a text file is written, and `doubts` has a sentence on everything that could be read otherwise.
    """

    path: Path
    columns: dict[str, Cells]
    lines: NDArray[np.int64]
    title: str = ""  # name of the file in messages; several sites' files may have the same name
    unit: str = "line"  # what `lines` count
    read_as: str = ""
    doubts: tuple[str, ...] = ()

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
            single = " (it was read as a single column; is `read` needed?)" if len(self.columns) == 1 else ""
            raise DataError(f"'{self.shown}' has no column '{name}'; {did_you_mean(name, self.columns)}{single}")
        return self.columns[name]

    def wrong(self, row: int, column: str, what: str) -> str:
        """Return a sentence on a wrong cell, with its place."""
        if len(what) > LONGEST_MESSAGE:  # a cell can be as long as a file
            what = f"{what[:LONGEST_MESSAGE]}…"
        return WrongCell(self.shown, f"{self.unit} {self.lines[row]}", column, what)


class WrongCell(str):
    """A sentence on a wrong cell, with its parts, so that cells with the same problem can be shown once."""

    def __new__(cls, file: str, place: str, column: str, what: str) -> Self:
        """Write the sentence."""
        cell = super().__new__(cls, f"{file}, {place}, column '{column}': {what}")
        cell.parts = (file, place, column, what)
        return cell

    parts: tuple[str, str, str, str]  # file, place, column, problem


def is_table(path: Path) -> bool:
    """Return whether a file is a table, by its ending."""
    return path.name.lower().endswith(ENDINGS)


def read_table(
    path: Path,
    header: Sequence[str] | None = None,
    where: str = "",
    title: str = "",
    read: Reading | None = None,
) -> Table:
    """Read a text table, a sheet or a .parquet file; `header` names the columns of one without a header line.

    How the file is written is recognised, unless `read` says it. A column without a name, such as the row numbers that
    pandas writes, is left out.
    """
    existing(path, where)
    read = read or Reading()
    _refuse_keys(path, read, where)
    try:
        raw = _read(path, header, read)
    except OSError as error:
        raise DataError(f"'{path}' cannot be read as a table: {error}") from None
    cells, lines = _by_name(raw.names, raw.columns, f"'{path}'"), np.array(raw.lines, dtype=np.int64)
    if path.name.lower().endswith(".parquet"):
        return Table(path, cells, lines, title, "row")
    marks = recognise_marks(cells, read, raw.dialect.separator if raw.dialect else "")
    dialect = replace(raw.dialect or Dialect(), decimal=marks.decimal, thousands=marks.thousands)
    numbers = describe_numbers(dialect.decimal, dialect.thousands)
    read_as = dialect.describe() if raw.dialect else f"{raw.sheet}{numbers}"
    doubts = (*raw.doubts, *doubts_of(marks, raw.lines, title or path.name))
    unit = "line" if raw.dialect else "row"
    return Table(path, with_plain_numbers(cells, dialect), lines, title, unit, read_as, doubts)


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
            first, second = [place for place, other in enumerate(names, 1) if other == name][:2]
            raise DataError(f"{where} has two columns named '{name}', number {first} and {second}; rename one")
    return {name: np.array(column, dtype=object) for name, column in zip(names, columns, strict=True) if name}


def _read(path: Path, header: Sequence[str] | None, read: Reading) -> RawTable:
    if path.name.lower().endswith(".parquet"):
        return read_parquet_table(path)
    if path.name.lower().endswith(".xlsx"):
        return read_sheet(path, header, read.sheet)
    return read_text_table(path, header, read)


def _refuse_keys(path: Path, read: Reading, where: str) -> None:
    """Raise ConfigError for keys of `read` that mean nothing for this kind of file."""
    kind = path.suffix.lower()
    others = {".parquet": set(Reading.model_fields), ".xlsx": {"separator", "quote", "encoding"}}
    meaningless = others.get(kind, {"sheet"})
    for key in read.given():
        if key in meaningless:
            place = f"{where}: " if where else ""
            raise ConfigError(f"{place}read.{key} has no effect on '{path.name}'; leave it out")


def report_cells(problems: Sequence[str]) -> None:
    """Raise the `cells_error` of these problems, if there are any."""
    if problems:
        raise cells_error(problems)


def cells_error(problems: Sequence[str], why: str = "") -> DataError:
    """Return an error with the first ten kinds of wrong cells and the number of others; `why` begins the message."""
    texts = _each_once(problems)
    cells = "a cell" if len(problems) == 1 else f"{len(problems)} cells"
    return DataError(f"{why}{cells} cannot be read: {first_problems(texts)}")


def _each_once(problems: Sequence[str]) -> list[str]:
    """Return the sentences; of cells in a column with the same problem, the first with the number of others."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for problem in problems:
        file, _, column, what = problem.parts if isinstance(problem, WrongCell) else ("", "", "", problem)
        alike.setdefault((file, column, what), []).append(problem)
    texts: list[str] = []
    for first, *others in alike.values():
        if others and isinstance(first, WrongCell):
            file, place, column, what = first.parts
            numbers = ", ".join(other.parts[1].split()[-1] for other in others if isinstance(other, WrongCell))
            place += f", {numbers}" if are_lists_in_full() else f" and {len(others)} more"
            texts.append(WrongCell(file, place, column, what))
        else:
            texts += [first, *others]
    return texts


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


def _number(cell: str) -> float:
    if "_" in cell:
        return np.nan
    try:
        return float(cell)
    except ValueError:
        return _TRUTH.get(cell.lower(), np.nan)
