"""The training loop of several sites as one program, on stacked parameters.

A step of a small model costs more in Python and autograd than in arithmetic; here that cost is paid once per cohort.
Sites may have different numbers of samples. They are ordered by decreasing number of steps, so that those still
training are a slice of the stack. Short batches are padded with rows of weight zero.
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
from fedaccord.training.local import rows_of_steps
from fedaccord.training.objectives import Objective, Proximal, RowObjective, Sum
from fedaccord.training.settings import TrainingSettings
from fedaccord.training.solvers import SGD, Adam, AdamStepper, SGDStepper, Solver, Stepper
from fedaccord.training.work import FEATURES, Batch, LocalWork

# Stacked parameters should fit into the processor's cache: larger stacks are slower than their sites one by one
# (docs/speed.md).
MOST_VALUES = 1_000_000


@dataclass(frozen=True)
class Terms:
    """An objective that can be computed for several sites at once."""

    rows: RowObjective
    penalties: tuple[Proximal, ...] = ()


def terms_of(objective: Objective) -> Terms | None:
    """Return the terms of an objective; None if it has to be computed site by site."""
    parts = objective.terms if isinstance(objective, Sum) else (objective,)
    rows = [part for part in parts if isinstance(part, RowObjective)]
    penalties = tuple(part for part in parts if isinstance(part, Proximal))
    if len(rows) != 1 or len(rows) + len(penalties) < len(parts) or not rows[0].is_batchable():
        return None
    return Terms(rows[0], penalties)


def is_batchable(solver: Solver) -> bool:
    """Return whether the steps of a solver only depend on a site's parameters and gradients."""
    return bool(getattr(solver, "batchable", False))


def stacked_parameters(works: Sequence[LocalWork]) -> list[Tensor]:
    """Return the stacked received parameters, (sites, ...) each."""
    return [torch.stack(values) for values in zip(*(work.received for work in works), strict=True)]


@dataclass(frozen=True)
class CohortResult:
    """The result of a cohort: its replies without the model, in the order of its works, and the trained stack."""

    replies: list[Message]
    stack: list[Tensor]
    order: list[int]  # the index of the work in each row of the stack


def train_together(
    works: Sequence[LocalWork],
    objective: Objective,
    solver: Solver,
    settings: TrainingSettings,
    forward: StackedForward,
) -> CohortResult:
    """Train started works as `train_locally` does, without changing their shared model.

    The trained parameters are in `work.parameters`.
    """
    terms = terms_of(objective)
    assert terms is not None
    batches = [list(rows_of_steps(work, settings)) for work in works]
    order = sorted(range(len(works)), key=lambda index: -len(batches[index]))
    cohort = _Cohort([works[index] for index in order], terms, [batches[index] for index in order])
    steps: _StackedSteps | _SiteSteps
    if isinstance(solver, SGD | Adam):
        steps = _StackedSteps(cohort.stack, solver, works[0].lr)
        steppers: list[Stepper] = [steps.stepper] * len(works)
    else:
        steppers = [solver.start(work) for work in cohort.works]
        steps = _SiteSteps(steppers)
    sums = _run_steps(cohort, steps, forward).tolist()  # the only transfer from the device
    losses = [total / max(1, len(batches[index])) for total, index in zip(sums, order, strict=True)]
    replies: dict[int, Message] = {}
    for index, work, stepper, loss in zip(order, cohort.works, steppers, losses, strict=True):
        computed = stepper.evaluations * sum(map(len, batches[index]))
        replies[index] = Message(numbers={"loss": loss, COMPUTED: computed})
        if objective.reads_model:
            load_parameters(work)
        objective.finish(work, replies[index])
        stepper.finish(work, replies[index])
    return CohortResult([replies[index] for index in range(len(works))], cohort.stack, order)


def split_by_size(works: Sequence[LocalWork], terms: Terms, most: int) -> Iterator[list[LocalWork]]:
    """Split started works into stacks whose objectives add at most `most` values."""
    part: list[LocalWork] = []
    for work in works:
        values = terms.rows.stacked_size(work)
        if part and (len(part) + 1) * max(values, *map(terms.rows.stacked_size, part)) > most:  # all are padded
            yield part
            part = []
        part.append(work)
    yield part


@torch.no_grad()
def load_parameters(work: LocalWork) -> None:
    """Copy a site's trained parameters into the model, which all sites of the process share."""
    targets: list[Tensor] = [parameter for parameter in work.model.parameters() if parameter.requires_grad]
    torch._foreach_copy_(targets, work.parameters)


def cohort_key(work: LocalWork, terms: Terms) -> tuple[object, ...]:
    """Return a key of a started work; works with equal keys can be stacked."""
    data = work.site.train
    state = sorted((name, tuple(t.shape[1:]), t.dtype) for name, t in terms.rows.checked_state(work).items())
    shapes = data.x.shape[1:], data.x.dtype, data.target.shape[1:], data.target.dtype
    return (work.view.stacking_key(), work.lr, *shapes, *state)


class _StackedSteps:
    """SGD or Adam on the whole stack; gradients are clipped per site."""

    uses_received_gradient = False

    def __init__(self, stack: list[Tensor], solver: SGD | Adam, lr: float) -> None:
        self.clip, self.sites = solver.clip, len(stack[0])
        solver = replace(solver, clip=0.0)
        self.stepper = SGDStepper(solver, stack, lr) if isinstance(solver, SGD) else AdamStepper(solver, stack, lr)

    def step(self, sites: int, gradients: Sequence[Tensor], received: Sequence[Tensor] = ()) -> None:
        """Step the first `sites` sites."""
        if sites < self.sites:
            self.stepper.keep_first(sites)
            self.sites = sites
        self.stepper.step(clip_per_site(gradients, self.clip) if self.clip else list(gradients))


class _SiteSteps:
    """Any solver, site by site."""

    def __init__(self, steppers: list[Stepper]) -> None:
        self.steppers = steppers
        self.uses_received_gradient = any(stepper.uses_received_gradient for stepper in steppers)

    def step(self, sites: int, gradients: Sequence[Tensor], received: Sequence[Tensor] = ()) -> None:
        """Step the first `sites` sites; `received` are the gradients at the received parameters, if needed."""
        for stepper, gradient in zip(self.steppers, _by_site(received), strict=False):
            stepper.received_gradient = gradient
        for stepper, gradient in zip(self.steppers, _by_site(gradients), strict=False):
            stepper.step(gradient)


def _by_site(gradients: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    return map(list, zip(*(gradient.unbind() for gradient in gradients), strict=True))


class _Cohort:
    """The sites of a stack: how many still train at a step, and their batches."""

    def __init__(self, works: list[LocalWork], terms: Terms, batches: list[list[Tensor]]) -> None:
        self.works, self.terms, self.batches = works, terms, batches
        named = works[0].model.named_parameters()
        self.names = [name for name, parameter in named if parameter.requires_grad]
        self.stack = stacked_parameters(works)
        for work, *row in zip(works, *(tensor.unbind() for tensor in self.stack), strict=True):
            work.parameters = row  # views of the stack
        self.device = works[0].site.train.x.device
        self.row_state = [terms.rows.row_state(work) for work in works]
        self._buffers: dict[str, Tensor] = {}

    def active(self, step: int) -> int:
        """Return the number of sites that still train at a step."""
        return sum(1 for batches in self.batches if len(batches) > step)

    def view(self, sites: int) -> View:
        """Return the stacked view of the first `sites` sites."""
        views = [work.view for work in self.works[:sites]]
        return type(views[0]).stack(views, self.device)

    def batch(self, step: int, sites: int) -> tuple[Batch, list[int]]:
        """Return the batch of the first `sites` sites, (sites, B, ...), and its number of rows without padding."""
        rows = [batches[step] for batches in self.batches[:sites]]
        sizes = [len(row) for row in rows]
        if min(sizes) < max(sizes):
            rows = [_padded(row, max(sizes)) for row in rows]
        data = [work.site.train for work in self.works[:sites]]
        states = self.row_state[:sites]
        state = {name: self._gather(name, [s[name] for s in states], rows) for name in self.row_state[0]}
        x = self._gather("x", [part.x for part in data], rows)
        target = self._gather("target", [part.target for part in data], rows)
        return Batch(torch.stack(rows), x, target, state), sizes

    def augment(self, batch: Batch, sizes: list[int]) -> tuple[Batch, list[int]]:
        """Return the batch after each site's augmentation, and its number of rows without padding."""
        parts = []
        for index, (work, size) in enumerate(zip(self.works, sizes, strict=False)):
            state = {name: values[index, :size] for name, values in batch.row_state.items()}
            part = Batch(batch.rows[index, :size], batch.x[index, :size], batch.target[index, :size], state)
            parts.append(self.terms.rows.augment(work, part))
        sizes = [len(part.x) for part in parts]
        most = max(sizes)
        rows = _stacked([part.rows for part in parts], most)
        x, target = _stacked([part.x for part in parts], most), _stacked([part.target for part in parts], most)
        state = {name: _stacked([part.row_state[name] for part in parts], most) for name in parts[0].row_state}
        return Batch(rows, x, target, state), sizes

    def weights(self, sizes: list[int]) -> Tensor:
        """Return the weights of a batch's rows in each site's mean or sum, (sites, B); zero for padding."""
        number = torch.tensor(sizes)[:, None]
        mask = torch.arange(max(sizes)) < number
        return (mask.float() if self.terms.rows.reduction == "sum" else mask / number).to(self.device)

    def store(self, batch: Batch, updated: dict[str, Tensor]) -> None:
        """Write updated row state back; padding rows repeat a row of the batch, so they write the same values."""
        for name, values in updated.items():
            for state, rows, value in zip(self.row_state, batch.rows, values, strict=False):
                state[name].index_copy_(0, rows, value)

    def _gather(self, name: str, sources: list[Tensor], rows: list[Tensor]) -> Tensor:
        shape = (len(rows), len(rows[0]), *sources[0].shape[1:])
        buffer = self._buffers.get(name)
        if buffer is None or buffer.shape != shape:
            buffer = self._buffers[name] = sources[0].new_empty(shape)
        for source, row, out in zip(sources, rows, buffer.unbind(), strict=True):
            torch.index_select(source, 0, row, out=out)
        return buffer


def _run_steps(cohort: _Cohort, steps: _StackedSteps | _SiteSteps, forward: StackedForward) -> Tensor:
    """Take all steps and return the sum of each site's losses, (sites,)."""
    terms = cohort.terms
    source, state = terms.rows.updates_from(), terms.rows.stack_state(cohort.works)
    start = stacked_parameters(cohort.works) if terms.penalties or steps.uses_received_gradient else []
    losses = torch.zeros(len(cohort.works), device=cohort.device)
    sites = 0
    for step in range(max(map(len, cohort.batches))):
        active = cohort.active(step)
        if active != sites:
            sites = active
            view = cohort.view(sites)
            parameters, received = (_leaves(stack, sites) for stack in (cohort.stack, start))
        batch, sizes = cohort.batch(step, sites)
        augmented, sizes = cohort.augment(batch, sizes) if terms.rows.augments else (batch, sizes)
        padded = min(sizes) < max(sizes)
        loss = _StepLoss(cohort, forward, view, augmented, cohort.weights(sizes), padded, received, state)
        at_received = _gradients(loss(received)[0], received) if steps.uses_received_gradient else ()
        per_site, logits = loss(parameters)
        steps.step(sites, _gradients(per_site, parameters), at_received)
        losses[:sites] += per_site.detach()
        if source != "nothing" and cohort.row_state[0]:
            with torch.no_grad():
                logits = loss.logits(parameters, batch.x) if source == "step" else logits.detach()
                cohort.store(batch, terms.rows.updated_rows(view, logits, batch))
    return losses


@dataclass(frozen=True)
class _StepLoss:
    """The loss of one step's batch as a function of the stacked parameters."""

    cohort: _Cohort
    forward: StackedForward
    view: View
    batch: Batch
    weights: Tensor
    padded: bool
    received: list[Tensor]
    state: Any

    def __call__(self, parameters: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Return each site's loss, (sites,), and the logits, (sites, B, C)."""
        terms = self.cohort.terms
        logits = self.logits(parameters, self.batch.x, self.batch.row_state.get(FEATURES))
        loss = (terms.rows.checked_losses(self.view, logits, self.batch) * self.weights).sum(-1)
        if self.state is not None:
            mask = self.weights > 0 if self.padded else None
            loss = loss + terms.rows.batch_loss(self.state, self.view, logits, self.batch, mask)
        for penalty in terms.penalties:
            loss = loss + penalty.per_site(parameters, [tensor.detach() for tensor in self.received])
        return loss, logits

    def logits(self, parameters: list[Tensor], x: Tensor, factors: Tensor | None = None) -> Tensor:
        return self.forward(dict(zip(self.cohort.names, parameters, strict=True)), x, factors)


def _leaves(stack: list[Tensor], sites: int) -> list[Tensor]:
    return [tensor[:sites].detach().requires_grad_() for tensor in stack]


def _gradients(losses: Tensor, parameters: list[Tensor]) -> Sequence[Tensor]:
    return torch.autograd.grad(losses.sum(), parameters, materialize_grads=True)


def _padded(rows: Tensor, width: int) -> Tensor:
    """Pad with the first row: the loss of a row of zeros may be infinite, and 0 * inf is NaN."""
    return torch.cat([rows, rows[:1].expand(width - len(rows), *rows.shape[1:])])


def _stacked(parts: list[Tensor], width: int) -> Tensor:
    return torch.stack([part if len(part) == width else _padded(part, width) for part in parts])


def clip_per_site(gradients: Sequence[Tensor], max_norm: float) -> list[Tensor]:
    """Return stacked gradients, scaled so that each site's joint norm is at most `max_norm`."""
    norms = torch.stack([torch.linalg.vector_norm(g.flatten(1), dim=1) for g in gradients])
    scale = torch.clamp(max_norm / (torch.linalg.vector_norm(norms, dim=0) + 1e-12), max=1.0)
    return [g * scale.view(-1, *[1] * (g.ndim - 1)) for g in gradients]
