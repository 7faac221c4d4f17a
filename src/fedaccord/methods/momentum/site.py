"""Momentum in the sites' steps (docs/methods.md 8.1, 8.4, 8.5, 8.7).

In FedNAG, FastSlowMo and pFedMo the sites' Nesterov momentum travels with the model. In DOMO and FedADC local steps
include the server's momentum.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor

from fedaccord.aggregation.replies import Aggregator, Replies
from fedaccord.errors import TooFewSitesError
from fedaccord.federation.side_tensors import SideTensors
from fedaccord.messages.checks import TensorSpec, all_finite
from fedaccord.messages.message import Message
from fedaccord.methods.momentum.server_momentum import combined, server_momentum
from fedaccord.training.local import has_batch_norm, step_count
from fedaccord.training.settings import TrainingSettings
from fedaccord.training.solvers import SGD, SGDStepper, Stepper, regularised
from fedaccord.training.work import LocalWork

if TYPE_CHECKING:
    from fedaccord.federation.server import Server, SiteCard

MOMENTUM = "momentum"  # prefix in messages; in the method's state: the sites' mean momentum


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
        change = torch._foreach_sub(new, self.momentum)
        torch._foreach_copy_(self.parameters, torch._foreach_add(new, change, alpha=self.gamma))
        self.momentum = new


@dataclass(frozen=True)
class TravellingMomentum:
    """Sends the sites' Nesterov momentum with the model, and aggregates it like the model."""

    batchable: ClassVar[bool] = True

    side_tensors: SideTensors
    aggregator: Aggregator  # that of the model, so that a robust rule protects the momentum too
    sgd: SGD
    gamma: float

    # At a site

    def start(self, work: LocalWork) -> Stepper:
        """Return a site's stepper for one round: the `solver` slot."""
        return _TravellingNesterov(self, work)

    # At the server

    def prepare(self, server: Server) -> None:
        """Initialise the momentum to `m = w`."""
        server.state.method.tensors.setdefault(MOMENTUM, server.state.model)

    def brief(self, server: Server, card: SiteCard) -> Message:
        """Return the sites' mean momentum."""
        return Message(self.side_tensors.outgoing(server, card, server.state.method.tensors[MOMENTUM]))

    def extras(self, server: Server, card: SiteCard) -> dict[str, TensorSpec]:
        """Return the tensors of a reply in addition to the model."""
        return self.side_tensors.expected(server, card)

    def score_with_momenta(self, server: Server, replies: Replies, started: Tensor | None = None) -> Replies:
        """Let Krum score models and momenta together, so that both come from the same sites."""
        momenta = self.side_tensors.replies(server, replies, server.state.method.tensors[MOMENTUM], started)
        return replace(replies, scored=(replies.matrix, momenta.matrix))

    def refine(self, server: Server, started: Tensor | None = None) -> None:
        """Aggregate the momenta of the replies; `started` is the momentum sent to each site, if not the last mean."""
        replies, state = combined(server), server.state.method.tensors
        if replies is None:
            return
        try:
            momentum = self.aggregator(self.side_tensors.replies(server, replies, state[MOMENTUM], started))
        except TooFewSitesError:  # already recorded when the models were aggregated
            return
        if all_finite(momentum):
            state[MOMENTUM] = momentum


class _TravellingNesterov(Nesterov):
    def __init__(self, parts: TravellingMomentum, work: LocalWork) -> None:
        self.side_tensors = parts.side_tensors
        super().__init__(parts.sgd, work.parameters, work.lr, parts.gamma, self.side_tensors.read(work, work.brief))

    def finish(self, work: LocalWork, reply: Message) -> None:
        """Send the momentum with the model."""
        reply.tensors |= self.side_tensors.write(work, self.momentum)


@dataclass(frozen=True)
class Drift:
    """When and how far the server's momentum moves a site's model.

    `first`: once, before the steps; `each`: after each step; `ahead`: before each step, so that the gradient is taken
    at the moved model (Nesterov).
    """

    when: Literal["first", "each", "ahead"]
    share: float  # of the server's momentum
    sent: bool  # the reply includes the drift; otherwise it is subtracted


class DriftingSGD(SGDStepper):
    """Steps of SGD that also move the model by `-lr share u` in a round, with the server's momentum `u`."""

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

    def finish(self, work: LocalWork, reply: Message) -> None:
        """Undo the move ahead of a step that was not taken, and all moves if the drift is not sent."""
        if self.drift.when == "ahead" and self.moves:
            self._move(-1)
        if not self.drift.sent:
            self._move(-self.moves)

    @torch.no_grad()
    def _move(self, times: int = 1) -> None:
        torch._foreach_add_(self.parameters, self.momentum, alpha=-self.rate * times)
        self.moves += times


@dataclass(frozen=True)
class SharedMomentum:
    """Sends the server's momentum to the sites, which include it in their steps: the `solver` and the `brief`."""

    batchable: ClassVar[bool] = True

    side_tensors: SideTensors
    settings: TrainingSettings
    sgd: SGD
    drift: Drift

    def brief(self, server: Server, card: SiteCard) -> Message:
        """Return the server's momentum."""
        return Message(self.side_tensors.outgoing(server, card, server_momentum(server)))

    def start(self, work: LocalWork) -> Stepper:
        """Return a site's stepper for one round."""
        s, samples = self.settings, len(work.site.train) if work.rows is None else len(work.rows)
        steps = step_count(samples, s.batch, s.epochs, s.steps, has_batch_norm(work.model))
        momentum = self.side_tensors.read(work, work.brief)
        return DriftingSGD(self.sgd, work.parameters, work.lr, self.drift, momentum, steps)
