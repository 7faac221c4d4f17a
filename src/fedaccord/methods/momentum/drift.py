"""Local steps that include the server's momentum: DOMO and FedADC (docs/methods.md 8.4 and 8.5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor

from fedaccord.federation.side_tensors import SideTensors
from fedaccord.messages.message import Message
from fedaccord.methods.momentum.server_momentum import server_momentum
from fedaccord.training.batches import step_count
from fedaccord.training.local import has_batch_norm
from fedaccord.training.settings import TrainingSettings
from fedaccord.training.solvers import SGD, SGDStepper, Stepper
from fedaccord.training.work import LocalWork

if TYPE_CHECKING:
    from fedaccord.federation.server import Server, SiteCard


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

    def settle(self) -> None:
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
        return _SharedDrift(self.sgd, work.parameters, work.lr, self.drift, momentum, steps)


class _SharedDrift(DriftingSGD):
    def finish(self, work: LocalWork, reply: Message) -> None:
        """Undo the moves that are not sent."""
        self.settle()
