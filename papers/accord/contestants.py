"""Who competes on which kind of labels, and with which of its settings a search is made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from papers.accord.sets import DataSet, Kind

ACCORD, LOCAL, REGULARISED, POOLED, TREES = "accord", "local", "local, regularised", "pooled", "boosted trees, alone"
ONE_MODEL = "accord without site priors, one model"
ALONE = (LOCAL, REGULARISED)
UNRANKED = (POOLED,)  # it moves the samples to one place
RATES = (1 / 3, 1.0, 3.0)  # times the middle rate of the data set, or of trees
TREE_RATE, FEW_TAGS = 0.1, 20  # with more tags, one tree ensemble for each takes too long


@dataclass(frozen=True)
class Contestant:
    """A method with its settings."""

    name: str
    method: dict[str, Any] = field(default_factory=dict)  # of the section [method]
    cost: float = 1.0  # time of a cell in those of `accord`, measured once, to estimate the time of a run

    follows_rate: tuple[str, ...] = ()  # further settings that are the learning rate
    recipe: str = ""  # of our own methods, whose code changes; finished runs of another one are not used

    @property
    def is_trees(self) -> bool:
        """Whether it is not one of the package's methods."""
        return self.name == TREES


_AVERAGING = (
    Contestant("fedavg", {"name": "fedavg"}),
    Contestant("fedprox", {"name": "fedprox"}),
    Contestant("FedPer, own heads", {"name": "fed-cc", "head": "local"}),
)
RECIPE, REGULARISED_RECIPE = "2026-11-18, fading prior", "2026-11-18"
_OWN = Contestant(ACCORD, {"name": "accord"}, recipe=RECIPE)
_PLAIN = Contestant(LOCAL, {"name": "local"})
_SPECIAL: dict[Kind, tuple[Contestant, ...]] = {
    "candidates": (Contestant("pfedpll+", {"name": "pfedpll+"}, 2.0), Contestant("pFedPLL", {"name": "pfedpll"}, 1.8)),
    "exact": (Contestant("SCAFFOLD", {"name": "scaffold"}),),
    "few labels": (Contestant("private-labels", {"name": "private-labels"}),),
    "coarse": (
        Contestant("fedmt+", {"name": "fedmt+"}, 2.0, ("server_lr",)),
        Contestant("FedMT", {"name": "fedmt", "correspondence": "known"}, 0.4, ("server_lr",)),
    ),
    "tags": (
        Contestant("fedharmony+", {"name": "fedharmony+"}, 2.4),
        Contestant("FedHarmony", {"name": "fedharmony"}, 2.0),
    ),
    "mixture": (),
    "flamby": (),
}
_FLAMBY = (
    _OWN,
    Contestant(ONE_MODEL, {"name": "accord", "prior": "off", "personal": "off"}, recipe=RECIPE),
    Contestant("fedavg", {"name": "fedavg"}),
    _PLAIN,
    Contestant(POOLED, {"name": "pooled", "labels": "truth"}),
)


def contestants(chosen: DataSet) -> list[Contestant]:
    """Return the contestants on a data set, `accord` first and the unranked bound last."""
    if chosen.kind == "flamby":
        return list(_FLAMBY)
    # The loss of pfedpll+ belongs to its regularisation at candidate sites (docs/methods.md 5.12).
    loss = {"loss": "pfedpll"} if chosen.kind == "candidates" else {}
    found = [_OWN, *_SPECIAL[chosen.kind], *_AVERAGING, _PLAIN]
    found.append(Contestant(REGULARISED, {"name": "local", "regularise": True, **loss}, 1.3, recipe=REGULARISED_RECIPE))
    if has_trees(chosen):
        found.append(Contestant(TREES, cost=8.0))
    labels = "views" if chosen.kind == "tags" else "truth"
    return [*found, Contestant(POOLED, {"name": "pooled", "labels": labels}, 0.7)]


def has_trees(chosen: DataSet) -> bool:
    """Return whether trees are trained: on tables with exact labels or few tags, not on candidate sets."""
    few = chosen.kind == "tags" and chosen.data["dataset"] in ("scene", "emotions")
    return chosen.table and (chosen.kind == "exact" or few)


def rates(chosen: DataSet, contestant: Contestant) -> list[float]:
    """Return the learning rates that a search tries, in ascending order: the same number for every contestant."""
    middle = TREE_RATE if contestant.is_trees else chosen.lr
    return [round(middle * factor, 4) for factor in RATES]
