"""The candidates view: a set of labels that holds the true one."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from fedaccord.errors import ConfigError, DataError, refuse_unused
from fedaccord.labels import corruption
from fedaccord.labels.space import check_labels, columns_of, raise_problems, split_names
from fedaccord.labels.views.base import View
from fedaccord.labels.views.declaration import KnownDeclaration, LabelArrays
from fedaccord.labels.views.exact import Exact
from fedaccord.labels.views.likelihoods import below_top, log_mask
from fedaccord.lazy import Array, Tensor, np, torch

DRAWN_BY = {"uniform": ("q",), "class": ("following", "other"), "instance": ("rho", "normalise", "temperature")}
BOUNDS = ("min_size", "drop_full")  # of drawn sets


class CandidatesView(KnownDeclaration):
    """A set of labels that holds the true one."""

    kind: Literal["candidates"] = "candidates"
    generate: Literal["uniform", "superset", "class", "instance"] | None = Field(
        None, description="how a study generates candidate sets from true labels; left out: the data contain them"
    )
    q: float = Field(0.3, ge=0, le=1, description="uniform: probability of each wrong label")
    following: float = Field(0.5, ge=0, le=1, description="class: probability of the next class")
    other: float = Field(0.1, ge=0, le=1, description="class: probability of every other class")
    rho: float = Field(0.4, ge=0, le=1, description="instance: scale of the probabilities of wrong labels")
    normalise: Literal["mean", "none"] = Field("mean", description="instance: normalisation of the probabilities")
    temperature: float = Field(
        7.0, gt=0, description="instance: softmax temperature of the clean network; 1: unchanged"
    )
    min_size: int = Field(1, ge=1, description="smallest size of a set")
    drop_full: bool = Field(True, description="draw again if a set contains every label")

    @model_validator(mode="after")
    def _every_key_does_something(self) -> CandidatesView:
        if self.generate is None:
            refuse_unused(self, [*chain(*DRAWN_BY.values()), *BOUNDS], "unless generate is set")
        for kind, keys in DRAWN_BY.items():
            if kind != self.generate:
                refuse_unused(self, keys, f'unless generate = "{kind}"')
        if self.generate == "superset":
            refuse_unused(self, BOUNDS, "if all sets are equally likely")
        return self

    @property
    def is_generated(self) -> bool:
        """Whether a study draws the sets from true labels."""
        return self.generate is not None

    @property
    def needs_clean_model(self) -> bool:
        """Whether the sets are drawn from the predictions of a model trained on true labels."""
        return self.generate == "instance"

    def occurring(self, labels: LabelArrays) -> Array:
        """Return the labels of the data's sets; without sets, of its true classes."""
        if self.generate is None and labels.candidates is not None:
            return np.flatnonzero(labels.candidates.any(0))
        return super().occurring(labels)


class Candidates(View):
    """A set of labels that holds the true one. Target: bool (B, C), or shares between 0 and 1 of mixed sets."""

    kind = "candidates"
    Declaration = CandidatesView
    special_keys = ("generate", *chain(*DRAWN_BY.values()), *BOUNDS)  # of `generate` alone
    ambiguous = True
    judges_unannotated = True
    separator = "|"
    names_are_labels = True
    stacks: ClassVar[tuple[str, ...] | None] = ()
    letter, colour, words = "C", "#f8dfa6", "candidate sets"
    counts_heading = "sets that hold it"
    unannotated_words = "excludes nothing"
    silent_warning = "its candidate sets never exclude anything: each holds every label, so they teach nothing"

    def encode(self, raw: Iterable[Any], where: str = "annotations", first: int = 1) -> Tensor:
        """Read sets written `a|b|c` or given as sequences; an empty value excludes nothing."""
        columns = self.space.columns(self.allowed_names)
        rows, problems = [], []
        for row, value in enumerate(raw, start=first):
            names = split_names(value, "|")
            if names is None:
                rows.append(columns)
            elif not names:
                problems.append(f"row {row}: the candidate set is empty")
            elif "" in names:
                outside = "after the last bar" if names[0] else "before the first bar"
                place = "between the bars" if "" in names[1:-1] else outside
                problems.append(f"row {row}: a name is missing {place} of '{'|'.join(names)}'")
            else:
                rows.append(columns_of(names, self.space, self.allowed_names, row, problems))
        raise_problems(problems, where)
        target = torch.zeros(len(rows), len(self.space), dtype=torch.bool)
        for row, wanted in enumerate(rows):
            target[row, wanted] = True
        return target

    def read_arrays(self, arrays: LabelArrays, where: str) -> Tensor:
        """Read the array `candidates`."""
        if arrays.candidates is None:
            raise DataError(f"{where}: a view of candidates needs an array 'candidates'")
        sets = [[arrays.names[c] for c in np.flatnonzero(row).tolist()] for row in arrays.candidates]
        check_labels(sets, arrays.names, self.allowed_names, where)
        return self.encode(sets, where)

    def truth_in(self, arrays: LabelArrays, target: Tensor, where: str) -> Tensor | None:
        """Return the true classes in `y`."""
        return None if arrays.y is None else Exact(self.space).read_arrays(arrays, where)

    def observable(self, arrays: LabelArrays, declared: CandidatesView) -> Array:
        """Return the samples of a known class, and with a known candidate."""
        seen, known = np.ones(arrays.rows, dtype=bool), self.informs().numpy()
        if arrays.y is not None:
            seen &= known[arrays.y]
        elif arrays.candidates is None:
            return super().observable(arrays, declared)
        if arrays.candidates is not None and not declared.is_generated:
            seen &= (arrays.candidates & known).any(1)
        return seen

    def generate(self, arrays: LabelArrays, declared: CandidatesView, rng: np.random.Generator) -> Tensor:
        """Draw sets among the known labels, or take those of the data."""
        known = self.informs().numpy()
        if declared.generate is None:
            if arrays.candidates is None:
                raise DataError("the data has no candidate sets; give view.generate to make them")
            return torch.from_numpy(arrays.candidates & known)
        if arrays.y is None:
            raise ConfigError("view.generate makes candidate sets from true classes, and the data has no array 'y'")
        columns = np.flatnonzero(known)
        y = np.searchsorted(columns, arrays.y)  # samples of other classes were left out
        sets = np.zeros((len(y), len(known)), dtype=bool)
        sets[:, columns] = _draw(declared, y, columns, len(known), arrays.chances, rng)
        return torch.from_numpy(sets)

    def nll(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return -log of the candidates' joint probability."""
        if target.is_floating_point():
            return super().nll(logits, target)
        z = below_top(self.adjusted(logits))
        return torch.logsumexp(z, -1) - torch.logsumexp(z.masked_fill(~target, float("-inf")), -1)

    def evidence(self, target: Tensor) -> Tensor:
        """Return zero on the candidates, minus infinity elsewhere; the log of a share in a mixed set."""
        return target.log() if target.is_floating_point() else log_mask(target)

    def annotated(self, target: Tensor) -> Tensor:
        """Return which sets exclude a known label; an empty set says nothing.

        In a mixed set a share below one is less than a candidate, so it excludes in part.
        """
        return ((target < 1) & self.informs().to(target.device)).any(-1) & (target > 0).any(-1)

    def candidate_shares(self, target: Tensor) -> Tensor | None:
        """Return the sets, or the shares of mixed ones among the known labels."""
        sets = self.candidate_sets(target)
        return target * self.possible_labels().to(target.device) if sets is None else sets

    def exchanged(self, target: Tensor, order: Tensor) -> Tensor:
        """Return the sets of the exchanged labels."""
        return target[:, order]

    def set_size(self, target: Tensor) -> float | None:
        """Return the mean number of candidates."""
        return float(target.sum(1).double().mean())


def _draw(
    declared: CandidatesView, y: Array, columns: Array, labels: int, chances: Array | None, rng: np.random.Generator
) -> Array:
    least, drop = declared.min_size, declared.drop_full
    if declared.generate == "uniform":
        return corruption.uniform_candidates(y, len(columns), declared.q, rng, least, drop)
    if declared.generate == "superset":
        alone = np.ones((len(y), 1), dtype=bool)  # one label has one set
        return alone if len(columns) == 1 < labels else corruption.superset_candidates(y, len(columns), rng)
    if declared.generate == "class":
        flips = corruption.cyclic_flips(labels, declared.following, declared.other)[np.ix_(columns, columns)]
        return corruption.class_dependent_candidates(y, flips, rng, least, drop)
    assert chances is not None
    rates = corruption.instance_rates(chances[:, columns], y, declared.rho, declared.normalise, declared.temperature)
    return corruption.draw_candidates(rates, y, rng, least, drop)
