"""A method is a recipe: the parts that fill the steps of a round."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from fedaccord.aggregation.replies import Aggregator, Replies
from fedaccord.federation.sharing import SHARE_ALL, Sharing
from fedaccord.messages.checks import TensorSpec
from fedaccord.messages.message import Message
from fedaccord.models.network import Network
from fedaccord.training.adam import Adam
from fedaccord.training.objectives import Objective, ViewLikelihood
from fedaccord.training.settings import TrainingSettings
from fedaccord.training.solvers import SGD, Solver
from fedaccord.training.work import LocalWork

if TYPE_CHECKING:
    from fedaccord.federation.server import Server, SiteCard

ServerStep = Callable[["Server"], None]
"""A step of the server in a round; it reads and changes the server's state."""
ReplyStep = Callable[["Server", Replies], Replies]
"""A step on a round's admitted replies: it filters them or changes their weights."""
SiteTask = Callable[[LocalWork], Message]
"""A site's answer to a question of the server."""
Trains = Literal["sites", "server", "sites and server", "pool of views", "pool of truth"]
"""Who trains: sites, the server on labelled samples of its own, both, or one place with all samples (for studies)."""


@dataclass(frozen=True)
class Exchange:
    """Tensors that travel beside the model: the server's part of a brief, and what a reply must hold."""

    brief: Callable[[Server, SiteCard], Message] | None = None
    expected: Callable[[Server, SiteCard], Mapping[str, TensorSpec]] | None = None

    def brief_for(self, server: Server, card: SiteCard) -> Message:
        """Return what a site is sent beside the model."""
        return self.brief(server, card) if self.brief else Message()

    def reply_specs(self, server: Server, card: SiteCard) -> Mapping[str, TensorSpec]:
        """Return the names, shapes and dtypes that a site's reply must hold beside the model."""
        return self.expected(server, card) if self.expected else {}

    def merge(self, other: Exchange) -> Exchange:
        """Return an exchange of what both exchange."""

        def brief(server: Server, card: SiteCard) -> Message:
            first, second = self.brief_for(server, card), other.brief_for(server, card)
            return Message(first.tensors | second.tensors, first.numbers | second.numbers, first.words | second.words)

        def expected(server: Server, card: SiteCard) -> Mapping[str, TensorSpec]:
            return {**self.reply_specs(server, card), **other.reply_specs(server, card)}

        return Exchange(
            brief if self.brief and other.brief else self.brief or other.brief,
            expected if self.expected and other.expected else self.expected or other.expected,
        )


@dataclass(frozen=True)
class Recipe:
    """The parts of a method; a part that is left out has the plain choice: view likelihood, SGD, everything shared."""

    settings: TrainingSettings
    aggregator: Aggregator | None  # combines the replies; None: every site keeps its own model
    objective: Objective = field(default_factory=ViewLikelihood)  # the loss a site minimises
    solver: Solver | None = None  # how a site steps; None: the optimiser of the settings
    sharing: Sharing = SHARE_ALL  # which parameters travel
    exchange: Exchange = field(default_factory=Exchange)  # what travels beside the model
    network: Callable[[Network, Sequence[str], int], None] | None = None  # changes the initial network: labels, seed
    ready: tuple[ServerStep, ...] = ()  # before the first round: raise ConfigError for sites the method cannot use
    prepare: tuple[ServerStep, ...] = ()  # before the sites train
    admit: tuple[ReplyStep, ...] = ()  # after replies were checked: defences, weights
    refine: tuple[ServerStep, ...] = ()  # after the replies were combined
    report: Callable[[Server], list[dict[str, Any]]] | None = None  # lines of metrics.jsonl for the last round
    tasks: Mapping[str, SiteTask] = field(default_factory=dict)  # further questions that a server step may ask
    trains: Trains = "sites"

    @property
    def site_solver(self) -> Solver:
        """The solver, or the optimiser that the settings describe."""
        return self.solver or plain_solver(self.settings)

    @property
    def server_trains(self) -> bool:
        """Whether the server trains on labelled samples of its own."""
        return "server" in self.trains

    @property
    def is_pooled(self) -> bool:
        """Whether one place trains on all sites' samples, with their annotations or with the true labels."""
        return self.trains.startswith("pool")

    @property
    def sites_train(self) -> bool:
        """Whether any site is asked to train."""
        return self.trains != "server"


def plain_solver(settings: TrainingSettings) -> Solver:
    """Return the optimiser that the settings describe."""
    if settings.optimiser == "adam":
        return Adam(settings.weight_decay, settings.clip)
    return SGD(settings.momentum, settings.weight_decay, settings.clip)
