"""How a table writes its numbers: decimal points or commas, and thousands in groups, recognised from its cells.

`1,5` can only be a decimal comma, `1,234,567` only groups, but `1,234` can be either. Such a cell is decided by the
others; if they do not decide it, the reading that was taken is a doubt for the user to confirm.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fedaccord.data.declarations import MISSING_WORDS, Reading
from fedaccord.data.dialect import Dialect
from fedaccord.lazy import Array

_EXPONENT = r"(?:[eE][+-]?\d+)?"
_SPACES = " \u00a0\u202f"  # also those that do not break a line
_INTEGER = re.compile(r"[+-]?\d+")
_SIMPLE = re.compile(rf"[+-]?\d*(?P<decimal>[.,])\d+{_EXPONENT}")
_GROUPED = re.compile(
    rf"[+-]?(?P<first>\d{{1,3}})(?P<mark>[.,'{_SPACES}])\d{{3}}(?P<more>(?:(?P=mark)\d{{3}})*)"
    rf"(?P<rest>(?P<decimal>[.,])\d+{_EXPONENT})?"
)
_POINT = re.compile(rf"^ *[+-]?(?:0?\.\d+|\d+\.(?:\d{{1,2}}|\d{{4,}})|\d{{4,}}\.\d+){_EXPONENT} *$", re.MULTILINE)
_OTHER = {",": ".", ".": ","}
_MARKS = (".", ",", "'", *_SPACES)


@dataclass
class Evidence:
    """Marks that cells use, each with the first cell that uses it: (row, column, cell)."""

    decimal: dict[str, tuple[int, str, str]] = field(default_factory=dict)
    thousands: dict[str, tuple[int, str, str]] = field(default_factory=dict)
    undecided: dict[str, tuple[int, str, str]] = field(default_factory=dict)  # as in `1,234`

    def settle(self) -> None:
        """Decide `1,234` by the certain cells of the same column."""
        for mark in list(self.undecided):
            if mark in self.decimal or mark in self.thousands or _OTHER[mark] in self.decimal:
                found = self.undecided.pop(mark)
                if mark not in self.decimal:
                    self.thousands.setdefault(mark, found)


@dataclass(frozen=True)
class NumberMarks:
    """The marks of decimals and thousands, and the first cell that can be read in two ways."""

    decimal: str = "."
    thousands: str = ""
    doubtful: tuple[int, str, str] | None = None
    mixed: tuple[tuple[int, str, str], tuple[int, str, str]] | None = None  # a decimal comma and a decimal point


def recognise_marks(columns: Mapping[str, Array], read: Reading, separator: str) -> NumberMarks:
    """Return how the numbers of a table's columns are written; keys of `read` that are given hold."""
    evidence = Evidence()
    for name, cells in columns.items():
        found = _evidence(name, cells)
        found.settle()
        for kind in ("decimal", "thousands", "undecided"):
            for mark, place in getattr(found, kind).items():
                getattr(evidence, kind).setdefault(mark, place)
    if read.decimal is not None or read.thousands is not None:
        return _declared(read, evidence)
    return _decided(evidence, separator)


def _evidence(name: str, cells: Array) -> Evidence:
    """Return the marks in one column; none unless at least half of its cells look like numbers."""
    listed = cells.tolist()
    text = "\n".join(listed)
    if not any(mark in text for mark in _MARKS):
        return Evidence()
    if (certain := _certain_decimal(cells, text)) is not None:
        mark = "," if "," in certain else "."
        return Evidence(decimal={mark: (listed.index(certain), name, certain)})
    counts = Counter(listed)
    for word in MISSING_WORDS:
        counts.pop(word, None)
    numeric, marked = 0, []
    for cell, number in counts.items():
        match = None if cell.isdigit() else _SIMPLE.fullmatch(cell)
        if match is None or cell[-4:-3] in _OTHER:
            match = _GROUPED.fullmatch(cell) or match
        if match is not None:
            marked.append((cell, match))
        if match is not None or _INTEGER.fullmatch(cell):
            numeric += number
    evidence = Evidence()
    if 2 * numeric < sum(counts.values()):
        return evidence
    for cell, match in marked:
        _note(evidence, match, (0, name, cell))
    for found in (evidence.decimal, evidence.thousands, evidence.undecided):
        found.update({mark: (listed.index(cell), name, cell) for mark, (_, _, cell) in found.items()})
    return evidence


def _certain_decimal(cells: Array, text: str) -> str | None:
    """Return a cell with a decimal mark in a column of numbers that use no other mark, which most columns are.

    Return None for any other column, or if every mark may group thousands; `text` has all cells by line.
    """
    commas = "." not in text
    if not _are_floats(_with_points(cells) if commas else cells):
        return None
    found = _POINT.search(text.replace(",", ".") if commas else text)
    return None if found is None else text[found.start() : found.end()].strip()


def _with_points(cells: Array) -> Array:
    return np.array([cell.replace(",", ".") for cell in cells.tolist()], dtype=object)


def _are_floats(cells: Array) -> bool:
    """Return whether Python reads every cell that is not missing as a number."""
    try:
        np.array([cell for cell in cells.tolist() if cell not in MISSING_WORDS], dtype=object).astype(np.float64)
    except ValueError:
        return False
    return True


def _note(evidence: Evidence, match: re.Match[str], place: tuple[int, str, str]) -> None:
    """Add the marks of one number to the evidence."""
    parts = match.groupdict()
    if "mark" not in parts:
        evidence.decimal.setdefault(parts["decimal"], place)
        return
    mark = " " if parts["mark"] in _SPACES else parts["mark"]
    if parts["decimal"] is not None and parts["decimal"] != mark:
        evidence.decimal.setdefault(parts["decimal"], place)
        evidence.thousands.setdefault(mark, place)
    elif mark not in _OTHER or parts["more"]:
        evidence.thousands.setdefault(mark, place)
    elif parts["first"].startswith("0"):
        evidence.decimal.setdefault(mark, place)
    else:
        evidence.undecided.setdefault(mark, place)


def _declared(read: Reading, evidence: Evidence) -> NumberMarks:
    """Return declared marks; a mark that is left out follows from the other one and the cells."""
    seen = {**evidence.undecided, **evidence.thousands}
    if read.decimal is None:
        decimal = "," if read.thousands == "." or ("," in evidence.decimal and read.thousands != ",") else "."
        return NumberMarks(decimal, read.thousands or "")
    if read.thousands is not None:
        return NumberMarks(read.decimal, read.thousands)
    return NumberMarks(read.decimal, next((mark for mark in seen if mark != read.decimal), ""))


def _decided(evidence: Evidence, separator: str) -> NumberMarks:
    decimal, thousands, undecided = evidence.decimal, evidence.thousands, evidence.undecided
    if "," in decimal and "." in decimal:
        return NumberMarks(mixed=(decimal[","], decimal["."]))
    spaced = next((mark for mark in thousands if mark not in _OTHER), "")
    if decimal:
        mark = next(iter(decimal))
        other = _OTHER[mark]
        if other in thousands:
            return NumberMarks(mark, other)
        return NumberMarks(mark, other if other in undecided else spaced, undecided.get(other))
    grouped = next((mark for mark in thousands if mark in _OTHER), "")
    if grouped:
        other = _OTHER[grouped]
        return NumberMarks(other if other in undecided else ".", grouped, undecided.get(other))
    if "," in undecided:
        # Files separated by semicolons usually come from places where a comma is the decimal mark.
        is_decimal = separator == ";" and "." not in undecided
        return NumberMarks("," if is_decimal else ".", spaced if is_decimal else ",", undecided[","])
    return NumberMarks(".", spaced, undecided.get(".") if separator == ";" else None)


def doubts_of(marks: NumberMarks, lines: Sequence[int], shown: str) -> list[str]:
    """Return sentences on cells that can be read in two ways, with the `read` that changes or confirms the reading."""
    if marks.mixed is not None:
        comma, point = (f"'{cell}' (line {lines[row]}, column '{name}')" for row, name, cell in marks.mixed)
        return [
            f"{shown}: numbers are written with a comma, as in {comma}, and with a point, as in {point}; cells with "
            'a comma are read as words; write all of them alike, or add read = { decimal = "," } if the comma is right'
        ]
    if marks.doubtful is None:
        return []
    row, name, cell = marks.doubtful
    mark = "," if "," in cell else "."
    whole, decimal = cell.replace(mark, ""), cell.replace(mark, ".")
    is_decimal = marks.decimal == mark
    taken, other = (decimal, whole) if is_decimal else (whole, decimal)
    keys = {True: f'decimal = "{mark}"', False: f'thousands = "{mark}"'}
    return [
        f"{shown}, line {lines[row]}, column '{name}': '{cell}' was taken for {taken}; if it means {other}, add "
        f"read = {{ {keys[not is_decimal]} }}; confirm {taken} with read = {{ {keys[is_decimal]} }}"
    ]


def with_plain_numbers(columns: Mapping[str, Array], dialect: Dialect) -> dict[str, Array]:
    """Return the columns with their numbers written as Python reads them; other cells and columns are unchanged.

    A column with numbers in fewer than half of its cells is text, and is left alone.
    """
    if (dialect.decimal, dialect.thousands) == (".", ""):
        return dict(columns)
    return {name: _plain_column(cells, dialect) for name, cells in columns.items()}


def _plain_column(cells: Array, dialect: Dialect) -> Array:
    text = "\n".join(cells.tolist())
    if not any(mark in text for mark in {*dialect.decimal, *dialect.thousands, *_SPACES}):
        return cells
    if (dialect.decimal, dialect.thousands) == (",", "") and "." not in text and _are_floats(_with_points(cells)):
        return _with_points(cells)
    pattern = _pattern(dialect)
    counts = Counter(cells.tolist())
    given = sum(number for cell, number in counts.items() if cell not in MISSING_WORDS)
    matching = [cell for cell in counts if pattern.fullmatch(cell)]
    if 2 * sum(counts[cell] for cell in matching) < given:
        return cells
    plain = {cell: _plain(cell, dialect) for cell in matching}
    return np.array([plain.get(cell, cell) for cell in cells.tolist()], dtype=object)


def _pattern(dialect: Dialect) -> re.Pattern[str]:
    mark = f"[{_SPACES}]" if dialect.thousands == " " else re.escape(dialect.thousands)
    groups = rf"\d{{1,3}}(?:{mark}\d{{3}})+|" if dialect.thousands else ""
    point = re.escape(dialect.decimal)
    return re.compile(rf"[+-]?(?:(?:{groups}\d+)(?:{point}\d*)?|{point}\d+){_EXPONENT}")


def _plain(cell: str, dialect: Dialect) -> str:
    for mark in _SPACES if dialect.thousands == " " else dialect.thousands:
        cell = cell.replace(mark, "")
    return cell.replace(dialect.decimal, ".")
