"""Views whose annotation is one name: a target is the column of an answer, (B,), -1 = not annotated."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from fedaccord.errors import DataError
from fedaccord.evaluation.metrics import accuracy, confusion
from fedaccord.labels.space import LabelSpace
from fedaccord.labels.views.base import NOT_ANNOTATED, View
from fedaccord.labels.views.cells import check_labels, is_missing, not_a_label, raise_problems
from fedaccord.labels.views.context import LabelArrays
from fedaccord.lazy import Tensor, torch


class OneName(View):
    """One of the answers for each sample; the shared part of exact, coarse and missing labels."""

    one_name = True
    stacks: ClassVar[tuple[str, ...] | None] = ()

    def encode(self, raw: Iterable[Any], where: str = "annotations", first: int = 1) -> Tensor:
        """Read names."""
        space = LabelSpace(self.answers)
        column = {name: space.column(name) for name in self.allowed_names}
        found, problems = [], []
        for row, value in enumerate(raw, start=first):
            if is_missing(value):
                found.append(NOT_ANNOTATED)
            elif (name := str(value).strip()) in column:
                found.append(column[name])
            else:
                problems.append(not_a_label(str(value), row, self.allowed_names))
        raise_problems(problems, where)
        return torch.tensor(found, dtype=torch.long)

    def read_arrays(self, arrays: LabelArrays, where: str) -> Tensor:
        """Read the names of the numbers in `y`."""
        if arrays.y is None:
            raise DataError(f"{where}: a view of kind '{self.kind}' needs an array 'y'")
        found = [arrays.names[c] if c >= 0 else None for c in arrays.y.tolist()]
        used = [[] if name is None else [name] for name in found]
        check_labels(used, arrays.names, self.allowed_names, where)
        return self.encode(found, where)

    def annotated(self, target: Tensor) -> Tensor:
        """Return which samples have a name."""
        return target != NOT_ANNOTATED

    def exchanged(self, target: Tensor, order: Tensor) -> Tensor:
        """Return the columns of the exchanged names."""
        return torch.where(target >= 0, order[target.clamp(min=0)], target)

    def judge(self, logits: Tensor, target: Tensor, truth: Tensor | None) -> tuple[dict[str, float], Tensor]:
        """Return the accuracy in the site's own answers."""
        counts = confusion(target, self.answer(logits).argmax(-1), len(self.answers))
        return accuracy(counts), counts

    def names_in(self, target: Tensor) -> Tensor:
        """Return the name of each annotation, one-hot."""
        return target[:, None] == torch.arange(len(self.answers))
