"""A method is a recipe: the parts of a round."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import torch

from fedaccord.adversary.attacks import TO_SETS
from fedaccord.aggregation.replies import Aggregator, Replies
from fedaccord.errors import ConfigError, listed
from fedaccord.federation.sharing import SHARE_ALL, Sharing
from fedaccord.labels.views import Candidates, View, view_class
from fedaccord.messages.checks import TensorSpec
from fedaccord.messages.message import Message
from fedaccord.models.network import Network
from fedaccord.training.objectives import Objective, ViewLikelihood
from fedaccord.training.settings import TrainingSettings
from fedaccord.training.solvers import SGD, Adam, Solver
from fedaccord.training.work import LocalWork

if TYPE_CHECKING:
    from fedaccord.federation.round import Progress
    from fedaccord.federation.server import Server, SiteCard

ServerStep = Callable[["Server"], None]
"""A step of the server in a round, which may change the server's state.

A step of `refine` with the attribute `reads_replies = False` only needs the aggregated model.
"""
ReplyStep = Callable[["Server", Replies], Replies]
"""A step on the valid replies of a round, e.g. a filter or new weights."""
Conclusion = Callable[["Server"], Iterator["Progress"]]
"""A step after the last round, which yields its progress after each further round."""
SiteTask = Callable[[LocalWork], Message]
"""A task at a site, besides training and evaluation; returns the reply."""
Trains = Literal[
    "sites", "server", "sites and server", "sites, and server if labelled", "pool of views", "pool of truth"
]
"""Who trains: the sites, the server on its labelled samples, both, or one place with all samples (for studies).

With "sites, and server if labelled" a server without labelled samples does not train; otherwise it must have them.
"""


@dataclass(frozen=True)
class Exchange:
    """Tensors that travel beside the model.

    `brief(server, card)` returns what the site of a card is sent, found there in `LocalWork.brief`. `expected(server,
    card)` returns the name, shape and dtype of each tensor that its objective or solver adds to the reply in `finish`;
    a reply without them, or with others, is dropped.
    """

    brief: Callable[[Server, SiteCard], Message] | None = None  # additions to the brief of a site
    expected: Callable[[Server, SiteCard], Mapping[str, TensorSpec]] | None = None  # additions to its reply

    def brief_for(self, server: Server, card: SiteCard) -> Message:
        """Return the additions to the brief of a site."""
        return self.brief(server, card) if self.brief else Message()

    def reply_specs(self, server: Server, card: SiteCard) -> Mapping[str, TensorSpec]:
        """Return the names, shapes and dtypes of the additional tensors in a site's reply."""
        return self.expected(server, card) if self.expected else {}

    def merge(self, other: Exchange) -> Exchange:
        """Return an exchange with the tensors of both."""

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
    """A method: the parts that fill the steps of a round. Only `settings` and `aggregator` must be given.

    Server and sites build the same recipe from the same settings; a site has only those that belong to it. Before the
    first round the server runs `ready`. In a round

    1. the server runs `prepare`, then sends each site the model (`sharing`) and the tensors of `exchange`;
    2. each site trains `objective` with `solver`, and replies with its model and the tensors of `exchange`;
    3. the server drops malformed replies, runs `admit` on the others, and combines them with `aggregator`;
    4. the server runs `refine`, and sites are evaluated.

    After the last round the server runs `conclude`, and sites are evaluated once more.

    A recipe is frozen: methods extend one with `dataclasses.replace`.
    """

    settings: TrainingSettings
    aggregator: Aggregator | None  # of the replies; None: every site trains a local model
    objective: Objective = field(default_factory=ViewLikelihood)  # the loss of a site
    solver: Solver | None = None  # of a site; None: the optimiser of the settings
    sharing: Sharing = SHARE_ALL  # the parts of the model that are sent
    exchange: Exchange = field(default_factory=Exchange)  # tensors sent with the model
    network: Callable[[Network, Sequence[str], int], None] | None = None  # edits the initial network; labels, seed
    ready: tuple[ServerStep, ...] = ()  # before the first round; raise ConfigError for unsuitable sites
    prepare: tuple[ServerStep, ...] = ()  # before the sites train
    admit: tuple[ReplyStep, ...] = ()  # on valid replies: defences, weights
    refine: tuple[ServerStep, ...] = ()  # after the aggregation
    conclude: tuple[Conclusion, ...] = ()  # after the last round, also of a run that stops early
    parts: Callable[[Server], list[str]] | None = None  # sentences on what is switched on for these sites, and why
    report: Callable[[Server], list[dict[str, Any]]] | None = None  # lines for metrics.jsonl after the last round
    tasks: Mapping[str, SiteTask] = field(default_factory=dict)  # further tasks that a server step may request
    trains: Trains = "sites"

    def __post_init__(self) -> None:
        if isinstance(self.objective, type):
            name = self.objective.__name__
            raise ConfigError(f"the objective of a recipe is an instance: {name}(...), not the class {name}")

    @property
    def site_solver(self) -> Solver:
        """The solver, by default the optimiser of the settings."""
        return self.solver or plain_solver(self.settings)

    @property
    def server_trains(self) -> bool:
        """Whether the server trains on its labelled samples, if it has any."""
        return "server" in self.trains

    @property
    def needs_labelled(self) -> bool:
        """Whether the server must have labelled samples."""
        return self.trains in ("server", "sites and server")

    @property
    def is_pooled(self) -> bool:
        """Whether one place trains on the samples of all sites, with their annotations or with true labels."""
        return self.trains.startswith("pool")

    @property
    def sites_train(self) -> bool:
        """Whether any site trains."""
        return self.trains != "server"


def plain_solver(settings: TrainingSettings) -> Solver:
    """Return the optimiser of the settings."""
    if settings.optimiser == "adam":
        return Adam(settings.weight_decay, settings.clip)
    return SGD(settings.momentum, settings.weight_decay, settings.clip)


@dataclass(frozen=True)
class RequireViews:
    """Requires a property of the views of all sites that train.

    `needs` is a true-or-false attribute of `View`: "one_label" (no tags), "one_name" (exact or coarse labels),
    "exact" and others. `needed` is the same in words, for the message.
    """

    needs: str
    needed: str

    def __post_init__(self) -> None:
        known = [name for name, value in vars(View).items() if isinstance(value, bool)]
        if self.needs not in known:
            raise ConfigError(f"RequireViews: unknown property '{self.needs}'; known: {listed(known, most=20)}")

    def __call__(self, server: Server) -> None:
        """Raise ConfigError if a site lacks the property, or would lose it by an attack that makes candidate sets."""
        attack = server.attack
        for site in server.trainers():
            if not getattr(view_class(server.cards[site].view), self.needs):
                raise ConfigError(f"the method needs {self.needed}, but site '{site}' has {server.cards[site].view}")
        if attack is not None and attack.kind in TO_SETS and server.hostile and not getattr(Candidates, self.needs):
            raise ConfigError(
                f"the method needs {self.needed}, but method.attack '{attack.kind}' turns the labels of "
                f"site '{server.hostile[0]}' into candidate sets"
            )


def require_tags(server: Server) -> None:
    """Raise ConfigError unless all sites that train have tags."""
    for site in server.trainers():
        if view_class(server.cards[site].view).one_label:
            raise ConfigError(
                f"the method needs sites with tags, but site '{site}' has a view of kind '{server.cards[site].view}'"
            )


def equal_weights(server: Server, replies: Replies) -> Replies:
    """Return the replies with weight 1 each."""
    return replace(replies, weights=torch.ones_like(replies.weights))
