"""How a text table is written, recognised from its content: encoding, separator and quotes.

Nothing is guessed silently. `Dialect.describe` says what was recognised, and whatever could also be read in another way
adds a doubt: a sentence with the reading that was taken and the `read = { ... }` that changes or confirms it.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass

from fedaccord.errors import DataError
from fedaccord.toml_text import toml_value

SEPARATORS = ("\t", ";", "|", ",")  # in the order of preference if several fit
FALLBACK = "cp1252"  # of Windows in western Europe and America; it contains Latin-1's letters
SAMPLED_LINES = 200
SAMPLED_CHARACTERS = 1 << 18
_MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
_SHOWN = {"\t": "tab-separated", " ": "space-separated"}
_ANNOUNCED = re.compile(r"sep=(.)[ \t]*(\r\n|\r|\n)", re.IGNORECASE)  # a first line that Excel writes and reads


@dataclass(frozen=True)
class Dialect:
    """How the cells of a text file are written."""

    separator: str = ","
    quote: str = '"'  # empty: cells are never quoted
    encoding: str = "utf-8"
    decimal: str = "."
    thousands: str = ""  # empty: numbers are not grouped

    def describe(self) -> str:
        """Return the dialect in words, such as "';'-separated cp1252 text with decimal commas"."""
        cells = _SHOWN.get(self.separator, f"'{self.separator}'-separated")
        names = {"utf-8": "UTF-8", "utf-8-sig": "UTF-8", "utf-16": "UTF-16"}
        quotes = {'"': "", "": ", without quotes"}.get(self.quote, f', quoted by "{self.quote}"')
        numbers = describe_numbers(self.decimal, self.thousands)
        return f"{cells} {names.get(self.encoding, self.encoding)} text{numbers}{quotes}"


def describe_numbers(decimal: str, thousands: str) -> str:
    """Return in words how numbers are written; nothing for decimal points without groups."""
    parts = ["decimal commas"] if decimal == "," else []
    parts += [f"thousands grouped by '{thousands}'"] if thousands else []
    return f" with {' and '.join(parts)}" if parts else ""


def decode(raw: bytes, declared: str | None, shown: str) -> tuple[str, str, list[str]]:
    """Return the text of a file, its encoding, and doubts about it; `shown` names the file in messages.

    Raise DataError, with the line, for bytes that are not text of that encoding.
    """
    encoding = declared or next((name for mark, name in _MARKS.items() if raw.startswith(mark)), "utf-8")
    doubts = []
    try:
        text = raw.decode(encoding)
    except UnicodeDecodeError as error:
        if declared is not None or encoding != "utf-8":
            raise DataError(_not_decoded(raw, error, encoding, shown)) from None
        encoding, line = FALLBACK, raw.count(b"\n", 0, error.start) + 1
        try:
            text = raw.decode(encoding)
        except UnicodeDecodeError as second:
            raise DataError(_not_decoded(raw, second, "UTF-8 or cp1252", shown)) from None
        word = _word_at(text, error.start)
        taken = f"it is not UTF-8 and was taken for {FALLBACK}, in which line {line} reads '{word}'"
        advice = f'confirm this with read = {{ encoding = "{FALLBACK}" }}, or name another encoding, such as "cp1250"'
        doubts = [f"{shown}: {taken}; {advice}"]
    except UnicodeError as error:  # of encodings that are not meant for files
        raise DataError(f"'{shown}' is not {encoding} text: {error}; name its encoding in `read`") from None
    if declared is not None:
        text = text.removeprefix("\ufeff")
    if "\0" in text:
        raise DataError(_with_nul(text, shown))
    return text, encoding, doubts


def recognise_separator(text: str, columns: int | None, usual: str, shown: str) -> tuple[str, list[str]]:
    """Return the separator of a text's cells, and doubts about it.

    The best separator divides the most lines of a sample into as many cells as the header has, or as `columns` says.
    If none divides the header, the `usual` one is returned: the file has a single column.
    """
    sample = _sample(text)
    shares = {}
    for separator in SEPARATORS:
        rows = _rows(sample, separator)
        width = columns or (len(rows[0]) if rows else 0)
        if width > 1:
            shares[separator] = sum(len(row) == width for row in rows) / len(rows)
    best = max(shares.values(), default=0.0)
    fitting = [separator for separator, share in shares.items() if share == best > 0]
    if not fitting:
        return usual, []
    chosen = usual if usual in fitting and usual == "\t" else fitting[0]
    others = [separator for separator in fitting if separator != chosen]
    if not others:
        return chosen, []
    words = f"its cells are separated by {chosen!r} or by {others[0]!r}, and {chosen!r} was taken"
    other, taken = toml_value(others[0]), toml_value(chosen)
    advice = f"change this with read = {{ separator = {other} }}, or confirm it with {taken}"
    return chosen, [f"{shown}: {words}; {advice}"]


def recognise_quote(text: str, separator: str) -> str:
    """Return the character that quotes cells: an apostrophe if every name in the first line has a pair of them."""
    first = next((line for line in io.StringIO(_sample(text), newline="") if line.strip()), "")
    cells = [cell.strip() for cell in first.split(separator)]
    named = [cell for cell in cells if cell]
    return "'" if named and all(len(cell) > 1 and cell[0] == cell[-1] == "'" for cell in named) else '"'


def announced_separator(text: str) -> tuple[str, int]:
    """Return the separator in a first line such as `sep=;`, and the length of this line; ("", 0) without one."""
    found = _ANNOUNCED.match(text)
    return (found[1], found.end()) if found else ("", 0)


def probable_separator(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str | None:
    """Return the character that probably separates the cells of a table that was read as a single column."""
    if len(names) != 1 or not rows:
        return None
    texts = [names[0], *(row[0] for row in rows[:SAMPLED_LINES] if row)]
    for mark in (":", "^", "~", "#", "&", " "):
        counts = {len(text.split(mark)) for text in texts}
        if len(counts) == 1 and counts != {1}:
            return mark
    return None


def _rows(sample: str, separator: str) -> list[list[str]]:
    try:
        return [row for row in csv.reader(io.StringIO(sample, newline=""), delimiter=separator) if row]
    except csv.Error:  # a quote that is never closed, which is reported when the whole file is read
        return []


def _sample(text: str) -> str:
    """Return the first lines of a text; the last one only if it is whole."""
    part = text[:SAMPLED_CHARACTERS]
    lines = io.StringIO(part, newline="").readlines()
    if len(part) < len(text) and len(lines) > 1:
        lines = lines[:-1]
    return "".join(lines[:SAMPLED_LINES])


def _word_at(text: str, place: int) -> str:
    """Return the word around a character."""
    start = next((i + 1 for i in range(place, max(place - 20, -1), -1) if not text[i].isalnum()), max(place - 20, 0))
    found = re.match(r"\w+", text[min(start, place) :])
    return found[0][:40] if found else text[place]


def _not_decoded(raw: bytes, error: UnicodeDecodeError, encoding: str, shown: str) -> str:
    line = raw.count(b"\n", 0, error.start) + 1
    what = f"'{shown}', line {line}: the byte 0x{raw[error.start]:02x} is not {encoding} text"
    return f'{what}; name its encoding, as in read = {{ encoding = "cp1250" }}, or save it as UTF-8'


def _with_nul(text: str, shown: str) -> str:
    place = text.index("\0")
    if text[: SAMPLED_LINES * 2].count("\0") > min(len(text), SAMPLED_LINES * 2) // 4:
        encoding = "utf-16-be" if place == 0 else "utf-16-le"
        return (
            f"'{shown}' looks like UTF-16 without a byte order mark; "
            f'add read = {{ encoding = "{encoding}" }}, or save it as UTF-8'
        )
    line = text.count("\n", 0, place) + 1
    return f"'{shown}', line {line}: it holds a NUL byte, so it is not text or damaged; export or copy it again"
