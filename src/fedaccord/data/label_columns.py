"""Label columns of tables: their words, the names that these stand for, and how a view reads them.

The words that mean a missing value in a column of features do not count here, because a class may be called "None" or
"NA". Only empty cells and the words in `labels.missing` mean that a row is not annotated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedaccord.data.declarations import MISSING_WORDS, SiteSection
from fedaccord.data.tables import Cells, Table, by_value
from fedaccord.errors import AnnotationError
from fedaccord.labels.space import LabelSpace, plain
from fedaccord.labels.synonyms import Renaming, rename, rename_annotation
from fedaccord.labels.views import NOT_ANNOTATED, View, ViewDeclaration, view_class

EMPTY = "(empty)"  # how counts name an empty cell
NOT_ANNOTATED_HINT = "; if it means that a row is not annotated, list it in labels.missing"
Index = NDArray[np.int64]


@dataclass(frozen=True)
class LabelWords:
    """Counts of the words in a site's label columns: names, and words taken for "not annotated"."""

    names: dict[str, int] = field(default_factory=dict)
    missing: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class SiteTable:
    """A site's table, its declaration, and its training and test rows."""

    section: SiteSection
    table: Table
    train: Index
    test: Index
    names: Renaming = field(default_factory=dict)  # of the words in its label columns
    missing: Sequence[str] = ()  # words in its label columns that mean: not annotated

    @property
    def labels(self) -> list[str]:
        """The label columns."""
        label = self.section.label
        return [label] if isinstance(label, str) else list(label or [])

    def view(self, space: LabelSpace | None = None) -> ViewDeclaration:
        """Return the declared view; known = "own" becomes the labels of `space` in its file.

        Without a space, `known` is left as it is.
        """
        view = self.section.view
        if space is None or not view.knows_own:
            return view
        return view.with_known(sorted(name for name in self.words().names if name in space) or None)

    def words(self) -> LabelWords:
        """Return the names in the label columns after synonyms, and the words taken for "not annotated"."""
        if isinstance(self.section.label, list):
            flags = Counter(word for label in self.labels for word in self._absent(self.table.column(label)))
            return LabelWords({rename(label, self.names): self.table.rows for label in self.labels}, dict(flags))
        separator = view_class(self.section.view.kind).separator
        names: Counter[str] = Counter()
        missing: Counter[str] = Counter()
        for label in self.labels:
            cells = Counter(self.table.column(label))
            missing += Counter({word or EMPTY: n for word, n in cells.items() if self._is_absent(word)})
            for word, n in cells.items():
                if not self._is_absent(word):
                    parts = word.split(separator) if separator else [word]
                    names.update({name: n for part in parts if (name := plain(rename(part.strip(), self.names)))})
        return LabelWords(dict(names), dict(missing))

    def _absent(self, cells: Cells) -> Iterator[str]:
        return (cell or EMPTY for cell in cells if self._is_absent(cell))

    def _is_absent(self, cell: str) -> bool:
        return not cell or cell in self.missing

    def read(self, view: View, problems: list[str]) -> Tensor:
        """Read the annotations through a view; sentences on wrong cells join `problems`."""
        return read_labels(self.table, self.section.label, view, self.missing, problems, self.names)


def read_labels(
    table: Table,
    label: str | list[str] | None,
    view: View,
    missing: Sequence[str],
    problems: list[str],
    names: Renaming | None = None,
) -> Tensor:
    """Read a table's annotations: one column, or one 0/1 column for each label; wrong cells join `problems`."""
    if label is None:
        return view.encode([None] * table.rows)
    if isinstance(label, list):
        return _flag_columns(table, label, view, missing, problems, names or {})
    return read_column(table, label, view, missing, problems, names)


def read_column(
    table: Table, column: str, view: View, missing: Sequence[str], problems: list[str], names: Renaming | None = None
) -> Tensor:
    """Read one column through a view; a sentence on each wrong cell joins `problems`."""
    words, codes = by_value(table.column(column), missing)
    meant = [None if word is None else rename_annotation(word, view.separator, names or {}) for word in words]
    values = [None if word is None else view.parse(word) for word in meant]
    try:
        targets = view.encode(values)
    except AnnotationError:
        wrong: dict[int, list[str]] = {}
        for code, value in enumerate(values):
            try:
                view.encode([value])
            except AnnotationError as error:
                hint = NOT_ANNOTATED_HINT if words[code] in MISSING_WORDS else ""
                wrong[code] = [problem.partition(": ")[2] + hint for problem in error.problems]
        for row, code in enumerate(codes.tolist()):
            problems += [table.wrong(row, column, what) for what in wrong.get(code, [])]
        targets = view.encode([None if code in wrong else value for code, value in enumerate(values)])
    return targets[torch.from_numpy(codes)]


def _flag_columns(
    table: Table, columns: list[str], view: View, missing: Sequence[str], problems: list[str], names: Renaming
) -> Tensor:
    """Read a 0/1 column for each label; of two columns for one label, either can say that it is present."""
    target = torch.full((table.rows, len(view.space)), NOT_ANNOTATED, dtype=torch.int8)
    for name in columns:
        column = view.space.column(rename(name, names), f"'{table.shown}'")
        words, codes = by_value(table.column(name), missing)
        read = [NOT_ANNOTATED if word is None else view.parse_flag(word) for word in words]
        wrong = {code for code, value in enumerate(read) if value is None}
        rows = [row for row, code in enumerate(codes.tolist()) if code in wrong] if wrong else []
        hint = [NOT_ANNOTATED_HINT if word in MISSING_WORDS else "" for word in words]
        problems += [table.wrong(row, name, f"'{words[codes[row]]}' is not 0 or 1{hint[codes[row]]}") for row in rows]
        values = torch.tensor([NOT_ANNOTATED if value is None else value for value in read], dtype=torch.int8)
        target[:, column] = torch.maximum(target[:, column], values[torch.from_numpy(codes)])
    return target.masked_fill(~view.informs(), NOT_ANNOTATED)
