"""What a view is built from and reads: its declaration, what surrounds it, and labels as arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import Parameter, signature
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, Field, create_model

from fedaccord.errors import ConfigError, UserError
from fedaccord.labels.synonyms import Renaming, rename_all
from fedaccord.lazy import Array, np

Names = Annotated[list[str], Field(min_length=1)]


class ViewDeclaration(BaseModel, extra="forbid", frozen=True, strict=True, defer_build=True):
    """The settings of one view in a config file; a view's own class adds its keys.

    Every key besides `kind` is passed to the view's constructor, unless the view overrides `from_declaration`.
    """

    needs_label: ClassVar[bool] = True  # a table must have a label column

    kind: str

    @classmethod
    def argument_keys(cls, special: Sequence[str]) -> list[str]:
        """Return the keys that are arguments of the view: all but `kind` and special ones."""
        return [key for key in cls.model_fields if key not in ("kind", *special)]

    @classmethod
    def of_any_kind(cls) -> type[ViewDeclaration]:
        """Return the declaration of a subclass of the view: that of a built-in view allows one kind only."""
        pinned = cls.model_fields["kind"].annotation is not str
        return create_model(cls.__name__, __base__=cls, kind=(str, ...)) if pinned else cls

    @property
    def knows_own(self) -> bool:
        """Whether the site knows the labels that occur in its data, instead of a list of names."""
        return getattr(self, "known", None) == "own"

    @property
    def is_unexplained(self) -> bool:
        """Whether the annotations use names whose meaning in the federation's labels is not declared."""
        return False

    @property
    def is_generated(self) -> bool:
        """Whether a study draws the annotations from true labels although the data may have some."""
        return False

    @property
    def needs_clean_model(self) -> bool:
        """Whether a study draws the annotations from the predictions of a model trained on true labels."""
        return False

    def for_label_sets(self) -> Self:
        """Return the declaration of a site to which a partition deals a set of labels."""
        return self

    @property
    def own_names(self) -> Sequence[str] | None:
        """The names of annotations that are declared and are not labels of the federation; None if there are none."""
        return None

    def with_known(self, names: list[str] | None) -> Self:
        """Return the declaration with these names for the labels that the site knows."""
        return self

    def renamed(self, names: Renaming) -> Self:
        """Return the declaration with the federation's names for the labels that it lists in `known`."""
        known = getattr(self, "known", None)
        return self.model_copy(update={"known": rename_all(known, names)}) if isinstance(known, list) else self

    def occurring(self, labels: LabelArrays) -> Array:
        """Return the columns of the labels that occur in the data of a site that knows its own labels."""
        return np.empty(0, dtype=np.int64) if labels.y is None else np.unique(labels.y)


class KnownDeclaration(ViewDeclaration):
    """A view of some or all labels of the federation."""

    known: Names | Literal["own"] | None = Field(
        None, description='labels that the site knows; "own": those that occur in its data; left out: all'
    )

    def for_label_sets(self) -> Self:
        """Return a site that knows the labels it is dealt, unless it names others."""
        return self.model_copy(update={"known": "own"}) if self.known is None else self

    def with_known(self, names: list[str] | None) -> Self:
        """Return the declaration with these known labels."""
        return self.model_copy(update={"known": names})


def arguments(view: Any, declared: ViewDeclaration) -> dict[str, Any]:
    """Return the keys of a declaration as arguments of a view's constructor; ConfigError if it takes others."""
    keys = declared.argument_keys(view.special_keys)
    _, *takes = signature(view).parameters.values()
    named = [p.name for p in takes if p.kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)]
    # Every view has `known`, and `describe` writes it if it is given.
    if lacking := [name for name in named if name not in (*keys, *view.special_keys, "known")]:
        raise ConfigError(f"the constructor of the view '{view.kind}' takes '{lacking[0]}', which is no declared key")
    if unused := [key for key in keys if key not in named and len(named) == len(takes)]:
        raise ConfigError(f"the view '{view.kind}' has the key '{unused[0]}', which its constructor lacks")
    return {key: getattr(declared, key) for key in keys}


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
    y: Array | None = None  # int64 (rows,): true class, or in a site's file its annotation; -1 = none
    tags: Array | None = None  # int8 (rows, names): 1, 0, -1 = not annotated
    candidates: Array | None = None  # bool (rows, names)
    chances: Array | None = None  # float (rows, names): predictions of a model trained on true classes
