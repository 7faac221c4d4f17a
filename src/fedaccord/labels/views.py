"""How a site observes the true label. Every view gives the likelihood of its annotations; the rest follows.

A view's `offset` is added to the logits before anything else. It holds the site prior `log pi(y)`, and minus infinity
for labels the site does not know: the restricted softmax is the prior that is zero outside the known labels.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedaccord.errors import AnnotationError, ConfigError, did_you_mean
from fedaccord.labels.correspondence import Groups, correspondence_matrix
from fedaccord.labels.estimation import SMALLEST, uniform_matrix
from fedaccord.labels.space import LabelSpace

NOT_ANNOTATED = -1
HUGE = 1e38  # logits beyond this are as good as infinite


class View(ABC):
    """What a site's annotations say about the true label."""

    kind: ClassVar[str]

    def __init__(self, space: LabelSpace, known: Iterable[str] | None = None) -> None:
        self.space = space
        self.known = None if known is None else space.subspace(known).names
        self.offset: Tensor | None = None
        if self.known is not None:
            self.offset = torch.full((len(space),), float("-inf"))
            self.offset[space.columns(self.known)] = 0.0

    @abstractmethod
    def encode(self, raw: Iterable[Any], where: str = "annotations", first: int = 1) -> Tensor:
        """Turn raw annotations into a target tensor; every value that means nothing is named, rows from `first` on."""

    @abstractmethod
    def nll(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return -log P(annotation) for each sample of a batch: logits (B, C) -> (B,)."""

    def mean_nll(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the mean of `nll` over a batch whose samples are all annotated: what a site minimises."""
        return self.nll(logits, target).mean()

    def evidence(self, target: Tensor) -> Tensor:
        """Return log P(annotation | true label), up to a constant for each row: (B, C)."""
        raise ConfigError(f"a '{self.kind}' view has no evidence about one true label")

    def describe(self) -> dict[str, Any]:
        """Return the view as the experiment file writes it."""
        return {"kind": self.kind} | ({} if self.known is None else {"known": list(self.known)})

    def adjusted(self, logits: Tensor) -> Tensor:
        """Return the logits as this site sees them: with its prior, and without the labels it does not know."""
        if logits.dtype in (torch.float16, torch.bfloat16):
            logits = logits.float()  # a likelihood of half-precision logits overflows
        return logits if self.offset is None else logits + self.offset.to(logits.device)

    def informs(self) -> Tensor:
        """Say for each label whether this site's annotations can teach its head row: bool (C,)."""
        if self.offset is None:
            return torch.ones(len(self.space), dtype=torch.bool)
        return torch.isfinite(self.offset)

    def annotated(self, target: Tensor) -> Tensor:
        """Say for each sample whether its annotation says anything: bool (B,)."""
        return target != NOT_ANNOTATED

    def posterior(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return P(true label | sample, annotation): (B, C)."""
        return torch.softmax(self.adjusted(logits) + self.evidence(target).to(logits.device), -1)

    def with_offset(self, offset: Tensor | None) -> Self:
        """Return this view with another logit offset, e.g. a site prior."""
        view = copy.copy(self)
        view.offset = offset
        return view

    def widened(self) -> Self:
        """Return this view with the softmax over all labels, whatever the site knows."""
        return self.with_offset(None)

    @property
    def answers(self) -> tuple[str, ...]:
        """The names this site's own task decides between."""
        return self.space.names

    def answer(self, logits: Tensor) -> Tensor:
        """Return the probabilities of the site's own answers: (B, len(answers))."""
        return torch.softmax(self.adjusted(logits), -1)


class Exact(View):
    """One true label for each sample, of all classes or of the known ones. Target: column (B,), -1 = not annotated."""

    kind = "exact"

    def encode(self, raw: Iterable[Any], where: str = "annotations", first: int = 1) -> Tensor:
        """Read label names; empty values are samples without annotation."""
        return _read_names(raw, self.space, self.known or self.space.names, where, first)

    def nll(self, logits: Tensor, target: Tensor) -> Tensor:
        """Cross-entropy, restricted to the known labels."""
        # Flattened: cross_entropy takes the second axis for the classes, we always the last.
        z = self.adjusted(logits).flatten(0, -2)
        return F.cross_entropy(z, target.flatten(), ignore_index=NOT_ANNOTATED, reduction="none").view(target.shape)

    def mean_nll(self, logits: Tensor, target: Tensor) -> Tensor:
        """Cross-entropy with the mean in the same call, which is a tenth of a small model's step."""
        return F.cross_entropy(self.adjusted(logits), target, ignore_index=NOT_ANNOTATED)

    def evidence(self, target: Tensor) -> Tensor:
        """Zero at the label, minus infinity elsewhere; zero everywhere where nothing was annotated."""
        same = target[:, None] == torch.arange(len(self.space), device=target.device)
        return _log_mask(same | (target == NOT_ANNOTATED)[:, None])


class Candidates(View):
    """A set of labels that holds the true one. Target: bool (B, C), or shares between 0 and 1 of mixed sets."""

    kind = "candidates"

    def encode(self, raw: Iterable[Any], where: str = "annotations", first: int = 1) -> Tensor:
        """Read sets written `a|b|c` or given as sequences; an empty value excludes nothing."""
        allowed = self.known or self.space.names
        columns = self.space.columns(allowed)
        rows, problems = [], []
        for number, value in enumerate(raw, start=first):
            names = _split(value, "|")
            if names is None:
                rows.append(columns)
            elif not names:
                problems.append(f"row {number}: the candidate set is empty")
            elif "" in names:
                problems.append(f"row {number}: {_missing_name(names)}")
            else:
                rows.append(_columns(names, self.space, allowed, number, problems))
        _raise(problems, where)
        target = torch.zeros(len(rows), len(self.space), dtype=torch.bool)
        for row, wanted in enumerate(rows):
            target[row, wanted] = True
        return target

    def nll(self, logits: Tensor, target: Tensor) -> Tensor:
        """-log of the probability the candidates hold together, in log space so that it stays finite."""
        z = below_top(self.adjusted(logits))
        if target.is_floating_point():
            return torch.logsumexp(z, -1) - torch.logsumexp(z + self.evidence(target), -1)
        return torch.logsumexp(z, -1) - torch.logsumexp(z.masked_fill(~target, float("-inf")), -1)

    def evidence(self, target: Tensor) -> Tensor:
        """Zero on the candidates, minus infinity elsewhere; the log of a share in a mixed set."""
        return target.log() if target.is_floating_point() else _log_mask(target)

    def annotated(self, target: Tensor) -> Tensor:
        """Say for each sample whether its set excludes any label that the site knows; an empty set says nothing.

        In a mixed set a share below one is less than a candidate, so it excludes in part.
        """
        return ((target < 1) & self.informs().to(target.device)).any(-1) & (target > 0).any(-1)


class Coarse(View):
    """A label of another criterion. Target: coarse column (B,), -1 = not annotated.

    `P(coarse | class)` is given as a correspondence. With `names` alone it is not known: the likelihood then says
    nothing, and a method has to find out what the names stand for (`with_matrix`).
    """

    kind = "coarse"

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
        self.estimated = False
        self.is_known = correspondence is not None  # what the names stand for, declared or found out
        self.matrix, self._log_matrix = matrix, matrix.log()
        seen = matrix.sum(0) > 0
        if not bool(seen.all()):  # a class under no coarse label is one the site does not know
            self.offset = _log_mask(seen)

    def with_matrix(self, matrix: Tensor | None) -> Coarse:
        """Return this view with a matrix that was found out in place of the declared one; None: it is not known yet."""
        view = copy.copy(self)
        view.offset, view.estimated, view.is_known = None, True, matrix is not None
        view.matrix = uniform_matrix(len(self.coarse), len(self.space)) if matrix is None else matrix
        view._log_matrix = view.matrix.clamp(min=SMALLEST).log()  # an estimate never excludes what was annotated
        return view

    def informs(self) -> Tensor:
        """Say which classes a coarse name stands for; no label where that is not known."""
        if self.groups is None and not self.estimated:
            return torch.zeros(len(self.space), dtype=torch.bool)
        return super().informs()

    def encode(self, raw: Iterable[Any], where: str = "annotations", first: int = 1) -> Tensor:
        """Read coarse names; empty values are samples without annotation."""
        return _read_names(raw, self.coarse, self.coarse.names, where, first)

    def nll(self, logits: Tensor, target: Tensor) -> Tensor:
        """-log (M p)[coarse label], in log space."""
        z = below_top(self.adjusted(logits))
        loss = torch.logsumexp(z, -1) - torch.logsumexp(z + self._rows(target, logits.device), -1)
        return torch.where(target == NOT_ANNOTATED, torch.zeros_like(loss), loss)

    def evidence(self, target: Tensor) -> Tensor:
        """The row log M[coarse label]; zero where nothing was annotated."""
        rows = self._rows(target, target.device)
        return torch.where((target == NOT_ANNOTATED)[:, None], torch.zeros_like(rows), rows)

    def _rows(self, target: Tensor, device: torch.device) -> Tensor:
        return self._log_matrix.to(device)[target.clamp(min=0)]

    def describe(self) -> dict[str, Any]:
        """Return the view as the experiment file writes it."""
        if self.groups is None:
            return {"kind": self.kind, "names": list(self.coarse.names)}
        groups = {k: dict(v) if isinstance(v, Mapping) else list(v) for k, v in self.groups.items()}
        return {"kind": self.kind, "correspondence": groups}

    @property
    def answers(self) -> tuple[str, ...]:
        """The coarse names."""
        return self.coarse.names

    def answer(self, logits: Tensor) -> Tensor:
        """Return the probabilities of the coarse labels, M p."""
        fine = torch.softmax(self.adjusted(logits), -1)
        return fine @ self.matrix.to(fine).T


class Tags(View):
    """Any number of labels at once. Target: int8 (B, C): 1 present, 0 absent, -1 not annotated or not known."""

    kind = "tags"

    def __init__(self, space: LabelSpace, known: Iterable[str] | None = None) -> None:
        super().__init__(space, known)
        self._knows = super().informs()
        self.offset = None  # tags are decided one by one: an unknown tag is left out, not excluded

    def encode(self, raw: Iterable[Any], where: str = "annotations", first: int = 1) -> Tensor:
        """Read tags written `a;b` or given as sequences; a sample with an empty value has no annotation at all."""
        allowed = self.known or self.space.names
        columns = self.space.columns(allowed)
        target_rows: list[list[int]] = []
        problems: list[str] = []
        for number, value in enumerate(raw, start=first):
            row = [NOT_ANNOTATED] * len(self.space)
            names = _split(value, ";")
            if names is not None:
                for column in columns:
                    row[column] = 0
                for column in _columns(names, self.space, allowed, number, problems):
                    row[column] = 1
            target_rows.append(row)
        _raise(problems, where)
        return torch.tensor(target_rows, dtype=torch.int8).reshape(-1, len(self.space))

    def nll(self, logits: Tensor, target: Tensor) -> Tensor:
        """Sum of the binary cross-entropies of the annotated, known tags."""
        counted = (target != NOT_ANNOTATED) & self._knows.to(target.device)
        z = self.adjusted(logits)
        loss = F.binary_cross_entropy_with_logits(z, target.clamp(min=0).to(z.dtype), reduction="none")
        return torch.where(counted, loss, torch.zeros_like(loss)).sum(-1)

    def annotated(self, target: Tensor) -> Tensor:
        """Say for each sample whether any of its tags is annotated."""
        return (target != NOT_ANNOTATED).any(-1)

    def informs(self) -> Tensor:
        """Say for each tag whether the site knows it."""
        return self._knows

    def posterior(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return P(tag present): the annotation where there is one, the model's score elsewhere."""
        scores = torch.sigmoid(self.adjusted(logits))
        return torch.where(target == NOT_ANNOTATED, scores, target.to(scores.dtype))

    def answer(self, logits: Tensor) -> Tensor:
        """Return the probability of each tag."""
        return torch.sigmoid(self.adjusted(logits))


class Unlabelled(View):
    """No annotation at all. Target: -1 (B,)."""

    kind = "unlabelled"

    def encode(self, raw: Iterable[Any], where: str = "annotations", first: int = 1) -> Tensor:
        """Count the samples; what stands in the column is not read."""
        return torch.full((sum(1 for _ in raw),), NOT_ANNOTATED)

    def nll(self, logits: Tensor, target: Tensor) -> Tensor:
        """Zero, still connected to the logits so that a loss made of it has a gradient."""
        return (logits * 0.0).sum(-1)  # in this order, for the sum of large logits overflows

    def evidence(self, target: Tensor) -> Tensor:
        """Zero everywhere: nothing was seen."""
        return torch.zeros(len(target), len(self.space), device=target.device)

    def informs(self) -> Tensor:
        """No label."""
        return torch.zeros(len(self.space), dtype=torch.bool)


def _read_names(raw: Iterable[Any], space: LabelSpace, allowed: Sequence[str], where: str, first: int) -> Tensor:
    column = {name: space.column(name) for name in allowed}
    found, problems = [], []
    for number, value in enumerate(raw, start=first):
        if _is_missing(value):
            found.append(NOT_ANNOTATED)
        elif (name := str(value).strip()) in column:
            found.append(column[name])
        else:
            problems.append(f"row {number}: '{value}' is not one of the labels; {did_you_mean(name, allowed)}")
    _raise(problems, where)
    return torch.tensor(found, dtype=torch.long)


def _columns(
    names: Sequence[str], space: LabelSpace, allowed: Sequence[str], number: int, problems: list[str]
) -> list[int]:
    unknown = [name for name in names if name not in allowed]
    problems += [f"row {number}: '{name}' is not one of the labels; {did_you_mean(name, allowed)}" for name in unknown]
    return space.columns(name for name in names if name in allowed)


def _split(value: Any, separator: str) -> list[str] | None:
    """Return the names in a value, or None where nothing was annotated."""
    if _is_missing(value):
        return None
    if not isinstance(value, Iterable):  # a label whose name is a number
        return [str(value)]
    parts = value.split(separator) if isinstance(value, str) else value
    return [str(part).strip() for part in parts]


def _missing_name(names: Sequence[str]) -> str:
    outside = "after the last bar" if names[0] else "before the first bar"
    return f"a name is missing {'between the bars' if '' in names[1:-1] else outside} of '{'|'.join(names)}'"


def _is_missing(value: Any) -> bool:
    if isinstance(value, str):
        return not value.strip()
    return value is None or (isinstance(value, float | np.floating) and bool(np.isnan(value)))


def _raise(problems: list[str], where: str) -> None:
    if problems:
        raise AnnotationError(f"{where}: {len(problems)} cannot be read", problems)


def below_top(z: Tensor) -> Tensor:
    """Shift each row so that its largest logit is zero: a log-likelihood ratio of large logits keeps its digits.

    Differences too large for a float are cut: an infinity that is no label's exclusion would become NaN.
    """
    z = z.clamp(min=-HUGE, max=HUGE).where(z.isfinite(), z)
    return z - z.detach().amax(-1, keepdim=True)


def _log_mask(mask: Tensor) -> Tensor:
    return torch.zeros(mask.shape, device=mask.device).masked_fill(~mask, float("-inf"))
