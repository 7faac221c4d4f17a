"""A method is a recipe: which parts fill the beats of a round."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fedaccord.aggregation.replies import Aggregator, Replies
from fedaccord.federation.attack import Attack
from fedaccord.federation.sharing import SHARE_ALL, Sharing
from fedaccord.messages.checks import TensorSpec
from fedaccord.messages.message import Message
from fedaccord.messages.names import SILENT as SILENT
from fedaccord.training.adam import Adam
from fedaccord.training.objectives import Objective, ViewLikelihood
from fedaccord.training.settings import TrainingSettings
from fedaccord.training.solvers import SGD, Solver
from fedaccord.training.work import LocalWork

if TYPE_CHECKING:
    from fedaccord.federation.server import Server, SiteCard

ServerStep = Callable[["Server"], None]
SiteTask = Callable[[LocalWork], Message]


@dataclass(frozen=True)
class Recipe:
    """The slots of a method. What is not named is the plain choice: view likelihood, SGD, everything shared."""

    settings: TrainingSettings
    aggregator: Aggregator | None  # None: nothing is combined, every site trains alone
    objective: Objective = field(default_factory=ViewLikelihood)
    solver: Solver | None = None
    sharing: Sharing = SHARE_ALL
    ready: tuple[ServerStep, ...] = ()  # before the first round: refuse with a ConfigError what cannot work
    prepare: tuple[ServerStep, ...] = ()
    brief: Callable[[Server, SiteCard], Message] | None = None  # what one site is told beside the shared model
    starts: Callable[[Server, SiteCard], Tensor] | None = None  # the model that one site is sent, where it has its own
    extras: Callable[[Server, SiteCard], Mapping[str, TensorSpec]] | None = None  # what it must send beside it
    attack: Attack | None = None  # what some sites do to the others, in studies
    defence: Callable[[Server, Replies], Replies] | None = None  # which replies count
    weigh: Callable[[Server, Replies], Replies] | None = None  # other weights than sample counts, after the defence
    refine: tuple[ServerStep, ...] = ()
    account: Callable[[Server], list[dict[str, Any]]] | None = None  # lines of its own for the last round, to be drawn
    tasks: Mapping[str, SiteTask] = field(default_factory=dict)  # further questions a step may ask the sites
    personal_layer: bool = False
    rows_by_name: bool = False  # each head row begins as its label's name says, whatever other labels there are
    owners: str = "softmax"  # who informs a label: whose softmax runs over it in training, "view": who knows it, "all"
    trains: str = "sites"  # or "pool": one place that holds all sites' samples, for studies; "server": no site at all
    correspondence: str = "declared"  # or "own": sites find out what coarse names stand for, whatever is declared
    needs_labelled: bool = False  # the server trains on labelled samples of its own
    uses_labels: bool = True  # False: sites train on all their rows and do not look at annotations

    @property
    def site_solver(self) -> Solver:
        """The solver slot, or the optimiser that the settings describe."""
        return self.solver or plain_solver(self.settings)


def plain_solver(settings: TrainingSettings) -> Solver:
    """Return the optimiser that the settings describe."""
    if settings.optimiser == "adam":
        return Adam(settings.weight_decay, settings.clip)
    return SGD(settings.momentum, settings.weight_decay, settings.clip)
