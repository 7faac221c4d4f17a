"""Columns whose cells are not what a feature should be: dates, and numbers that are read as words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from fedaccord.data.tables import Table, are_missing, read_numbers
from fedaccord.errors import first_problems
from fedaccord.lazy import Array, np

HALF = 0.5  # share of cells that makes a column one of dates, or of numbers
SAMPLED = 1000  # cells that decide whether a column is one of dates
SHOWN = 4
_MONTHS = r"(?:jan|feb|mar|apr|may|mai|jun|jul|aug|sep|oct|okt|nov|dec|dez)[a-zä]*\.?"
_TIME = r"(?:[T ]+\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?(?: ?[AP]M)?(?:Z| ?[+-]\d{2}:?\d{2})?)?"
_YEAR_FIRST = re.compile(rf"\d{{4}}([-/.])(\d{{1,2}})(?:\1(\d{{1,2}}))?{_TIME}", re.IGNORECASE)
_YEAR_LAST = re.compile(rf"(\d{{1,2}})([-/.])(\d{{1,2}})\2(?:\d{{4}}|\d{{2}}){_TIME}", re.IGNORECASE)
_IN_WORDS = re.compile(
    rf"(?:\d{{1,2}}[-. ]*{_MONTHS}[-. ,]*\d{{2,4}}|{_MONTHS} ?\d{{1,2}},? \d{{4}}){_TIME}", re.IGNORECASE
)
_NUMBER = r"[+-]?(?:\d+(?:[.,]\d+)*|[.,]\d+)"
_COMPARED = re.compile(rf"(?:[<>≤≥~≈=]{{1,2}}|ca\.|approx\.?) *{_NUMBER}", re.IGNORECASE)
_PRICED = re.compile(rf"[$€£¥] *{_NUMBER}")
# A unit or a mark. A single letter right behind the digits is a grade, such as 1a, and 2nd is a rank.
_MEASURED = re.compile(rf"{_NUMBER}(?: *[%°*†‡!?+#]+| +[^\W\d_]+| *(?!st\b|nd\b|rd\b|th\b)[^\W\d_]{{2,}})[^\s,;]*")
_COMMA = re.compile(r"[+-]?\d*,\d+")


@dataclass(frozen=True)
class NumbersAsWords:
    """A column that is read as words although most of its cells hold numbers."""

    name: str
    holding: int  # cells that are or contain numbers
    given: int  # cells that are not missing
    others: tuple[tuple[str, int], ...]  # cells that are not plain numbers, and their counts, most frequent first

    @property
    def has_commas(self) -> bool:
        """Whether some of its numbers have a decimal comma."""
        return any(_COMMA.fullmatch(cell) for cell, _ in self.others)

    @property
    def has_marks(self) -> bool:
        """Whether some cells are numbers with a unit or another mark; otherwise the others are words."""
        return any(holds_number(cell) for cell, _ in self.others)

    def describe(self) -> str:
        """Return a sentence with counts and examples."""
        cells = [f"'{cell}' ({count} {'cell' if count == 1 else 'cells'})" for cell, count in self.others]
        read = f"column '{self.name}' is read as words, although {self.holding} of {self.given} cells hold numbers"
        return f"{read}: {first_problems(cells, SHOWN, ', ')}"


def is_date(cell: str) -> bool:
    """Return whether a cell is a date, with or without a time."""
    if found := _YEAR_FIRST.fullmatch(cell):
        return 1 <= int(found[2]) <= 12 and 1 <= int(found[3] or 1) <= 31 and (found[3] is not None or found[1] == "-")
    if found := _YEAR_LAST.fullmatch(cell):
        first, second = sorted((int(found[1]), int(found[3])))
        return 1 <= first <= 12 and second <= 31
    return _IN_WORDS.fullmatch(cell) is not None


def holds_number(cell: str) -> bool:
    """Return whether a cell that is no number contains one: `12 kg`, `<5`, `1.5*`, `3,5`."""
    return any(form.fullmatch(cell) for form in (_COMPARED, _PRICED, _MEASURED, _COMMA))


def first_date(table: Table, name: str, missing: Collection[str]) -> int | None:
    """Return the row of the first date in a column of dates; None for any other column."""
    cells = table.column(name)
    given = Counter(cells[~are_missing(cells, missing)][:SAMPLED].tolist())
    dates = {cell for cell in given if is_date(cell)}
    if not dates or sum(given[cell] for cell in dates) < HALF * sum(given.values()):
        return None
    return next(row for row, cell in enumerate(cells.tolist()) if cell in dates)


def numbers_as_words(table: Table, name: str, missing: Sequence[str]) -> NumbersAsWords | None:
    """Return the numbers in a column that is read as words; None unless half of its cells hold numbers."""
    cells: Array = table.column(name)
    given = Counter(cells[~are_missing(cells, missing)].tolist())
    distinct = np.array(list(given), dtype=object)
    no_numbers = set(distinct[read_numbers(distinct, missing)[1]].tolist())
    holding = sum(number for cell, number in given.items() if cell not in no_numbers or holds_number(cell))
    total = sum(given.values())
    if not no_numbers or holding < max(HALF * total, 1):
        return None
    others = Counter({cell: given[cell] for cell in no_numbers})
    return NumbersAsWords(name, holding, total, tuple(sorted(others.items(), key=lambda pair: (-pair[1], pair[0]))))
