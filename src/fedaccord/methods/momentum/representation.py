"""pFedMo at the server: a representation model trained on public samples, scores, and personalised returns.

The representation learns from the server's own labelled samples by the rule that the sites use, as many steps as they.
Every site is scored by how well its model agrees with it on public samples that were held out, and gets back the sites'
mean, moved towards the representation by that score (docs/methods.md 8.9).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedaccord.aggregation.replies import Replies, normalised
from fedaccord.data.site_data import Samples, SiteData
from fedaccord.errors import ConfigError
from fedaccord.federation.state import SiteCard
from fedaccord.labels.views import Exact
from fedaccord.messages.checks import all_finite
from fedaccord.messages.message import Message, SiteId
from fedaccord.methods.momentum.rules import Rule, agreement_losses, personalised, score
from fedaccord.methods.momentum.server import MOMENTUM, TravellingMomentum, combined
from fedaccord.models.predicting import predict_logits
from fedaccord.seeds import derive
from fedaccord.training.local import seeded, train_locally
from fedaccord.training.objectives import Objective
from fedaccord.training.settings import TrainingSettings
from fedaccord.training.work import LocalWork

if TYPE_CHECKING:
    from fedaccord.federation.server import Server

PUBLIC = "(public)"  # stands for the server where a site's name is asked for
REPRESENTATION, REPRESENTATION_MOMENTUM = "representation", "representation momentum"
MEAN = "mean model"  # of the sites, before it is personalised
WORST, SCORE = "worst loss", "score"  # by site
AGREEMENT = "representation_accuracy"
"""The figure of a round that says how good the representation is on the public samples that were held out."""


@dataclass(frozen=True)
class Representation:
    """The server's own model; its parameters, buffers and momentum are in the method's state."""

    settings: TrainingSettings
    objective: Objective
    momentum: TravellingMomentum  # the sites' own rule
    held_out: float  # share of the public samples that it does not learn from

    def refuse_too_few(self, server: Server) -> None:
        """Refuse public samples of which nothing would be left on one side."""
        assert server.labelled is not None
        learned, held = self._rows(server)
        if not len(learned) or (self.held_out and not len(held)):
            few = f"of the server's {len(server.labelled[0])} labelled samples {len(held)} are held out for the scores"
            raise ConfigError(f"{few} and {len(learned)} left to learn from; give more by [server] labelled")

    def prepare(self, server: Server) -> None:
        """Begin from the model that everyone begins from."""
        server.state.method.tensors.setdefault(REPRESENTATION, server.state.model)
        server.state.method.tensors.setdefault(REPRESENTATION_MOMENTUM, server.state.model)

    def learn(self, server: Server) -> None:
        """Take a round's steps on the public samples; a result that is not finite is left out, and told."""
        assert server.labelled is not None
        kept = server.state.method.tensors
        x, classes = server.labelled
        learned, held = self._rows(server)
        public = Samples(x[learned], classes[learned], classes[learned])
        card = SiteCard(PUBLIC, len(public), Exact.kind, torch.ones(len(server.space), dtype=torch.bool))
        told = Message(self.momentum.side_tensors.outgoing(server, card, kept[REPRESENTATION_MOMENTUM]))
        server.layout.load(server.network, kept[REPRESENTATION])
        work = self._work(server, SiteData(PUBLIC, Exact(server.space), public, public), told)
        with seeded(derive(server.seed, REPRESENTATION, work.round)):
            reply = train_locally(work, self.objective, self.momentum, self.settings)
        model = server.layout.read(server.network.eval())
        momentum = self.momentum.side_tensors.flat(server, card, reply)
        if not (all_finite(model) and all_finite(momentum)):
            server.warn("the server's own steps gave a model that is not finite, so they were left out; lower its lr")
            return
        kept[REPRESENTATION], kept[REPRESENTATION_MOMENTUM] = model, momentum
        if len(held):
            right = predict_logits(server.network, x[held]).argmax(-1) == classes[held]
            server.figures[AGREEMENT] = float(right.float().mean())

    def held_inputs(self, server: Server, number: int) -> Tensor:
        """Draw, anew in each round, inputs that the representation does not learn from."""
        assert server.labelled is not None
        _, held = self._rows(server)
        generator = torch.Generator().manual_seed(derive(server.seed, "score batch", server.state.round + 1))
        return server.labelled[0][held[torch.randperm(len(held), generator=generator)[:number].sort().values]]

    def _rows(self, server: Server) -> tuple[Tensor, Tensor]:
        """Return the rows to learn from and those held out, the same share of each class: the same in every round."""
        assert server.labelled is not None
        classes = server.labelled[1].cpu().numpy()
        order = np.random.default_rng(derive(server.seed, "held out")).permutation(len(classes))
        held = np.zeros(len(classes), dtype=bool)
        for column in range(len(server.space)):
            of_class = order[classes[order] == column]
            held[of_class[: round(self.held_out * len(of_class))]] = True
        return torch.from_numpy(np.flatnonzero(~held)), torch.from_numpy(np.flatnonzero(held))

    def _work(self, server: Server, public: SiteData, told: Message) -> LocalWork:
        round_ = server.state.round + 1
        parameters: list[Tensor] = [p for p in server.network.parameters() if p.requires_grad]
        return LocalWork(
            site=public,
            view=public.view,
            model=server.network,
            brief=told,
            memory=Message(),
            round=round_,
            lr=self.settings.lr_at(round_),
            parameters=parameters,
            received=[p.detach().clone() for p in parameters],
            seed=server.seed,
        )


@dataclass(frozen=True)
class RepresentationAlone:
    """The server step of the baseline that has no sites: the representation is the model."""

    representation: Representation

    def __call__(self, server: Server) -> None:
        """Take a round's steps."""
        self.representation.prepare(server)
        self.representation.learn(server)
        server.state.model = server.state.method.tensors[REPRESENTATION]


@dataclass(frozen=True)
class PersonalisedReturns:
    """pFedMo's parts of a recipe: `prepare`, `brief` and `refine` at the server; at the sites Nesterov's rule."""

    momentum: TravellingMomentum
    representation: Representation
    rule: Rule
    temperature: float  # pi
    batch: int  # inputs that scores are taken on

    def prepare(self, server: Server) -> None:
        """Begin without momentum, and the representation where the sites begin."""
        self.momentum.prepare(server)
        self.representation.prepare(server)

    def brief(self, server: Server, card: SiteCard) -> Message:
        """Return the site's own model and momentum; a site without a score gets the mean."""
        model, momentum = self._own(server, card.name)
        tensors = server.layout.named(model) | server.state.counters
        own = server.recipe.sharing.outgoing(server.layout, tensors, card.informs)
        return Message(own | self.momentum.side_tensors.outgoing(server, card, momentum))

    def chosen_together(self, server: Server, replies: Replies) -> Replies:
        """Let a rule that chooses sites look at models and momenta at once."""
        return self.momentum.chosen_together(server, replies, self._sent(server, replies))

    def refine(self, server: Server) -> None:
        """Let the representation learn, score the replies, and judge the mean of what the sites get back."""
        replies = combined(server)
        if replies is not None:
            self.momentum.refine(server, self._sent(server, replies))
        self.representation.learn(server)  # only now: what the sites were sent follows from what it was
        if replies is None:
            return
        server.state.method.tensors[MEAN] = server.state.model
        scores = self._scores(server, replies)
        mean_score = float((normalised(replies.weights) * scores).sum())
        server.figures[SCORE] = mean_score
        # A site's model is linear in its score, so the mean of the sites' models is that of the mean score.
        server.state.model, _ = self._moved(server, mean_score)
        lost = [site for site in replies.sites if self._own(server, site)[0] is server.state.method.tensors[MEAN]]
        if lost:
            what = f"what {len(lost)} of {len(replies)} sites would get back is not finite; they get the mean"
            server.drop("", "refine", "", what)

    def _sent(self, server: Server, replies: Replies) -> Tensor | None:
        """Return the momentum that each site was sent; only attacks look at it."""
        if server.attack is None:
            return None
        return torch.stack([self._own(server, site)[1] for site in replies.sites])

    def _own(self, server: Server, site: SiteId) -> tuple[Tensor, Tensor]:
        return self._moved(server, float(server.state.method.numbers.get(f"{SCORE}/{site}", 0.0)))

    def _moved(self, server: Server, score_of_site: float) -> tuple[Tensor, Tensor]:
        """Return model and momentum for a score; where that is not finite, the means themselves."""
        kept, moving = server.state.method.tensors, server.layout.trainable_mask()
        mean = kept.get(MEAN, server.state.model)
        model, momentum = personalised(
            self.rule,
            self.temperature * score_of_site,
            mean,
            kept[MOMENTUM],
            kept[REPRESENTATION],
            kept[REPRESENTATION_MOMENTUM],
        )
        if not (all_finite(model[moving]) and all_finite(momentum)):
            return mean, kept[MOMENTUM]
        return torch.where(moving, model, mean), momentum

    def _scores(self, server: Server, replies: Replies) -> Tensor:
        x = self.representation.held_inputs(server, self.batch)

        def logits(model: Tensor) -> Tensor:
            server.layout.load(server.network, model)
            return predict_logits(server.network, x)

        wanted = logits(server.state.method.tensors[REPRESENTATION])
        losses = agreement_losses(wanted, torch.stack([logits(row) for row in replies.matrix])).tolist()
        kept, scores = server.state.method.numbers, []
        for site, loss in zip(replies.sites, losses, strict=True):
            if not math.isfinite(loss):  # logits beyond every float: nothing to agree with
                loss = float(kept.get(f"{WORST}/{site}", 0.0))
            worst = max(float(kept.get(f"{WORST}/{site}", loss)), loss)
            kept[f"{WORST}/{site}"] = worst
            kept[f"{SCORE}/{site}"] = found = score(loss, worst)
            scores.append(found)
        return torch.tensor(scores, dtype=torch.float64)
