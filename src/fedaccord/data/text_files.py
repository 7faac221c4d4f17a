"""Text tables (.csv, .tsv and their like, also compressed) as rows of cells, in the dialect that they are written in.

A file that is not such a table raises one sentence with the file, the line and a way out.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedaccord.data.declarations import Reading
from fedaccord.data.dialect import (
    Dialect,
    announced_separator,
    decode,
    probable_separator,
    recognise_quote,
    recognise_separator,
)
from fedaccord.data.unpacking import read_gzip
from fedaccord.errors import DataError, first_problems

TITLE = "if it is a title, remove the lines above the header"
LONGEST_CELL = 1 << 20  # characters; a longer one is a quote that is never closed
_NO_TEXT = {
    b"PK\x03\x04": "a zip archive or a spreadsheet; unpack it, or name it .xlsx if it is one",
    b"\x1f\x8b": "compressed by gzip; add '.gz' to its name",
    b"PAR1": "a Parquet file; name it .parquet",
    b"\xd0\xcf\x11\xe0": "a spreadsheet of old Excel; save it as .xlsx or as .csv",
    b"%PDF": "a PDF document; export the table as .csv",
    b"BZh": "compressed by bzip2; unpack it, or compress it by gzip",
    b"\xfd7zXZ": "compressed by xz; unpack it, or compress it by gzip",
    b"(\xb5/\xfd": "compressed by zstd; unpack it, or compress it by gzip",
}
_MARKUP = re.compile(rb"(\xef\xbb\xbf)?\s*<(!doctype|html|head|body|\?xml|table|meta|script)\b", re.IGNORECASE)


@dataclass(frozen=True)
class RawTable:
    """Names and cells of a file's columns, the line of each row, and how they were written."""

    names: list[str]
    columns: list[Sequence[str]]
    lines: list[int]
    dialect: Dialect | None = None
    doubts: tuple[str, ...] = ()
    sheet: str = ""  # in words


def read_text_table(path: Path, header: Sequence[str] | None, read: Reading) -> RawTable:
    """Read a text file; `header` names the columns of a file without a header line."""
    raw = read_gzip(path) if path.name.lower().endswith(".gz") else path.read_bytes()
    _refuse_other_formats(raw, path)
    text, encoding, doubts = decode(raw, read.encoding, path.name)
    del raw
    usual = "\t" if ".tsv" in path.name.lower() else ","
    announced, start = announced_separator(text)
    separator = read.separator or announced
    if not separator:
        columns = None if header is None else len(header)
        separator, doubtful = recognise_separator(text[start:], columns, usual, path.name)
        doubts += doubtful
    quote = recognise_quote(text[start:], separator) if read.quote is None else read.quote
    dialect = Dialect(separator, quote, encoding)
    lines, rows = _rows_and_lines(text, start, dialect, path)
    names, first = ([name.strip() for name in header], 0) if header is not None else (rows[0] if rows else [], 1)
    rows, lines = rows[first:], lines[first:]
    _refuse_ragged(names, rows, lines, path, header is not None)
    if header is None:
        refuse_title(names, path, "line 1")
    _refuse_undivided(names, rows, path)
    cells: list[Sequence[str]] = list(zip(*rows, strict=True)) if rows else [() for _ in names]
    return RawTable(names, cells, lines, dialect, tuple(doubts))


def _refuse_other_formats(raw: bytes, path: Path) -> None:
    for start, what in _NO_TEXT.items():
        if raw.startswith(start):
            raise DataError(f"'{path}' is not a text table but {what}")
    if _MARKUP.match(raw):
        raise DataError(
            f"'{path}', line 1: it begins like a web page, '{_first_words(raw)}'; "
            "a download may have saved a page of login or an error instead of the table, so get the file itself"
        )


def _first_words(raw: bytes) -> str:
    return " ".join(raw[:200].decode("utf-8", "replace").split())[:40]


def _rows_and_lines(text: str, start: int, dialect: Dialect, path: Path) -> tuple[list[int], list[list[str]]]:
    """Return the lines in which rows begin, and the rows without empty ones."""
    lines, rows = [], []
    skipped = 1 if start else 0
    file = io.StringIO(text, newline="")
    file.seek(start)
    place = [0]
    previous = csv.field_size_limit(LONGEST_CELL)
    try:
        for line, row in _rows_of(file, dialect, place):
            lines.append(line + skipped)
            rows.append(row)
    except csv.Error as error:
        raise DataError(_not_divided(error, place[0] + skipped, dialect, path)) from None
    finally:
        csv.field_size_limit(previous)
    return lines, rows


def _rows_of(file: io.StringIO, dialect: Dialect, place: list[int]) -> Iterator[tuple[int, list[str]]]:
    """Yield each row with the line in which it begins, which `place` also holds; skip empty lines."""
    reader = csv.reader(
        file,
        delimiter=dialect.separator,
        quotechar=dialect.quote or None,
        quoting=csv.QUOTE_MINIMAL if dialect.quote else csv.QUOTE_NONE,
        skipinitialspace=dialect.separator != " ",
        strict=True,
    )
    place[0] = 1
    for row in reader:
        cells = [cell.strip() for cell in row]
        if cells not in ([], [""]):
            yield place[0], cells
        place[0] = reader.line_num + 1


def _not_divided(error: csv.Error, line: int, dialect: Dialect, path: Path) -> str:
    """Return a sentence on a line that cannot be divided into cells."""
    place = f"'{path}', line {line}"
    if "unexpected end of data" in str(error) or "field larger" in str(error):
        what = f"a quote ({dialect.quote}) opens here and is never closed"
        return f"{place}: {what}; close it, or add read = {{ quote = '' }} if quotes mean nothing in this file"
    if "expected after" in str(error):
        twice = 2 * dialect.quote
        return (
            f"{place}: a quoted cell goes on after its closing quote ({dialect.quote}); write a quote inside of a "
            f"cell twice ({twice}), or add read = {{ quote = '' }} if quotes mean nothing in this file"
        )
    return f"{place}: it cannot be divided into cells: {error}"


def _refuse_ragged(
    names: Sequence[str], rows: Sequence[Sequence[str]], lines: Sequence[int], path: Path, named: bool
) -> None:
    ragged = [(line, len(row)) for line, row in zip(lines, rows, strict=True) if len(row) != len(names)]
    if not ragged:
        return
    if not named and len(names) == 1 and len(ragged) == len(rows):
        what = f"'{names[0]}' is a single cell, but the lines below have {ragged[0][1]}"
        raise DataError(f"'{path}', line 1: {what}; {TITLE}")
    listing = first_problems([f"line {line} has {width} cells" for line, width in ragged])
    what = "are named" if named else "are in its header"
    hint = "a cell that contains the separator needs quotes around it"
    raise DataError(f"'{path}': {len(names)} columns {what}, but {listing}; {hint}")


def refuse_title(names: Sequence[str], path: Path, place: str) -> None:
    """Raise DataError for a header that names one of several columns, because it is a title."""
    named = [name for name in names if name]
    if len(names) > 2 and len(named) == 1:
        what = f"only one of {len(names)} columns has a name, '{named[0]}'"
        raise DataError(f"'{path}', {place}: {what}; {TITLE}")


def _refuse_undivided(names: Sequence[str], rows: Sequence[Sequence[str]], path: Path) -> None:
    mark = probable_separator(names, rows)
    if mark is not None:
        known = "commas, semicolons, tabs and bars are recognised between cells"
        raise DataError(
            f"'{path}', line 1: its header is a single cell, '{names[0]}'; {known}; "
            f'for another character add read = {{ separator = "{mark}" }}'
        )
