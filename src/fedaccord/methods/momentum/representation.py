"""pFedMo (docs/methods.md 8.9): the representation, and models personalised by agreement with it.

The representation is a model that the server trains on its labelled public samples, with as many steps in a round as a
site and by the same rule. Each site is scored by its agreement with the representation on held-out public samples. It
receives the sites' mean, moved towards the representation in proportion to its score.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedaccord.aggregation.replies import Replies, normalised
from fedaccord.data.coverage import distinguished, lacking_at_server, server_lacks
from fedaccord.data.site_data import Samples, SiteData
from fedaccord.data.sites import FederationData
from fedaccord.errors import ConfigError
from fedaccord.federation.server_training import work_at_server
from fedaccord.federation.state import SiteCard
from fedaccord.findings import Finding, note, warning
from fedaccord.labels.views import Exact
from fedaccord.messages.checks import all_finite
from fedaccord.messages.message import Message, SiteId
from fedaccord.methods.common_model import proximal_objective
from fedaccord.methods.momentum.server_momentum import agreement_losses, combined, personalised, score
from fedaccord.methods.momentum.settings import PfedmoSettings, PublicDataSettings
from fedaccord.methods.momentum.site import MOMENTUM, TravellingMomentum
from fedaccord.models.network import predict_logits
from fedaccord.seeds import derive
from fedaccord.training.local import seeded, train_locally

if TYPE_CHECKING:
    from fedaccord.federation.server import Server

PUBLIC = "(public)"  # the server's name in place of a site's
REPRESENTATION, REPRESENTATION_MOMENTUM = "representation", "representation momentum"  # in the method's state
ACCURACY = "representation_accuracy"  # of a round, on the held-out public samples
PULLED = "only the sites' labels teach them, and the pull towards the server's model works against it"
MEAN = "mean model"  # in the method's state: of the sites, before personalisation
WORST, SCORE = "worst loss", "score"  # in the method's state, by site


@dataclass(frozen=True)
class Representation:
    """A model of the server; its parameters, buffers and momentum are in the method's state."""

    settings: PublicDataSettings
    momentum: TravellingMomentum  # the rule of the sites

    def refuse_too_few(self, server: Server) -> None:
        """Raise ConfigError if no public samples would be left to train on or to hold out."""
        assert server.labelled is not None
        train, held = self._rows(server)
        if not len(train) or (self.settings.held_out and not len(held)):
            few = f"of the server's {len(server.labelled[0])} labelled samples {len(held)} are held out for the scores"
            raise ConfigError(f"{few} and {len(train)} left to learn from; give more by [server] labelled")

    def prepare(self, server: Server) -> None:
        """Initialise the representation with the initial model of the federation."""
        server.state.method.tensors.setdefault(REPRESENTATION, server.state.model)
        server.state.method.tensors.setdefault(REPRESENTATION_MOMENTUM, server.state.model)

    def learn(self, server: Server) -> None:
        """Train for one round on the public samples; discard a result that is not finite, with a warning."""
        assert server.labelled is not None
        state = server.state.method.tensors
        x, classes = server.labelled
        train, held = self._rows(server)
        public = Samples(x[train], classes[train], classes[train])
        card = SiteCard(PUBLIC, len(public), Exact.kind, torch.ones(len(server.space), dtype=torch.bool))
        brief = Message(self.momentum.side_tensors.outgoing(server, card, state[REPRESENTATION_MOMENTUM]))
        server.layout.load(server.network, state[REPRESENTATION])
        work = work_at_server(server, SiteData(PUBLIC, Exact(server.space), public, public), brief)
        with seeded(derive(server.seed, REPRESENTATION, work.round)):
            reply = train_locally(work, proximal_objective(0.0, self.settings.loss), self.momentum, self.settings)
        model = server.layout.read(server.network.eval())
        momentum = self.momentum.side_tensors.flat(server, card, reply)
        if not (all_finite(model) and all_finite(momentum)):
            server.warn("the server's steps led to a model that is not finite and were discarded; lower method.lr")
            return
        state[REPRESENTATION], state[REPRESENTATION_MOMENTUM] = model, momentum
        if len(held):
            correct = predict_logits(server.network, x[held]).argmax(-1) == classes[held]
            server.figures[ACCURACY] = float(correct.float().mean())

    def learn_alone(self, server: Server) -> None:
        """Train for one round and adopt the representation as the model: the server step of the baseline."""
        self.prepare(server)
        self.learn(server)
        server.state.model = server.state.method.tensors[REPRESENTATION]

    def held_inputs(self, server: Server, number: int) -> Tensor:
        """Draw held-out inputs, anew in each round."""
        assert server.labelled is not None
        _, held = self._rows(server)
        generator = torch.Generator().manual_seed(derive(server.seed, "score batch", server.state.round + 1))
        return server.labelled[0][held[torch.randperm(len(held), generator=generator)[:number].sort().values]]

    def _rows(self, server: Server) -> tuple[Tensor, Tensor]:
        """Return the rows to train on and the held-out rows, stratified by class and the same in every round."""
        assert server.labelled is not None
        classes = server.labelled[1].cpu().numpy()
        order = np.random.default_rng(derive(server.seed, "held out")).permutation(len(classes))
        held = np.zeros(len(classes), dtype=bool)
        for column in range(len(server.space)):
            of_class = order[classes[order] == column]
            held[of_class[: round(self.settings.held_out * len(of_class))]] = True
        return torch.from_numpy(np.flatnonzero(~held)), torch.from_numpy(np.flatnonzero(held))


def check(settings: PublicDataSettings, data: FederationData) -> list[Finding]:
    """Return findings about classes without public samples."""
    if data.labelled is None:
        return []
    lacking = lacking_at_server(data)
    pulled = distinguished(data) & lacking if isinstance(settings, PfedmoSettings) else set[str]()
    warnings = server_lacks(data, lacking - pulled)
    return [*map(warning, warnings), *map(note, server_lacks(data, pulled, PULLED))]


@dataclass(frozen=True)
class PersonalisedModels:
    """pFedMo's parts of a recipe: `prepare`, `brief` and `refine`; the sites' solver is the travelling momentum."""

    settings: PfedmoSettings
    representation: Representation

    @property
    def momentum(self) -> TravellingMomentum:
        """The sites' rule, which is also that of the representation."""
        return self.representation.momentum

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
            self.settings.rule,
            self.settings.pi * site_score,
            mean,
            state[MOMENTUM],
            state[REPRESENTATION],
            state[REPRESENTATION_MOMENTUM],
        )
        if not (all_finite(model[trainable]) and all_finite(momentum)):
            return mean, state[MOMENTUM]
        return torch.where(trainable, model, mean), momentum

    def _scores(self, server: Server, replies: Replies) -> Tensor:
        x = self.representation.held_inputs(server, self.settings.score_batch)

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
