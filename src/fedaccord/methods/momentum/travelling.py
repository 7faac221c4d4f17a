"""Nesterov momentum of the sites that travels with the model: FedNAG, FastSlowMo, pFedMo (docs/methods.md 8.1, 8.7)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from fedaccord.aggregation.replies import Aggregator, Replies
from fedaccord.errors import TooFewSitesError
from fedaccord.federation.side_tensors import SideTensors
from fedaccord.messages.checks import TensorSpec, all_finite
from fedaccord.messages.message import Message
from fedaccord.methods.momentum.server_momentum import combined
from fedaccord.training.solvers import SGD, Stepper, regularised
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
