"""Momentum between server and sites: that of the sites, which travels with their models, and that of the server.

Methods are put together from these parts (`methods/momentum.py`): the sites' Nesterov momentum (FedNAG, FastSlowMo,
pFedMo); a server that steps along the sites' mean with momentum of its own (FedMom, SlowMo); sites that are told this
momentum and go along with it (DOMO, FedADC); statistics of the gradient that stay the same for a round (Mime).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from fedaccord.aggregation.replies import Aggregator, Replies
from fedaccord.errors import TooFewSitesError
from fedaccord.federation.reply_weights import equal_weights
from fedaccord.federation.side_tensors import SideTensors
from fedaccord.messages.checks import TensorSpec, all_finite
from fedaccord.messages.message import Message, SiteId
from fedaccord.messages.names import COMPUTED
from fedaccord.methods.momentum.rules import heavy_ball, nesterov
from fedaccord.methods.momentum.site import Drift, DriftingSGD, MimeSteps, Nesterov, full_gradient
from fedaccord.training.batches import step_count
from fedaccord.training.local import has_batch_norm
from fedaccord.training.objectives import Objective
from fedaccord.training.settings import TrainingSettings
from fedaccord.training.solvers import SGD, Stepper
from fedaccord.training.work import LocalWork

if TYPE_CHECKING:
    from fedaccord.federation.server import Server, SiteCard

MOMENTUM = "momentum"  # prefix in messages, and the name of the sites' mean momentum in the method's state
SERVER_MOMENTUM = "server momentum"
STATISTICS = "statistics"
GRADIENT = "gradient"  # prefix of a full gradient in messages, and the question for it


def combined(server: Server) -> Replies | None:
    """Return the round's replies if a new model was made of them; otherwise there is nothing to follow up."""
    replies = server.replies
    return None if replies is None or server.state.model is replies.previous else replies


@dataclass(frozen=True)
class TravellingMomentum:
    """The sites' Nesterov momentum: sent with the model, stepped with at the site, returned and combined like it."""

    batchable: ClassVar[bool] = True

    side_tensors: SideTensors
    aggregator: Aggregator  # that of the model, so that a robust rule protects the momentum too
    sgd: SGD
    gamma: float

    # At a site

    def start(self, work: LocalWork) -> Stepper:
        """Begin a round at one site: the `solver` slot."""
        return _TravellingNesterov(self, work)

    # At the server

    def prepare(self, server: Server) -> None:
        """Begin with `m = w`: no momentum yet."""
        server.state.method.tensors.setdefault(MOMENTUM, server.state.model)

    def brief(self, server: Server, card: SiteCard) -> Message:
        """Return the sites' mean momentum."""
        return Message(self.side_tensors.outgoing(server, card, server.state.method.tensors[MOMENTUM]))

    def extras(self, server: Server, card: SiteCard) -> dict[str, TensorSpec]:
        """Return what a reply holds beside the model."""
        return self.side_tensors.expected(server, card)

    def chosen_together(self, server: Server, replies: Replies, started: Tensor | None = None) -> Replies:
        """Let a rule that chooses sites look at models and momenta at once, so that both are of the same sites."""
        momenta = self.side_tensors.replies(server, replies, server.state.method.tensors[MOMENTUM], started)
        return replace(replies, scored=(replies.matrix, momenta.matrix))

    def refine(self, server: Server, started: Tensor | None = None) -> None:
        """Combine the momenta of the round's replies; `started` is what each site was sent, if not the last mean."""
        replies, kept = combined(server), server.state.method.tensors
        if replies is None:
            return
        try:
            momentum = self.aggregator(self.side_tensors.replies(server, replies, kept[MOMENTUM], started))
        except TooFewSitesError:  # told where the model was to be combined
            return
        if all_finite(momentum):
            kept[MOMENTUM] = momentum


class _TravellingNesterov(Nesterov):
    """A round of Nesterov's rule at one site, from the momentum it was sent."""

    def __init__(self, parts: TravellingMomentum, work: LocalWork) -> None:
        self.side_tensors = parts.side_tensors
        super().__init__(parts.sgd, work.parameters, work.lr, parts.gamma, self.side_tensors.read(work, work.brief))

    def finish(self, work: LocalWork, reply: Message) -> None:
        """Send the momentum with the model."""
        reply.tensors |= self.side_tensors.write(work, self.momentum)


@dataclass(frozen=True)
class ServerNesterov:
    """A server step: Nesterov's rule on the sites' mean (FedMom, FastSlowMo)."""

    rate: float
    beta: float

    def __call__(self, server: Server) -> None:
        """Go on from the mean; the first momentum is the model that the sites began from."""
        replies, kept = combined(server), server.state.method.tensors
        if replies is not None:
            last = kept.get(SERVER_MOMENTUM, replies.previous)
            _move(server, *nesterov(replies.previous, server.state.model, last, self.rate, self.beta))


@dataclass(frozen=True)
class ServerHeavyBall:
    """A server step: heavy-ball momentum on the sites' mean (SlowMo, DOMO, FedADC)."""

    settings: TrainingSettings
    alpha: float
    beta: float

    def __call__(self, server: Server) -> None:
        """Go on from the model that was sent out, along the momentum."""
        replies = combined(server)
        if replies is not None:
            lr = self.settings.lr_at(server.state.round + 1)
            last = server_momentum(server)
            _move(server, *heavy_ball(replies.previous, server.state.model, last, lr, self.alpha, self.beta))


def server_momentum(server: Server) -> Tensor:
    """Return the server's heavy-ball momentum, at first zero."""
    kept = server.state.method.tensors.get(SERVER_MOMENTUM)
    return torch.zeros(server.layout.size) if kept is None else kept


def _move(server: Server, model: Tensor, momentum: Tensor) -> None:
    """Take a model that momentum has led to, with the sites' mean of batch-norm statistics; not one that overflowed."""
    moving = server.layout.trainable_mask()
    if all_finite(model[moving]) and all_finite(momentum[moving]):
        server.state.model = torch.where(moving, model, server.state.model)
        server.state.method.tensors[SERVER_MOMENTUM] = momentum.where(moving, torch.zeros(()))
    else:
        server.drop("", "refine", "", "the server's momentum led to a model that is not finite; the mean is kept")


@dataclass(frozen=True)
class SharedMomentum:
    """Sites are told the server's momentum and go along with it: the `solver` and the `brief` of DOMO and FedADC."""

    batchable: ClassVar[bool] = True

    side_tensors: SideTensors
    settings: TrainingSettings
    sgd: SGD
    drift: Drift

    def brief(self, server: Server, card: SiteCard) -> Message:
        """Return the server's momentum."""
        return Message(self.side_tensors.outgoing(server, card, server_momentum(server)))

    def start(self, work: LocalWork) -> Stepper:
        """Begin a round at one site."""
        s, samples = self.settings, len(work.site.train) if work.rows is None else len(work.rows)
        steps = step_count(samples, s.batch, s.epochs, s.steps, has_batch_norm(work.model))
        momentum = self.side_tensors.read(work, work.brief)
        return _SharedDrift(self.sgd, work.parameters, work.lr, self.drift, momentum, steps)


class _SharedDrift(DriftingSGD):
    def finish(self, work: LocalWork, reply: Message) -> None:
        """Leave the model as the server expects it."""
        self.settle()


@dataclass(frozen=True)
class GradientStatistics:
    """Mime: statistics `s` of the full gradient, taken at the model that is sent out and fixed during local steps."""

    batchable: ClassVar[bool] = True

    gradient: SideTensors
    statistics: SideTensors
    aggregator: Aggregator  # that of the model, so that a robust rule protects the gradients too
    objective: Objective
    sgd: SGD
    beta: float
    corrected: bool = True  # False: MimeLite
    samples: int | None = None  # that a full gradient is taken on; None: all

    # At a site

    def start(self, work: LocalWork) -> Stepper:
        """Begin a round at one site: the `solver` slot."""
        full = self.gradient.read(work, work.brief) if self.corrected else None
        return MimeSteps(self.sgd, work, self.beta, self.statistics.read(work, work.brief), full)

    def answer(self, work: LocalWork) -> Message:
        """Return a site's full gradient at the model it was sent: the task `gradient`."""
        gradient, samples = full_gradient(work, self.objective, self.sgd, self.samples)
        return Message(self.gradient.write(work, gradient), {"samples": samples, COMPUTED: samples})

    # At the server

    def prepare(self, server: Server) -> None:
        """Ask the round's sites for their full gradients, and combine them as models are combined."""
        sharing, tensors, cards = server.recipe.sharing, server.tensors, server.cards
        asked = server.sample_sites()
        briefs = {s: Message(sharing.outgoing(server.layout, tensors, cards[s].informs)) for s in asked}
        answers = server.ask(GRADIENT, briefs, self.gradient.expected(server, cards[asked[0]]) if asked else None)
        if not answers:
            return
        try:
            server.state.method.tensors[GRADIENT] = self.aggregator(self._gathered(server, answers))
        except TooFewSitesError as error:
            server.drop("", GRADIENT, "", f"{error}; the last gradient is kept")

    def _gathered(self, server: Server, answers: dict[SiteId, Message]) -> Replies:
        """Return the gradients as replies, weighed as models are, but by the samples that the sites joined with."""
        replies, zeros = server.reply_table(answers), torch.zeros(server.layout.size)
        samples = torch.tensor([server.cards[site].samples for site in replies.sites], dtype=torch.float64)
        replies = replace(self.gradient.replies(server, replies, zeros), weights=samples)
        return equal_weights(server, replies) if equal_weights in server.recipe.admit else replies

    def brief(self, server: Server, card: SiteCard) -> Message:
        """Return the statistics, and the mean gradient that corrects the sites' own."""
        kept, zeros = server.state.method.tensors, torch.zeros(server.layout.size)
        told = self.statistics.outgoing(server, card, kept.get(STATISTICS, zeros))
        if self.corrected:
            told |= self.gradient.outgoing(server, card, kept.get(GRADIENT, zeros))
        return Message(told)

    def refine(self, server: Server) -> None:
        """Renew the statistics: `s <- (1 - beta) c + beta s`."""
        kept = server.state.method.tensors
        if combined(server) is not None and GRADIENT in kept:
            last = kept.get(STATISTICS, torch.zeros(server.layout.size))
            kept[STATISTICS] = (1 - self.beta) * kept[GRADIENT] + self.beta * last
