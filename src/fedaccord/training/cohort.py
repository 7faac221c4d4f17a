"""The local loop of many sites as one program: their parameters are stacked, and a step is taken by all at once.

A step of a small model costs more in Python and in autograd than in arithmetic. Here that is paid once for a cohort.
Sites may have different numbers of samples: those with the most steps come first, so that whoever still trains is
always a slice of the stack, and short batches are filled up with rows of weight zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedaccord.labels.views import View
from fedaccord.messages.message import Message
from fedaccord.messages.names import COMPUTED
from fedaccord.models.stacked import StackedForward
from fedaccord.training.adam import Adam
from fedaccord.training.local import rows_of_steps
from fedaccord.training.objectives import Objective, Proximal, RowObjective, Sum
from fedaccord.training.settings import TrainingSettings
from fedaccord.training.solvers import SGD, Solver, Stepper
from fedaccord.training.work import FEATURES, Batch, LocalWork

# A cohort's parameters and what a step does with them should stay near the core: beyond that a stack is slower than
# its sites one after the other (docs/speed.md).
MOST_VALUES = 1_000_000


@dataclass(frozen=True)
class Terms:
    """An objective in the form in which it can be computed for many sites at once."""

    rows: RowObjective
    pulls: tuple[Proximal, ...] = ()


def terms_of(objective: Objective) -> Terms | None:
    """Return an objective's terms; None where it has to be computed site by site."""
    parts = objective.terms if isinstance(objective, Sum) else (objective,)
    rows = [part for part in parts if isinstance(part, RowObjective)]
    pulls = tuple(part for part in parts if isinstance(part, Proximal))
    if len(rows) != 1 or len(rows) + len(pulls) < len(parts) or not rows[0].is_batchable():
        return None
    return Terms(rows[0], pulls)


def is_batchable(solver: Solver) -> bool:
    """Say whether a solver's steps look at nothing but a site's own parameters and gradients."""
    return bool(getattr(solver, "batchable", False))


def stacked_parameters(works: Sequence[LocalWork]) -> list[Tensor]:
    """Return the parameters that works begin with, stacked."""
    return [torch.stack(values) for values in zip(*(work.received for work in works), strict=True)]


class Stack:
    """The stacked parameters of a cohort: a row for each site, which is what trains there."""

    def __init__(self, works: Sequence[LocalWork]) -> None:
        named = works[0].model.named_parameters()
        self.names = [name for name, parameter in named if parameter.requires_grad]
        self.whole = stacked_parameters(works)
        for work, *row in zip(works, *(tensor.unbind() for tensor in self.whole), strict=True):
            work.parameters = row


@dataclass(frozen=True)
class Trained:
    """What a cohort came to: the beginnings of its replies in the order of its works, and the stack in an own order."""

    replies: list[Message]
    stack: list[Tensor]
    ranked: list[int]  # whose row of the stack is whose


def train_together(
    works: Sequence[LocalWork],
    objective: Objective,
    solver: Solver,
    settings: TrainingSettings,
    forward: StackedForward,
) -> Trained:
    """Train works, which have started, as `train_locally` would each; their model's own values stay as they are.

    The parameters that were trained are also in `work.parameters`.
    """
    terms = terms_of(objective)
    assert terms is not None
    orders = [list(rows_of_steps(work, settings)) for work in works]
    ranked = sorted(range(len(works)), key=lambda at: -len(orders[at]))
    cohort = _Cohort([works[at] for at in ranked], terms, [orders[at] for at in ranked])
    steps: _Plain | _Each
    if isinstance(solver, SGD | Adam):
        steps = _Plain(cohort.stack, solver, works[0].lr)
        steppers: list[Stepper] = [steps.stepper] * len(works)
    else:
        steppers = [solver.start(work) for work in cohort.works]
        steps = _Each(steppers)
    sums = _steps(cohort, steps, forward).tolist()  # the only values that are read back
    losses = [total / max(1, len(orders[at])) for total, at in zip(sums, ranked, strict=True)]
    replies: dict[int, Message] = {}
    for at, work, stepper, loss in zip(ranked, cohort.works, steppers, losses, strict=True):
        computed = stepper.evaluations * sum(map(len, orders[at]))
        replies[at] = Message(numbers={"loss": loss, COMPUTED: computed})
        if objective.reads_model:
            load(work)
        objective.finish(work, replies[at])
        stepper.finish(work, replies[at])
    return Trained([replies[at] for at in range(len(works))], cohort.stack.whole, ranked)


def parts_of(works: Sequence[LocalWork], terms: Terms, most: int) -> Iterator[list[LocalWork]]:
    """Cut works that have started into stacks whose objectives' own values are no more than `most`."""
    part: list[LocalWork] = []
    for work in works:
        values = terms.rows.stacked_size(work)
        if part and (len(part) + 1) * max(values, *map(terms.rows.stacked_size, part)) > most:  # all are padded
            yield part
            part = []
        part.append(work)
    yield part


@torch.no_grad()
def load(work: LocalWork) -> None:
    """Put a site's trained parameters into the model that all sites of the process share."""
    own: list[Tensor] = [parameter for parameter in work.model.parameters() if parameter.requires_grad]
    torch._foreach_copy_(own, work.parameters)


def compatible(work: LocalWork, terms: Terms) -> tuple[object, ...]:
    """Return what works must have in common to train together, once they have started."""
    data = work.site.train
    kept = sorted((name, tuple(t.shape[1:]), t.dtype) for name, t in terms.rows.row_state(work).items())
    return (work.view.stacking_key(), data.x.shape[1:], data.x.dtype, data.target.shape[1:], data.target.dtype, *kept)


class _Plain:
    """SGD or Adam on the stack itself; only clipping tells sites apart."""

    uses_received_gradient = False  # a step looks at nothing but its gradients

    def __init__(self, stack: Stack, solver: SGD | Adam, lr: float) -> None:
        self.clip, self.sites = solver.clip, len(stack.whole[0])
        self.stepper = replace(solver, clip=0.0).on(stack.whole, lr)

    def step(self, sites: int, gradients: Sequence[Tensor], there: Sequence[Tensor] = ()) -> None:
        """Take one step at the first so many sites."""
        if sites < self.sites:
            self.stepper.keep_first(sites)
            self.sites = sites
        self.stepper.step(clip_each(gradients, self.clip) if self.clip else list(gradients))


class _Each:
    """Any solver, site by site."""

    def __init__(self, steppers: list[Stepper]) -> None:
        self.steppers = steppers
        self.uses_received_gradient = any(stepper.uses_received_gradient for stepper in steppers)

    def step(self, sites: int, gradients: Sequence[Tensor], there: Sequence[Tensor] = ()) -> None:
        """Take one step at the first so many sites; `there` are gradients at the received parameters, if asked for."""
        for stepper, own in zip(self.steppers, _by_site(there), strict=False):
            stepper.received_gradient = own
        for stepper, own in zip(self.steppers, _by_site(gradients), strict=False):
            stepper.step(own)


def _by_site(gradients: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    return map(list, zip(*(gradient.unbind() for gradient in gradients), strict=True))


class _Cohort:
    """The sites of a stack at work: which still train at a step, and what their batches are."""

    def __init__(self, works: list[LocalWork], terms: Terms, orders: list[list[Tensor]]) -> None:
        self.works, self.terms, self.orders = works, terms, orders
        self.stack = Stack(works)
        self.device = works[0].site.train.x.device
        self.kept = [terms.rows.row_state(work) for work in works]
        self._space: dict[str, Tensor] = {}

    def training(self, step: int) -> int:
        """Return how many sites still train at a step."""
        return sum(1 for order in self.orders if len(order) > step)

    def view(self, sites: int) -> View:
        """Return the view of the first sites."""
        views = [work.view for work in self.works[:sites]]
        return type(views[0]).stack(views, self.device)

    def batch(self, step: int, sites: int) -> tuple[Batch, list[int]]:
        """Return a step's batch of the first sites, (sites, B, ...), and how many of its rows are each site's own."""
        drawn = [order[step] for order in self.orders[:sites]]
        sizes = [len(rows) for rows in drawn]
        if min(sizes) < max(sizes):
            drawn = [_filled(rows, max(sizes)) for rows in drawn]
        data = [work.site.train for work in self.works[:sites]]
        kept = {name: self._gather(name, [k[name] for k in self.kept[:sites]], drawn) for name in self.kept[0]}
        x = self._gather("x", [part.x for part in data], drawn)
        target = self._gather("target", [part.target for part in data], drawn)
        return Batch(torch.stack(drawn), x, target, kept), sizes

    def changed(self, batch: Batch, sizes: list[int]) -> tuple[Batch, list[int]]:
        """Return what the objective makes of each site's part of a batch, and how many rows are each site's own."""
        parts = []
        for at, (work, size) in enumerate(zip(self.works, sizes, strict=False)):
            kept = {name: values[at, :size] for name, values in batch.row_state.items()}
            own = Batch(batch.rows[at, :size], batch.x[at, :size], batch.target[at, :size], kept)
            parts.append(self.terms.rows.augment(work, own))
        sizes = [len(part.x) for part in parts]
        most = max(sizes)
        rows = _stacked([part.rows for part in parts], most)
        x, target = _stacked([part.x for part in parts], most), _stacked([part.target for part in parts], most)
        kept = {name: _stacked([part.row_state[name] for part in parts], most) for name in parts[0].row_state}
        return Batch(rows, x, target, kept), sizes

    def weights(self, sizes: list[int]) -> Tensor:
        """Return the weights of a batch's rows, (sites, B): those of a mean over each site's own, zero for others."""
        number = torch.tensor(sizes)[:, None]
        own = torch.arange(max(sizes)) < number
        return (own.float() if self.terms.rows.reduction == "sum" else own / number).to(self.device)

    def renew(self, batch: Batch, new: dict[str, Tensor]) -> None:
        """Put back what a step made of the rows' kept values; rows that fill up a batch are equal to a real one."""
        for name, values in new.items():
            for kept, rows, own in zip(self.kept, batch.rows, values, strict=False):
                kept[name].index_copy_(0, rows, own)

    def _gather(self, name: str, sources: list[Tensor], drawn: list[Tensor]) -> Tensor:
        shape = (len(drawn), len(drawn[0]), *sources[0].shape[1:])
        space = self._space.get(name)
        if space is None or space.shape != shape:
            space = self._space[name] = sources[0].new_empty(shape)
        for source, rows, out in zip(sources, drawn, space.unbind(), strict=True):
            torch.index_select(source, 0, rows, out=out)
        return space


def _steps(cohort: _Cohort, whole: _Plain | _Each, forward: StackedForward) -> Tensor:
    """Take all steps; returns the sum of each site's losses, (sites,)."""
    terms = cohort.terms
    updates_from, joined = terms.rows.updates_from(), terms.rows.stack_state(cohort.works)
    began = stacked_parameters(cohort.works) if terms.pulls or whole.uses_received_gradient else []
    losses = torch.zeros(len(cohort.works), device=cohort.device)
    sites = 0
    for step in range(max(map(len, cohort.orders))):
        training = cohort.training(step)
        if training != sites:
            sites = training
            view = cohort.view(sites)
            here, received = (_leaves(stack, sites) for stack in (cohort.stack.whole, began))
        batch, sizes = cohort.batch(step, sites)
        seen, sizes = cohort.changed(batch, sizes) if terms.rows.augments else (batch, sizes)
        filled = min(sizes) < max(sizes)
        question = _Question(cohort, forward, view, seen, cohort.weights(sizes), filled, received, joined)
        there = _gradients(question.losses(received)[0], received) if whole.uses_received_gradient else ()
        each, logits = question.losses(here)
        whole.step(sites, _gradients(each, here), there)
        losses[:sites] += each.detach()
        if updates_from != "nothing":
            with torch.no_grad():
                logits = question.logits(here, batch.x) if updates_from == "step" else logits.detach()
                cohort.renew(batch, terms.rows.updated_rows(view, logits, batch))
    return losses


@dataclass(frozen=True)
class _Question:
    """One step's batch, of which the losses can be asked at any parameters."""

    cohort: _Cohort
    forward: StackedForward
    view: View
    batch: Batch
    weights: Tensor
    filled: bool  # some batches are filled up with rows of weight zero
    received: list[Tensor]
    joined: Any

    def losses(self, parameters: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Return each site's loss, (sites,), and the logits."""
        terms = self.cohort.terms
        logits = self.logits(parameters, self.batch.x, self.batch.row_state.get(FEATURES))
        each = (terms.rows.row_losses(self.view, logits, self.batch) * self.weights).sum(-1)
        if self.joined is not None:
            own = self.weights > 0 if self.filled else None
            each = each + terms.rows.batch_loss(self.joined, self.view, logits, self.batch, own)
        for pull in terms.pulls:
            each = each + pull.of_each(parameters, [tensor.detach() for tensor in self.received])
        return each, logits

    def logits(self, parameters: list[Tensor], x: Tensor, scale: Tensor | None = None) -> Tensor:
        return self.forward(dict(zip(self.cohort.stack.names, parameters, strict=True)), x, scale)


def _leaves(stack: list[Tensor], sites: int) -> list[Tensor]:
    return [tensor[:sites].detach().requires_grad_() for tensor in stack]


def _gradients(each: Tensor, parameters: list[Tensor]) -> Sequence[Tensor]:
    return torch.autograd.grad(each.sum(), parameters, materialize_grads=True)


def _filled(rows: Tensor, width: int) -> Tensor:
    """Fill up rows with the first one; a row of zeros may have no finite loss, and zero times infinity is no number."""
    return torch.cat([rows, rows[:1].expand(width - len(rows), *rows.shape[1:])])


def _stacked(parts: list[Tensor], width: int) -> Tensor:
    return torch.stack([part if len(part) == width else _filled(part, width) for part in parts])


def clip_each(gradients: Sequence[Tensor], largest: float) -> list[Tensor]:
    """Return stacked gradients scaled so that each site's joint norm is at most `largest`."""
    norms = torch.stack([torch.linalg.vector_norm(g.flatten(1), dim=1) for g in gradients])
    scale = torch.clamp(largest / (torch.linalg.vector_norm(norms, dim=0) + 1e-12), max=1.0)
    return [g * scale.view(-1, *[1] * (g.ndim - 1)) for g in gradients]
