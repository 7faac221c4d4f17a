"""Sheets of .xlsx files as columns of text cells; formulas are read as their stored values."""

from __future__ import annotations

import datetime
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import ParseError

from fedaccord.data.frames import as_text
from fedaccord.data.text_files import TITLE, RawTable
from fedaccord.data.unpacking import refuse_cells, refuse_large_archive
from fedaccord.errors import ConfigError, DataError, did_you_mean, first_problems

Row = tuple[int, list[str]]  # its number in the sheet, and its cells


def read_sheet(path: Path, header: Sequence[str] | None, sheet: str | None) -> RawTable:
    """Read a sheet of an .xlsx file, the first one by default; `header` names columns of a sheet without a header."""
    openpyxl = _openpyxl()
    try:
        refuse_large_archive(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # openpyxl warns of charts and styles, which are not read
            rows = list(_rows(openpyxl, path, sheet))
    except zipfile.BadZipFile:
        what = "it is damaged, protected by a password, or in another format"
        way = "open it and save it as .xlsx without a password"
        raise DataError(f"'{path}' is not an .xlsx file: {what}; {way}") from None
    except (KeyError, ValueError, TypeError, AttributeError, ParseError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"'{path}' is damaged and cannot be read as an .xlsx file: {error}") from None
    if header is not None:
        names = [name.strip() for name in header]
    else:
        names, rows = (rows[0][1], rows[1:]) if rows else ([], [])
    wide = [f"row {number} has {len(cells)} cells" for number, cells in rows if len(cells) > len(names)]
    if wide:
        what = "are named" if header is not None else "are in its header"
        title = f"; {TITLE}" if len(names) == 1 else ""
        raise DataError(f"'{path}': {len(names)} columns {what}, but {first_problems(wide)}{title}")
    cells = [row + [""] * (len(names) - len(row)) for _, row in rows]
    columns: list[Sequence[str]] = list(zip(*cells, strict=True)) if cells else [() for _ in names]
    return RawTable(names, columns, [number for number, _ in rows], sheet=_described(openpyxl, path, sheet))


def _described(openpyxl: Any, path: Path, sheet: str | None) -> str:
    """Return the sheet in words, so that nobody expects the others to be read."""
    book = openpyxl.load_workbook(path, read_only=True)
    try:
        number, title = len(book.worksheets), _page(book, path, sheet).title
    finally:
        book.close()
    return f"the sheet '{title}'" + (f", one of {number}" if number > 1 else "")


def _rows(openpyxl: Any, path: Path, sheet: str | None) -> Iterator[Row]:
    """Yield the rows of a sheet that are not empty."""
    gaps: set[tuple[int, int]] = set()
    for number, values in _values(openpyxl, path, sheet, stored=True):
        cells = ["" if value is None else _text(value) for value in values]
        gaps |= {(number, place) for place, value in enumerate(values) if value is None}
        while cells and not cells[-1]:
            cells.pop()
        if cells:
            yield number, cells
    if gaps:
        _refuse_formulas_without_value(openpyxl, path, sheet, gaps)


def _values(openpyxl: Any, path: Path, sheet: str | None, stored: bool) -> Iterator[tuple[int, Sequence[Any]]]:
    """Yield the rows of a sheet: stored values, or instead of them formulas."""
    book = openpyxl.load_workbook(path, read_only=True, data_only=stored)
    try:
        page = _page(book, path, sheet)
        page.reset_dimensions()  # a file may declare a million empty rows and columns
        cells = 0
        for number, values in enumerate(page.iter_rows(values_only=True), 1):
            cells += len(values)
            refuse_cells(path, cells, 1)
            yield number, values
    finally:
        book.close()


def _page(book: Any, path: Path, sheet: str | None) -> Any:
    names = [page.title for page in book.worksheets]
    if sheet is not None and sheet not in names:
        raise DataError(f"'{path}' has no sheet '{sheet}'; {did_you_mean(sheet, names)}")
    if not names:
        raise DataError(f"'{path}' has no sheet of cells")
    return book[sheet if sheet is not None else names[0]]


def _refuse_formulas_without_value(openpyxl: Any, path: Path, sheet: str | None, gaps: set[tuple[int, int]]) -> None:
    """Raise DataError if a cell is empty only because its formula was never computed."""
    for number, values in _values(openpyxl, path, sheet, stored=False):
        for place, value in enumerate(values):
            if value is not None and (number, place) in gaps:
                cell = f"{openpyxl.utils.get_column_letter(place + 1)}{number}"
                raise DataError(
                    f"'{path}', cell {cell}: the formula {value} has no stored value; "
                    "open the file in a spreadsheet program and save it, so that it is computed"
                )


def _text(value: Any) -> str:
    if isinstance(value, datetime.datetime) and value.time() == datetime.time():
        return str(value.date())
    return as_text(value)


def _openpyxl() -> Any:
    try:
        import openpyxl
    except ImportError:
        raise ConfigError(
            ".xlsx files are read with openpyxl, which is not installed; "
            "install it with pip install 'fedaccord[excel]', or save the sheet as .csv"
        ) from None
    return openpyxl
