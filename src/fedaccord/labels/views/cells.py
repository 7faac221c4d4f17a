"""How the text of a label cell becomes names, and names become columns."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any

from fedaccord.errors import AnnotationError, DataError, did_you_mean

if TYPE_CHECKING:
    from fedaccord.labels.space import LabelSpace

_WHOLE = re.compile(r"([+-]?\d+)\.0+")


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
    return f"row {row}: '{name}' is not one of the labels; {did_you_mean(name.strip(), allowed)}"


def columns_of(
    names: Sequence[str], space: LabelSpace, allowed: Sequence[str], row: int, problems: list[str]
) -> list[int]:
    """Return the columns of the names that are allowed; a sentence on each other one joins `problems`."""
    problems += [not_a_label(name, row, allowed) for name in names if name not in allowed]
    return space.columns(name for name in names if name in allowed)


def raise_problems(problems: list[str], where: str) -> None:
    """Raise AnnotationError if there are any problems."""
    if problems:
        raise AnnotationError(f"{where}: {len(problems)} cannot be read", problems)


def check_labels(used: Sequence[Sequence[str]], names: Sequence[str], allowed: Sequence[str], where: str) -> None:
    """Refuse a label of an array file that is not allowed; `used` are the labels of each row, counted from 1."""
    for name in names:
        if name not in allowed and (rows := [n for n, row in enumerate(used, start=1) if name in row]):
            numbers = list(names) == [str(n) for n in range(len(names))]
            hint = "; without an array 'label_names' a file's labels are called 0, 1, 2, ..." if numbers else ""
            more = f" and {len(rows) - 10} more" if len(rows) > 10 else ""
            at = f" (row {', '.join(map(str, rows[:10]))}{more})"
            raise DataError(f"{where}: '{name}' is not one of the labels here; {did_you_mean(name, allowed)}{hint}{at}")
