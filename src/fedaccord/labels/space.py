"""The federation's label space: the only place that turns label cells into names and names into columns."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from numbers import Real
from typing import Any

from fedaccord.errors import AnnotationError, ConfigError, did_you_mean, listed
from fedaccord.labels.alike import folded

_WHOLE = re.compile(r"([+-]?\d+)\.0+")


class LabelSpace:
    """An ordered set of label names."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names: tuple[str, ...] = tuple(str(name) for name in _several(names))
        if not self.names:
            raise ConfigError("a label space needs at least one label name")
        self._columns = {name: column for column, name in enumerate(self.names)}
        if len(self._columns) < len(self.names):
            twice = next(name for name in self.names if self.names.count(name) > 1)
            raise ConfigError(f"the label '{twice}' is named twice in the label space")

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LabelSpace) and self.names == other.names

    def __hash__(self) -> int:
        return hash(self.names)

    def __repr__(self) -> str:
        return f"LabelSpace({list(self.names)!r})"

    def column(self, name: str, where: str = "") -> int:
        """Return the column of a label; raise ConfigError with the closest name for an unknown one."""
        try:
            return self._columns[str(name)]
        except KeyError:
            place = f"{where}: " if where else ""
            hint = did_you_mean(str(name), self.names)
            raise ConfigError(f"{place}'{name}' is not a label of this federation; {hint}") from None

    def columns(self, names: Iterable[str], where: str = "") -> list[int]:
        """Return the columns of several labels, in the given order."""
        return [self.column(name, where) for name in _several(names)]

    def subspace(self, names: Iterable[str]) -> LabelSpace:
        """Return the space of these labels, in the order of this space."""
        wanted = set(self.columns(names))
        return LabelSpace(name for column, name in enumerate(self.names) if column in wanted)


def _several(names: Iterable[str]) -> Iterable[str]:
    """Return the names; raise ConfigError for a single text, whose letters are not meant as labels."""
    if isinstance(names, str):
        raise ConfigError(f"label names are given as a list, as in ['cold', 'flu'], not as the one text '{names}'")
    return names


def plain(cell: str) -> str:
    """Return a name as labels and categories compare it: a whole number is the same with and without `.0`."""
    whole = _WHOLE.fullmatch(cell)
    return whole[1] if whole else cell


def is_missing(value: Any) -> bool:
    """Return whether a raw annotation is empty: None, NaN or blank text."""
    if isinstance(value, str):
        return not value.strip()
    return value is None or (isinstance(value, Real) and value != value)


def split_names(value: Any, separator: str) -> list[str] | None:
    """Return the names in a raw annotation, given as text or as a sequence; None if it is empty."""
    if is_missing(value):
        return None
    if not isinstance(value, Iterable):  # a label whose name is a number
        return [str(value)]
    parts = value.split(separator) if isinstance(value, str) else value
    return [str(part).strip() for part in parts]


def not_a_label(name: str, row: int, allowed: Sequence[str]) -> str:
    """Return the sentence on a name that is not a label here."""
    alike = [label for label in allowed if folded(label) == folded(name)]
    hint = did_you_mean(alike[0], alike) if alike else did_you_mean(name.strip(), allowed)
    return f"row {row}: '{name}' is not one of the labels; {hint}"


def columns_of(
    names: Sequence[str], space: LabelSpace, allowed: Sequence[str], row: int, problems: list[str]
) -> list[int]:
    """Return the columns of the names that are allowed; a sentence on each other one joins `problems`."""
    problems += [not_a_label(name, row, allowed) for name in names if name not in allowed]
    return space.columns(name for name in names if name in allowed)


def raise_problems(problems: list[str], where: str) -> None:
    """Raise AnnotationError if there are any problems."""
    if problems:
        raise AnnotationError(f"{where}: {len(problems)} cannot be read", problems, _each_once(problems))


def _each_once(problems: Sequence[str]) -> list[str]:
    """Return the sentences; of rows with the same problem, the first with the number of others."""
    rows: dict[str, list[str]] = {}
    for problem in problems:
        row, _, what = problem.partition(": ")
        rows.setdefault(what, []).append(row.removeprefix("row "))
    return [f"row {listed(numbers, quotes=False, most=1)}: {what}" for what, numbers in rows.items()]


def check_labels(used: Sequence[Sequence[str]], names: Sequence[str], allowed: Sequence[str], where: str) -> None:
    """Refuse labels of an array file that are not allowed; `used` are the labels of each row, counted from 1."""
    numbers = list(names) == [str(n) for n in range(len(names))]
    hint = "; without an array 'label_names' a file's labels are called 0, 1, 2, ..." if numbers else ""
    problems = []
    for name in names:
        if name not in allowed and (rows := [n for n, row in enumerate(used, start=1) if name in row]):
            at = f" (row {listed([str(row) for row in rows], quotes=False)})"
            problems.append(f"'{name}' is not one of the labels here; {did_you_mean(name, allowed)}{hint}{at}")
    if problems:
        raise AnnotationError(where, problems)
