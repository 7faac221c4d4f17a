"""Mime (docs/methods.md 8.6): local steps with the server's gradient statistics as momentum."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from fedaccord.aggregation.replies import Aggregator, Replies
from fedaccord.errors import TooFewSitesError
from fedaccord.federation.recipe import equal_weights
from fedaccord.federation.side_tensors import SideTensors
from fedaccord.messages.message import Message, SiteId
from fedaccord.messages.names import COMPUTED
from fedaccord.methods.momentum.server_momentum import combined
from fedaccord.methods.momentum.settings import MimeSettings
from fedaccord.seeds import derive
from fedaccord.training.local import batches, has_batch_norm, loss_and_gradients
from fedaccord.training.objectives import Objective
from fedaccord.training.solvers import SGD, LossAndGradients, Stepper, regularised
from fedaccord.training.work import Batch, LocalWork

if TYPE_CHECKING:
    from fedaccord.federation.server import Server, SiteCard

CHUNK = 1024  # samples per batch of a full gradient
STATISTICS = "statistics"  # prefix in messages, and name in the method's state
GRADIENT = "gradient"  # prefix of a full gradient in messages, name in the method's state, and the task


class MimeSteps(Stepper):
    """Mime's steps: `y <- y - lr [(1 - beta) d + beta s]` with statistics `s` that are fixed for a round.

    `d = g(y; b) - g(w; b) + c` with batch `b`, received model `w` and mean full gradient `c` (`full`). Without `full`,
    `d = g(y; b)` (MimeLite).
    """

    def __init__(
        self, settings: SGD, work: LocalWork, beta: float, statistics: list[Tensor], full: list[Tensor] | None
    ) -> None:
        self.settings, self.model, self.received = settings, work.model, work.received
        self.parameters, self.lr, self.beta = work.parameters, work.lr, beta
        self.statistics, self.full = statistics, full
        self.uses_received_gradient = full is not None
        self.evaluations = 2 if self.uses_received_gradient else 1

    def evaluate(self, closure: Callable[[], LossAndGradients]) -> LossAndGradients:
        """Also compute the batch's gradient at the received model, with the same random numbers and buffers."""
        if self.full is None:
            return closure()
        current = [p.detach().clone() for p in self.parameters]
        with torch.random.fork_rng(devices=[]), unchanged_buffers(self.model):
            self._set_parameters(self.received)
            _, gradients = closure()
            self.received_gradient = list(gradients[: len(self.parameters)])
            self._set_parameters(current)
        return closure()

    @torch.no_grad()
    def step(self, gradients: list[Tensor]) -> None:
        """Take one step."""
        direction = regularised(gradients, self.parameters, self.settings)
        if self.full is not None:
            # Weight decay is part of all three gradients.
            received = regularised(self.received_gradient, self.received, self.settings)
            direction = list(torch._foreach_add(torch._foreach_sub(direction, received), self.full))
        torch._foreach_add_(self.parameters, direction, alpha=-self.lr * (1 - self.beta))
        torch._foreach_add_(self.parameters, self.statistics, alpha=-self.lr * self.beta)

    @torch.no_grad()
    def _set_parameters(self, values: list[Tensor]) -> None:
        torch._foreach_copy_(self.parameters, values)


def full_gradient(
    work: LocalWork, objective: Objective, settings: SGD, most: int | None = None
) -> tuple[list[Tensor], int]:
    """Return the mean gradient at the current model over all training samples, and their number.

    With `most`, at most that many samples, drawn anew in each round.
    """
    data = work.site.train
    total, seen = [torch.zeros_like(p) for p in work.parameters], 0
    generator = torch.Generator().manual_seed(derive(work.seed, "full gradient", work.site.name, work.round))
    with unchanged_buffers(work.model.train()):
        objective.start(work)
        samples = len(data) if work.rows is None else len(work.rows)
        for order in batches(samples, CHUNK, generator, epochs=1, drop_single=has_batch_norm(work.model)):
            order = order[: samples if most is None else most - seen]
            if not len(order):
                break
            rows = order.to(data.x.device) if work.rows is None else work.rows[order]
            batch = Batch(rows, data.x.index_select(0, rows), data.target.index_select(0, rows))
            _, gradients = loss_and_gradients(work, objective, batch)
            torch._foreach_add_(total, list(gradients[: len(total)]), alpha=len(rows))
            seen += len(rows)
    mean = list(torch._foreach_div(total, max(1, seen)))
    return regularised(mean, [p.detach() for p in work.parameters], settings), seen


@contextmanager
def unchanged_buffers(model: nn.Module) -> Iterator[None]:
    """Restore a model's buffers after the block, since forward passes change running statistics."""
    copies = [buffer.clone() for buffer in model.buffers()]
    yield
    with torch.no_grad():
        for buffer, copy in zip(model.buffers(), copies, strict=True):
            buffer.copy_(copy)


@dataclass(frozen=True)
class GradientStatistics:
    """Mime's parts of a recipe: statistics `s` of the full gradient at the sent model, fixed during local steps."""

    batchable: ClassVar[bool] = True

    gradient: SideTensors
    statistics: SideTensors
    aggregator: Aggregator  # that of the model, so that a robust rule protects the gradients too
    objective: Objective
    sgd: SGD
    settings: MimeSettings

    # At a site

    def start(self, work: LocalWork) -> Stepper:
        """Return a site's stepper for one round: the `solver` slot."""
        full = None if self.settings.lite else self.gradient.read(work, work.brief)
        return MimeSteps(self.sgd, work, self.settings.beta, self.statistics.read(work, work.brief), full)

    def answer(self, work: LocalWork) -> Message:
        """Return a site's full gradient at the received model: the task `gradient`."""
        gradient, samples = full_gradient(work, self.objective, self.sgd, self.settings.gradient_samples)
        return Message(self.gradient.write(work, gradient), {"samples": samples, COMPUTED: samples})

    # At the server

    def prepare(self, server: Server) -> None:
        """Ask the round's sites for their full gradients, and aggregate them like models."""
        sites = server.sample_sites()
        expected = self.gradient.expected(server, server.cards[sites[0]]) if sites else None
        answers = server.ask(GRADIENT, server.model_briefs(sites), expected)
        if not answers:
            return
        try:
            server.state.method.tensors[GRADIENT] = self.aggregator(self._as_replies(server, answers))
        except TooFewSitesError as error:
            server.drop("", GRADIENT, "", f"{error}; the last gradient is kept")

    def _as_replies(self, server: Server, answers: dict[SiteId, Message]) -> Replies:
        """Return the gradients as replies, weighted like models by the sample counts with which the sites joined."""
        replies, zeros = server.reply_table(answers), torch.zeros(server.layout.size)
        samples = torch.tensor([server.cards[site].samples for site in replies.sites], dtype=torch.float64)
        replies = replace(self.gradient.replies(server, replies, zeros), weights=samples)
        return equal_weights(server, replies) if equal_weights in server.recipe.admit else replies

    def brief(self, server: Server, card: SiteCard) -> Message:
        """Return the statistics, and the mean full gradient for the correction."""
        state, zeros = server.state.method.tensors, torch.zeros(server.layout.size)
        tensors = self.statistics.outgoing(server, card, state.get(STATISTICS, zeros))
        if not self.settings.lite:
            tensors |= self.gradient.outgoing(server, card, state.get(GRADIENT, zeros))
        return Message(tensors)

    def refine(self, server: Server) -> None:
        """Update the statistics: `s <- (1 - beta) c + beta s`."""
        state = server.state.method.tensors
        if combined(server) is not None and GRADIENT in state:
            last, beta = state.get(STATISTICS, torch.zeros(server.layout.size)), self.settings.beta
            state[STATISTICS] = (1 - beta) * state[GRADIENT] + beta * last
