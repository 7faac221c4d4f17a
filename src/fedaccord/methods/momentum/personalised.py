"""pFedMo's personalised models (docs/methods.md 8.9).

Each site is scored by its agreement with the representation on held-out public samples. It receives the sites' mean,
moved towards the representation in proportion to its score.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedaccord.aggregation.replies import Replies, normalised
from fedaccord.messages.checks import all_finite
from fedaccord.messages.message import Message, SiteId
from fedaccord.methods.momentum.representation import REPRESENTATION, REPRESENTATION_MOMENTUM, Representation
from fedaccord.methods.momentum.server_momentum import Rule, agreement_losses, combined, personalised, score
from fedaccord.methods.momentum.travelling import MOMENTUM, TravellingMomentum
from fedaccord.models.predicting import predict_logits

if TYPE_CHECKING:
    from fedaccord.federation.server import Server, SiteCard

MEAN = "mean model"  # in the method's state: of the sites, before personalisation
WORST, SCORE = "worst loss", "score"  # in the method's state, by site


@dataclass(frozen=True)
class PersonalisedModels:
    """pFedMo's parts of a recipe: `prepare`, `brief` and `refine`; the sites' solver is the travelling momentum."""

    momentum: TravellingMomentum
    representation: Representation
    rule: Rule
    temperature: float  # pi
    batch: int  # held-out inputs for the scores

    def prepare(self, server: Server) -> None:
        """Initialise the momentum and the representation."""
        self.momentum.prepare(server)
        self.representation.prepare(server)

    def brief(self, server: Server, card: SiteCard) -> Message:
        """Return the site's personalised model and momentum; the means if it has no score."""
        model, momentum = self._of_site(server, card.name)
        tensors = server.layout.named(model) | server.state.counters
        shared = server.recipe.sharing.outgoing(server.layout, tensors, card.informs)
        return Message(shared | self.momentum.side_tensors.outgoing(server, card, momentum))

    def score_with_momenta(self, server: Server, replies: Replies) -> Replies:
        """Let Krum score models and momenta together."""
        return self.momentum.score_with_momenta(server, replies, self._sent(server, replies))

    def refine(self, server: Server) -> None:
        """Train the representation, score the replies, and set the model to the mean of the personalised models."""
        replies = combined(server)
        if replies is not None:
            self.momentum.refine(server, self._sent(server, replies))
        self.representation.learn(server)  # last, because `_sent` needs the old one
        if replies is None:
            return
        server.state.method.tensors[MEAN] = server.state.model
        scores = self._scores(server, replies)
        mean_score = float((normalised(replies.weights) * scores).sum())
        server.figures[SCORE] = mean_score
        # A personalised model is linear in the score, so the mean of the models is the model of the mean score.
        server.state.model, _ = self._personalised(server, mean_score)
        mean = server.state.method.tensors[MEAN]
        failed = [site for site in replies.sites if self._of_site(server, site)[0] is mean]
        if failed:
            reason = f"the models of {len(failed)} of {len(replies)} sites are not finite, so these sites get the mean"
            server.drop("", "refine", "", reason)

    def _sent(self, server: Server, replies: Replies) -> Tensor | None:
        """Return the momentum that each site was sent; only attacks read it."""
        if server.attack is None:
            return None
        return torch.stack([self._of_site(server, site)[1] for site in replies.sites])

    def _of_site(self, server: Server, site: SiteId) -> tuple[Tensor, Tensor]:
        return self._personalised(server, float(server.state.method.numbers.get(f"{SCORE}/{site}", 0.0)))

    def _personalised(self, server: Server, site_score: float) -> tuple[Tensor, Tensor]:
        """Return the model and momentum for a score; the means if they are not finite."""
        state, trainable = server.state.method.tensors, server.layout.trainable_mask()
        mean = state.get(MEAN, server.state.model)
        model, momentum = personalised(
            self.rule,
            self.temperature * site_score,
            mean,
            state[MOMENTUM],
            state[REPRESENTATION],
            state[REPRESENTATION_MOMENTUM],
        )
        if not (all_finite(model[trainable]) and all_finite(momentum)):
            return mean, state[MOMENTUM]
        return torch.where(trainable, model, mean), momentum

    def _scores(self, server: Server, replies: Replies) -> Tensor:
        x = self.representation.held_inputs(server, self.batch)

        def logits(model: Tensor) -> Tensor:
            server.layout.load(server.network, model)
            return predict_logits(server.network, x)

        target = logits(server.state.method.tensors[REPRESENTATION])
        losses = agreement_losses(target, torch.stack([logits(row) for row in replies.matrix])).tolist()
        state, scores = server.state.method.numbers, []
        for site, loss in zip(replies.sites, losses, strict=True):
            if not math.isfinite(loss):  # logits overflowed, so use the worst loss
                loss = float(state.get(f"{WORST}/{site}", 0.0))
            worst = max(float(state.get(f"{WORST}/{site}", loss)), loss)
            scores.append(score(loss, worst))
            state[f"{WORST}/{site}"], state[f"{SCORE}/{site}"] = worst, scores[-1]
        return torch.tensor(scores, dtype=torch.float64)
