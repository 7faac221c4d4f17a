"""The representation of pFedMo (docs/methods.md 8.9): a model that the server trains on its labelled public samples.

It takes as many steps in a round as a site, by the same rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedaccord.data.separation import distinguished, lacking_at_server, server_lacks
from fedaccord.data.site_data import Samples, SiteData
from fedaccord.data.sites import FederationData
from fedaccord.errors import ConfigError
from fedaccord.federation.state import SiteCard
from fedaccord.findings import Finding, note, warning
from fedaccord.labels.views import Exact
from fedaccord.messages.checks import all_finite
from fedaccord.messages.message import Message
from fedaccord.methods.momentum.settings import PfedmoSettings, PublicDataSettings
from fedaccord.methods.momentum.travelling import TravellingMomentum
from fedaccord.models.predicting import predict_logits
from fedaccord.seeds import derive
from fedaccord.training.local import seeded, train_locally
from fedaccord.training.objectives import Objective
from fedaccord.training.settings import TrainingSettings
from fedaccord.training.work import LocalWork

if TYPE_CHECKING:
    from fedaccord.federation.server import Server

PUBLIC = "(public)"  # the server's name in place of a site's
REPRESENTATION, REPRESENTATION_MOMENTUM = "representation", "representation momentum"  # in the method's state
ACCURACY = "representation_accuracy"  # of a round, on the held-out public samples
PULLED = "only the sites' labels teach them, and the pull towards the server's model works against it"


@dataclass(frozen=True)
class Representation:
    """A model of the server; its parameters, buffers and momentum are in the method's state."""

    settings: TrainingSettings
    objective: Objective
    momentum: TravellingMomentum  # the rule of the sites
    held_out: float  # share of the public samples that are not trained on

    def refuse_too_few(self, server: Server) -> None:
        """Raise ConfigError if no public samples would be left to train on or to hold out."""
        assert server.labelled is not None
        train, held = self._rows(server)
        if not len(train) or (self.held_out and not len(held)):
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
        work = self._work(server, SiteData(PUBLIC, Exact(server.space), public, public), brief)
        with seeded(derive(server.seed, REPRESENTATION, work.round)):
            reply = train_locally(work, self.objective, self.momentum, self.settings)
        model = server.layout.read(server.network.eval())
        momentum = self.momentum.side_tensors.flat(server, card, reply)
        if not (all_finite(model) and all_finite(momentum)):
            server.warn("the server's steps led to a model that is not finite and were discarded; lower method.lr")
            return
        state[REPRESENTATION], state[REPRESENTATION_MOMENTUM] = model, momentum
        if len(held):
            correct = predict_logits(server.network, x[held]).argmax(-1) == classes[held]
            server.figures[ACCURACY] = float(correct.float().mean())

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
            held[of_class[: round(self.held_out * len(of_class))]] = True
        return torch.from_numpy(np.flatnonzero(~held)), torch.from_numpy(np.flatnonzero(held))

    def _work(self, server: Server, public: SiteData, brief: Message) -> LocalWork:
        round_ = server.state.round + 1
        parameters: list[Tensor] = [p for p in server.network.parameters() if p.requires_grad]
        return LocalWork(
            site=public,
            view=public.view,
            model=server.network,
            brief=brief,
            memory=Message(),
            round=round_,
            lr=self.settings.lr_at(round_),
            parameters=parameters,
            received=[p.detach().clone() for p in parameters],
            seed=server.seed,
        )


@dataclass(frozen=True)
class RepresentationAlone:
    """A server step of the baseline without sites: the representation is the model."""

    representation: Representation

    def __call__(self, server: Server) -> None:
        """Train the representation for one round."""
        self.representation.prepare(server)
        self.representation.learn(server)
        server.state.model = server.state.method.tensors[REPRESENTATION]


def check(settings: PublicDataSettings, data: FederationData) -> list[Finding]:
    """Return findings about classes without public samples."""
    if data.labelled is None:
        return []
    lacking = lacking_at_server(data)
    pulled = distinguished(data) & lacking if isinstance(settings, PfedmoSettings) else set[str]()
    warnings = server_lacks(data, lacking - pulled)
    return [*map(warning, warnings), *map(note, server_lacks(data, pulled, PULLED))]
