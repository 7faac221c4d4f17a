"""The runs of the FedHarmony table: multi-label data sets, methods, ablations and controls."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from papers.harness.cells import Cell, Size, in_order

AVG, PROX, OURS, PLUS, CONTROL = "FedAvg", "FedProx, tuned", "FedHarmony", "fedharmony+", "fedharmony+, permuted tags"
ALL_PAIRS = "fedharmony+, all pairs"
MUS = (0.01, 0.1, 1.0, 10.0)
OWN_MUS = (0.01, 0.1, 1.0)  # FedProx's term in fedharmony+, off by default


@dataclass(frozen=True)
class Data:
    """A data set of the table, with the settings that all methods share on it."""

    name: str
    lr: float
    batch: int = 32
    hidden: int = 128
    rounds: int = 24
    large: bool = False  # only the methods in MAIN run


SETS: dict[str, Data] = {
    "scene": Data("scene", 1e-3),
    "emotions": Data("emotions", 3e-3),
    "corel5k": Data("corel5k", 3e-3, batch=64, rounds=16, large=True),
    "delicious": Data("delicious", 3e-3, batch=64, rounds=8, large=True),
    "ExtraSensory": Data("extrasensory", 3e-3, batch=64, hidden=64, rounds=20),
}
UNSEEN = 5  # people in ExtraSensory who do not train
# The tuning grid of fedharmony+: FedProx's term, and equal weights or weights by size.
TUNINGS: dict[str, dict[str, Any]] = {
    f"{PLUS}, mu {mu:g}{suffix}": {"name": "fedharmony+", "mu": mu, **weights}
    for suffix, weights in (("", {}), (", by size", {"weights": "samples"}))
    for mu in OWN_MUS
}
MAIN: dict[str, dict[str, Any]] = {
    AVG: {"name": "fedavg"},
    **{f"FedProx {mu:g}": {"name": "fedprox", "mu": mu} for mu in MUS},
    "FedNova": {"name": "fednova"},
    OURS: {"name": "fedharmony"},
    PLUS: {"name": "fedharmony+"},
    **TUNINGS,
    "fedharmony+, no teacher": {"name": "fedharmony+", "teacher": "none"},
}
OTHERS: dict[str, dict[str, Any]] = {
    "FedCurv": {"name": "fedcurv"},
    "SphereFed": {"name": "spherefed"},
    "FedHarmony B: teacher, weights by size": {"name": "fedharmony", "weights": "samples"},
    "FedHarmony, weights at gamma 0": {"name": "fedharmony", "gamma": 0.0},
    "FedHarmony, two exchanges": {"name": "fedharmony", "exchanges": 2},
    "FedHarmony, no blocks": {"name": "fedharmony", "blocks": "off"},
    "FedHarmony, median": {"name": "fedharmony", "consensus": "median"},
    "FedHarmony, trimmed mean": {"name": "fedharmony", "consensus": "trimmed-mean"},
    CONTROL: {"name": "fedharmony+", "permuted": True},
    "fedharmony+, weights by size": {"name": "fedharmony+", "weights": "samples"},
    "fedharmony+, plain head rows": {"name": "fedharmony+", "head_rows": "owners"},
    "fedharmony+, no site prior": {"name": "fedharmony+", "site_prior": False},
    "fedharmony+, blocks": {"name": "fedharmony+", "blocks": "common"},
    "training alone": {"name": "local"},
    "pooled": {"name": "pooled", "labels": "views"},
}
METHODS = MAIN | OTHERS
BASELINES = (AVG, *(f"FedProx {mu:g}" for mu in MUS), "FedNova", "FedCurv", "SphereFed")
YARDSTICKS = ("training alone", "pooled")


@dataclass(frozen=True)
class Scale:
    """The size of a run of the table."""

    seeds: int
    share: float  # fraction of each data set's rounds
    sets: tuple[str, ...] = tuple(SETS)


SCALES: dict[Size, Scale] = {
    "quick": Scale(2, 0.25, ("scene", "emotions", "ExtraSensory")),
    "default": Scale(5, 1.0),
    "full": Scale(10, 50 / 24),
}


def cells(size: Size) -> list[Cell]:
    """Return all runs of the table: the main methods on all sets first, then the studies."""
    scale = SCALES[size]
    main = (_cell(scale, data, name, seed) for data in scale.sets for name in MAIN for seed in range(scale.seeds))
    return in_order(main, _studies(scale, size))


def _studies(scale: Scale, size: Size) -> Iterator[Cell]:
    for data in scale.sets:
        for name in () if SETS[data].large else OTHERS:
            for seed in range(scale.seeds):
                yield _cell(scale, data, name, seed)
        # One seed shows the time that blocks save; all pairs of a thousand tags are slow.
        for seed in range(1 if size != "full" else scale.seeds) if SETS[data].large else ():
            yield _cell(scale, data, ALL_PAIRS, seed)


def _cell(scale: Scale, data: str, name: str, seed: int) -> Cell:
    chosen = SETS[data]
    method = {"name": "fedharmony+", "blocks": "off"} if name == ALL_PAIRS else METHODS[name]
    natural = data == "ExtraSensory"
    partition = {"kind": "natural", "by": "user"} if natural else {"kind": "dirichlet", "sites": 8, "alpha": 0.3}
    experiment = {
        "name": "fedharmony",
        "data": {"dataset": chosen.name, "partition": partition, "view": {"kind": "tags"}, "standardise": "federation"},
        "server": {"unseen": UNSEEN} if natural else {},
        "model": {"name": "sphere-mlp" if method["name"] == "spherefed" else "mlp", "hidden": [chosen.hidden]},
        "method": {
            "rounds": max(2, round(scale.share * chosen.rounds)),
            "epochs": 2,
            "batch": chosen.batch,
            "lr": chosen.lr,
            "optimiser": "adam",
            **method,
        },
        "run": {"evaluate_every": max(2, round(scale.share * chosen.rounds))},
    }
    return Cell((data, name), seed, experiment)
