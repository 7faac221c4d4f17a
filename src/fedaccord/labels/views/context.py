"""What a view is built from and reads: the surroundings of its declaration, and labels as arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fedaccord.errors import UserError

if TYPE_CHECKING:
    from numpy.typing import NDArray


def raise_error(error: UserError) -> None:
    """Raise an error that nobody collects."""
    raise error


@dataclass(frozen=True)
class ViewContext:
    """What surrounds a declaration: its place for messages, the data set's groupings, and who collects errors."""

    where: str = ""
    groupings: Mapping[str, Mapping[str, Sequence[str]]] = field(default_factory=dict)  # coarse names and their classes
    report: Callable[[UserError], None] = raise_error  # takes an error after which the view can still be inspected


@dataclass(frozen=True)
class LabelArrays:
    """The labels of a file or a data set as arrays of `rows` rows; columns are those of `names`."""

    rows: int
    names: Sequence[str]
    y: NDArray[Any] | None = None  # int64 (rows,): true class, or in a site's file its annotation; -1 = none
    tags: NDArray[Any] | None = None  # int8 (rows, names): 1, 0, -1 = not annotated
    candidates: NDArray[Any] | None = None  # bool (rows, names)
    chances: NDArray[Any] | None = None  # float (rows, names): predictions of a model trained on true classes
