"""The coarse view: a label of another criterion, related to the classes by a correspondence."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from fedaccord.errors import ConfigError, CorrespondenceError, did_you_mean, listed
from fedaccord.evaluation.metrics import NOT_ANNOTATED
from fedaccord.labels import corruption
from fedaccord.labels.correspondence import SMALLEST, Groups, correspondence_matrix, readable_groups, uniform_matrix
from fedaccord.labels.space import LabelSpace
from fedaccord.labels.synonyms import Renaming, rename, rename_all
from fedaccord.labels.views.base import View
from fedaccord.labels.views.declaration import LabelArrays, Names, ViewContext, ViewDeclaration, arguments
from fedaccord.labels.views.exact import Exact, OneName
from fedaccord.labels.views.likelihoods import log_mask
from fedaccord.lazy import Array, Tensor, np, torch


class CoarseView(ViewDeclaration):
    """A label of another criterion."""

    kind: Literal["coarse"] = "coarse"
    correspondence: Annotated[dict[str, list[str] | dict[str, float]], Field(min_length=1)] | str | None = Field(
        None,
        description="coarse names with the classes (or probabilities) of each; or a grouping that the data set names",
    )
    names: Names | None = Field(
        None, description="coarse names with an unknown correspondence, which accord and fedmt estimate"
    )

    @model_validator(mode="after")
    def _one_of_both(self) -> CoarseView:
        if (self.correspondence is None) == (self.names is None):
            given = "neither is" if self.names is None else "both are"
            raise ValueError(f"a coarse view needs 'correspondence', or 'names' alone; {given} given")
        return self

    @property
    def is_unexplained(self) -> bool:
        """Whether the names are given alone."""
        return self.correspondence is None

    @property
    def own_names(self) -> Sequence[str] | None:
        """The coarse names, unless they are those of a grouping of the data set."""
        return None if isinstance(self.correspondence, str) else list(self.correspondence or self.names or ())

    def renamed(self, names: Renaming) -> Self:
        """Return the declaration with the federation's names for the classes of its correspondence."""
        groups = self.correspondence
        if not isinstance(groups, dict):
            return self
        renamed = {coarse: _renamed_classes(classes, names) for coarse, classes in groups.items()}
        return self.model_copy(update={"correspondence": renamed})


def _renamed_classes(classes: list[str] | dict[str, float], names: Renaming) -> list[str] | dict[str, float]:
    if isinstance(classes, list):
        return rename_all(classes, names)
    renamed: dict[str, float] = {}
    for word, chance in classes.items():
        if renamed.setdefault(rename(word, names), chance) != chance:
            raise ConfigError(
                f"the correspondence gives two probabilities for '{rename(word, names)}', one as '{word}'"
            )
    return renamed


class Coarse(OneName):
    """A label of another criterion. Target: coarse column (B,), -1 = not annotated.

    `P(coarse | class)` is given as a correspondence. With `names` alone it is unknown: the likelihood then says
    nothing, and a method has to estimate what the names stand for (`with_matrix`).
    """

    kind = "coarse"
    Declaration = CoarseView
    special_keys = ("correspondence", "names")
    has_own_names = True
    letter, colour, words = "G", "#b5e2d3", "labels in groups"

    def __init__(
        self, space: LabelSpace, correspondence: Groups | None = None, names: Iterable[str] | None = None
    ) -> None:
        super().__init__(space)
        if correspondence is not None:
            matrix = correspondence_matrix(correspondence, space)
            self.coarse = LabelSpace(correspondence)
            if names is not None:
                raise ConfigError("a coarse view has a correspondence, which names its labels, or names alone")
        elif names is not None:
            self.coarse = LabelSpace(names)
            matrix = uniform_matrix(len(self.coarse), len(space))
        else:
            raise ConfigError("a coarse view needs a correspondence, or the names of its labels")
        self.groups = correspondence
        self.is_known = correspondence is not None
        self._matrix, self._log_matrix = matrix, matrix.log()
        seen = matrix.sum(0) > 0
        if not bool(seen.all()):  # the site does not know a class under no coarse label
            self.offset = log_mask(seen)

    @classmethod
    def from_declaration(cls, declared: CoarseView, space: LabelSpace, context: ViewContext) -> Coarse:
        """Build the view; report a wrong correspondence to the context, and leave out its wrong entries."""
        groups, settings = declared.correspondence, arguments(cls, declared)
        if groups is None:
            return cls(space, names=declared.names, **settings)
        if isinstance(groups, str):
            if groups not in context.groupings:
                hint = did_you_mean(groups, context.groupings)
                raise ConfigError(f"the data set names no grouping '{groups}'; {hint}")
            groups = {name: list(members) for name, members in context.groupings[groups].items()}
        try:
            return cls(space, groups, **settings)
        except CorrespondenceError as error:
            context.report(error.at(context.where) if context.where else error)
            return cls(space, readable_groups(groups, space), **settings)

    def describe(self) -> dict[str, Any]:
        """Return the view as a config file writes it."""
        if self.groups is None:
            return super().describe() | {"names": list(self.coarse.names)}
        groups = {k: dict(v) if isinstance(v, Mapping) else list(v) for k, v in self.groups.items()}
        return super().describe() | {"correspondence": groups}

    def with_matrix(self, matrix: Tensor | None) -> Coarse:
        """Return this view with an estimated correspondence in place of a declared one; None: not estimated yet."""
        view = copy.copy(self)
        view.offset, view.estimated, view.is_known = None, True, matrix is not None
        view._matrix = uniform_matrix(len(self.coarse), len(self.space)) if matrix is None else matrix
        view._log_matrix = view.matrix.clamp(min=SMALLEST).log()  # an estimate never excludes an annotation
        return view

    def in_classes(self) -> View:
        """Return the view that answers in the federation's classes."""
        return Exact(self.space).with_offset(self.offset)

    @classmethod
    def stack(cls, views: Sequence[Self], device: torch.device | None = None) -> Self:
        """Stack the matrices as well; rows that pad a site with fewer names are never looked up."""
        stacked = super().stack(views, device)
        matrices = [view._log_matrix for view in views]
        stacked._log_matrix = torch.nn.utils.rnn.pad_sequence(matrices, batch_first=True).to(device)
        return stacked

    @classmethod
    def class_names(cls, declared: CoarseView, cells: Callable[[], set[str]]) -> set[str]:
        """Return the classes of the correspondence."""
        groups = declared.correspondence
        return {name for members in groups.values() for name in members} if isinstance(groups, dict) else set()

    @property
    def declared_names(self) -> tuple[str, ...]:
        """The coarse names."""
        return self.coarse.names

    @property
    def answers(self) -> tuple[str, ...]:
        """The coarse names."""
        return self.coarse.names

    @property
    def matrix(self) -> Tensor:
        """P(coarse name | class): (A, C)."""
        return self._matrix

    def informs(self) -> Tensor:
        """Return the classes that a coarse name stands for; none if that is unknown."""
        if self.groups is None and not self.estimated:
            return torch.zeros(len(self.space), dtype=torch.bool)
        return super().informs()

    def evidence(self, target: Tensor) -> Tensor:
        """Return the row log M[coarse label]; zero for a sample without annotation."""
        names, matrix = target.clamp(min=0), self._log_matrix.to(target.device)
        if matrix.ndim == 3:  # of several sites
            rows = matrix[torch.arange(len(target), device=target.device)[:, None], names]
        else:
            rows = matrix[names]
        return torch.where((target == NOT_ANNOTATED)[..., None], torch.zeros_like(rows), rows)

    def answer(self, logits: Tensor) -> Tensor:
        """Return the probabilities of the coarse labels, M p."""
        fine = torch.softmax(self.adjusted(logits), -1)
        return fine @ self.matrix.to(fine).T

    def names_digest(self) -> str | None:
        """Return the number of coarse names and a digest of them."""
        digest = hashlib.blake2b("\x1f".join(self.answers).encode(), digest_size=8)
        return f"{len(self.answers)}:{digest.hexdigest()}"

    def observable(self, arrays: LabelArrays, declared: Any) -> Array:
        """Return the samples of the classes that a coarse name stands for."""
        seen = super().observable(arrays, declared)
        return seen if self.is_known else np.ones_like(seen)

    def generate(self, arrays: LabelArrays, declared: Any, rng: np.random.Generator) -> Tensor:
        """Draw a coarse label of each true class."""
        if not self.is_known:
            raise ConfigError("view.names is for sites with their own files; [data] needs a correspondence")
        assert arrays.y is not None
        return torch.from_numpy(corruption.coarse_annotations(arrays.y, self.matrix.numpy(), rng))

    def exchangeable(self) -> Tensor:
        """Return all coarse names."""
        return torch.ones(len(self.answers), dtype=torch.bool)

    def marks(self, target: Tensor) -> list[object]:
        """Return the correspondence's column of each class."""
        return [tuple(column) for column in self.matrix.T.tolist()] if self.is_known else [None] * len(self.space)

    def warnings(self, site: str) -> list[str]:
        """Return sentences on names of unknown meaning, and on classes that no name covers."""
        if not self.is_known:
            what = f"site '{site}' has coarse names, but nobody says what they stand for"
            return [f"{what}; accord and fedmt estimate it, from the server's labelled samples or other sites' labels"]
        uncovered = [name for name, known in zip(self.space, self.informs().tolist(), strict=True) if not known]
        what = f"no coarse label of site '{site}' covers {listed(uncovered)}"
        return [f"{what}; the site is taken not to know them"] if uncovered else []

    @classmethod
    def in_words(cls, described: Mapping[str, Any], taught: int, labels: int) -> str:
        """Return the number of groups."""
        names = described.get("correspondence") or described.get("names") or ()
        meaning = " of unknown meaning" if "names" in described else ""
        return f"labels in {len(names)} group{'s' * (len(names) != 1)}{meaning}"
