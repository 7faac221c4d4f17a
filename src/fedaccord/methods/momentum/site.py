"""The sites' side of methods with momentum: Nesterov's rule, steps with the server's momentum in them, Mime's steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from fedaccord.seeds import derive
from fedaccord.training.batches import batches
from fedaccord.training.local import has_batch_norm, measure
from fedaccord.training.objectives import Objective
from fedaccord.training.solvers import SGD, LossAndGradients, SGDStepper, Stepper, regularised
from fedaccord.training.work import Batch, LocalWork

CHUNK = 1024  # samples of a full gradient at a time


class Nesterov(Stepper):
    """Nesterov's rule in its (m, w) form: `m+ = w - lr g`, `w+ = m+ + gamma (m+ - m)`."""

    def __init__(
        self, settings: SGD, parameters: list[Tensor], lr: float, gamma: float, momentum: list[Tensor]
    ) -> None:
        self.settings, self.parameters, self.lr, self.gamma = settings, parameters, lr, gamma
        self.momentum = momentum

    @torch.no_grad()
    def step(self, gradients: list[Tensor]) -> None:
        """Take one step."""
        gradients = regularised(gradients, self.parameters, self.settings)
        new = list(torch._foreach_add(self.parameters, gradients, alpha=-self.lr))
        ahead = torch._foreach_sub(new, self.momentum)
        torch._foreach_copy_(self.parameters, torch._foreach_add(new, ahead, alpha=self.gamma))
        self.momentum = new


@dataclass(frozen=True)
class Drift:
    """How the server's momentum moves a site's model: all at once before its steps, a part with each, or ahead of each.

    `ahead` is Nesterov's way: the gradient is taken where the part has led.
    """

    when: Literal["first", "each", "ahead"]
    share: float  # of the server's momentum
    sent: bool  # whether the reply holds the drift; otherwise it is taken out again


class DriftingSGD(SGDStepper):
    """Steps of SGD that also go along the server's momentum, `-lr share u` in a round."""

    def __init__(
        self, settings: SGD, parameters: list[Tensor], lr: float, drift: Drift, momentum: list[Tensor], steps: int
    ) -> None:
        super().__init__(settings, parameters, lr)
        self.drift, self.momentum = drift, momentum
        self.rate = lr * drift.share / (1 if drift.when == "first" else max(1, steps))  # of one move
        self.moves = 0
        if drift.when != "each" and steps:
            self._move()

    def step(self, gradients: list[Tensor]) -> None:
        """Take one step."""
        super().step(gradients)
        if self.drift.when != "first":
            self._move()

    def settle(self) -> None:
        """Take back the move ahead of a step that never came, and the drift itself where it is not sent."""
        if self.drift.when == "ahead" and self.moves:
            self._move(-1)
        if not self.drift.sent:
            self._move(-self.moves)

    @torch.no_grad()
    def _move(self, times: int = 1) -> None:
        torch._foreach_add_(self.parameters, self.momentum, alpha=-self.rate * times)
        self.moves += times


class MimeSteps(Stepper):
    """Mime's steps: `y <- y - lr [(1 - beta) d + beta s]`, where the statistics `s` stay the same for a round.

    `d` is the gradient, corrected by what the same batch says at the received model and all sites say there (`full`);
    without `full` it is the gradient alone (MimeLite).
    """

    def __init__(
        self, settings: SGD, work: LocalWork, beta: float, statistics: list[Tensor], full: list[Tensor] | None
    ) -> None:
        self.settings, self.model, self.received = settings, work.model, work.received
        self.parameters, self.lr, self.beta = work.parameters, work.lr, beta
        self.statistics, self.full = statistics, full
        self.uses_received_gradient = full is not None
        self.evaluations = 2 if self.uses_received_gradient else 1

    def evaluate(self, measure: Callable[[], LossAndGradients]) -> LossAndGradients:
        """Measure the batch at the received model first, with the same random numbers and no trace in the buffers."""
        if self.full is None:
            return measure()
        state, buffers = torch.get_rng_state(), saved_buffers(self.model)
        here = [p.detach().clone() for p in self.parameters]
        self._put(self.received)
        _, there = measure()
        self.received_gradient = list(there[: len(self.parameters)])
        self._put(here)
        put_buffers(self.model, buffers)
        torch.set_rng_state(state)
        return measure()

    @torch.no_grad()
    def step(self, gradients: list[Tensor]) -> None:
        """Take one step."""
        direction = regularised(gradients, self.parameters, self.settings)
        if self.full is not None:
            # Weight decay is part of both gradients; that of the received model is part of `full`, too.
            there = regularised(self.received_gradient, self.received, self.settings)
            direction = list(torch._foreach_add(torch._foreach_sub(direction, there), self.full))
        torch._foreach_add_(self.parameters, direction, alpha=-self.lr * (1 - self.beta))
        torch._foreach_add_(self.parameters, self.statistics, alpha=-self.lr * self.beta)

    @torch.no_grad()
    def _put(self, values: list[Tensor]) -> None:
        torch._foreach_copy_(self.parameters, values)


def full_gradient(
    work: LocalWork, objective: Objective, settings: SGD, most: int | None = None
) -> tuple[list[Tensor], int]:
    """Return the mean gradient over all samples that train, at the model as it is, and how many these are.

    With `most`, over that many of them, drawn by the round.
    """
    data, buffers = work.site.train, saved_buffers(work.model)
    work.model.train()
    objective.start(work)
    samples = len(data) if work.rows is None else len(work.rows)
    generator = torch.Generator().manual_seed(derive(work.seed, "full gradient", work.site.name, work.round))
    total, seen = [torch.zeros_like(p) for p in work.parameters], 0
    for order in batches(samples, CHUNK, generator, epochs=1, drop_single=has_batch_norm(work.model)):
        order = order[: samples if most is None else most - seen]
        if not len(order):
            break
        rows = order.to(data.x.device) if work.rows is None else work.rows[order]
        batch = Batch(rows, data.x.index_select(0, rows), data.target.index_select(0, rows))
        _, gradients = measure(work, objective, batch)
        torch._foreach_add_(total, list(gradients[: len(total)]), alpha=len(rows))
        seen += len(rows)
    put_buffers(work.model, buffers)
    mean = list(torch._foreach_div(total, max(1, seen)))
    return regularised(mean, [p.detach() for p in work.parameters], settings), seen


def saved_buffers(model: nn.Module) -> list[Tensor]:
    """Return copies of a model's buffers: running statistics, which a forward pass changes."""
    return [buffer.clone() for buffer in model.buffers()]


@torch.no_grad()
def put_buffers(model: nn.Module, saved: list[Tensor]) -> None:
    """Put saved buffers back."""
    for buffer, before in zip(model.buffers(), saved, strict=True):
        buffer.copy_(before)
