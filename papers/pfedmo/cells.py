"""The runs of the pFedMo table: tasks, methods, splits and studies. Importable without torch.

The paper does not state the split of its main table. The figures of its baselines are typical of sites that hold all
classes, so the main table here is i.i.d. Label skew, quantity skew and Dirichlet splits are separate parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedaccord.methods.registry import METHODS
from papers.harness.cells import Cell, Row, Size, in_order

OURS, PRINTED, ALONE = "pFedMo", "pFedMo, printed rule", "public data alone"

BASELINES: dict[str, dict[str, Any]] = {
    "FastSlowMo": {"name": "fastslowmo", "gamma": 0.5, "beta": 0.5},
    "DOMO": {"name": "domo", "beta": 0.5, "momentum": 0.5},
    "FedADC": {"name": "fedadc", "beta": 0.5},
    "FedMom": {"name": "fedmom", "beta": 0.5},
    "SlowMo": {"name": "slowmo", "beta": 0.5},
    "FedNAG": {"name": "fednag", "gamma": 0.5},
    "Mime": {"name": "mime", "beta": 0.5},
    "FedProx": {"name": "fedprox", "momentum": 0.0, "mu": 0.01},
    "FedAvg": {"name": "fedavg", "momentum": 0.0},
}
EXTRAS: dict[str, dict[str, Any]] = {
    "SCAFFOLD": {"name": "scaffold"},
    "FedNova": {"name": "fednova", "momentum": 0.0},
    ALONE: {"name": "representation", "gamma": 0.5, "held_out": 0.0},
}
METHODS_RUN: dict[str, dict[str, Any]] = {
    OURS: {"name": "pfedmo", "gamma": 0.5},
    PRINTED: {"name": "pfedmo", "gamma": 0.5, "rule": "printed"},
    **BASELINES,
    **{name: method for name, method in EXTRAS.items() if method["name"] in METHODS},
}
FEW = (OURS, PRINTED, "FastSlowMo", "FedNAG", "FedAvg", ALONE)
FEWER = (OURS, "FastSlowMo", "FedAvg", ALONE)
WITH_GAMMA, WITH_PI = (
    (OURS, PRINTED, "FastSlowMo", "FedNAG"),
    (OURS, PRINTED),
)  # methods with the setting gamma, and with pi

CLASSES, ALPHAS = (3, 6, 9), (0.05, 0.1, 1.0)
TAUS, GAMMAS, PIS = (10, 20, 40, 100), (0.1, 0.3, 0.5, 0.7, 0.9), (0.0, 0.25, 0.5, 0.75, 1.0)
MANY = (4, 8, 12, 16, 50, 100)
SIZES = [5000, 12500, 17500, 24400]  # published: 25000; the server takes 600 public images
EDGE: dict[str, list[float]] = {"speed": [50, 400], "up": [1, 8], "down": [4, 32], "latency": [0.01, 0.1]}
EDGE_SITES, TARGET = 16, 0.85


@dataclass(frozen=True)
class Task:
    """A data set with a network, the same for all methods."""

    dataset: str
    model: str
    tau: int
    public: int  # labelled samples per class at the server: 1 % of the training data
    loss: str = "view"
    natural: str = ""  # column with the person of a sample
    unseen: tuple[str, ...] = ()  # persons whose samples are the test data, if no test part is published
    target: float = TARGET  # rounds are counted up to this accuracy

    def data(self, partition: Mapping[str, Any], test_samples: int | None) -> dict[str, Any]:
        """Return the section `[data]`."""
        if self.natural:
            return {
                "dataset": self.dataset,
                "partition": {"kind": "natural", "by": self.natural},
                "test": 0.0,
                "standardise": "federation",
            }
        limit = {} if test_samples is None else {"test_samples": test_samples}
        return {"dataset": self.dataset, "partition": dict(partition), "test": 0.0, **limit}


LINEAR, LOGISTIC, LENET = "Linear, MNIST", "Logistic, MNIST", "LeNet-5, MNIST"
CIFAR, HAR = "LeNet-5, CIFAR-10 subset", "1-D CNN, UCI-HAR"
TASKS = {
    LINEAR: Task("mnist", "linear", 20, 60, loss="squared", target=0.8),
    LOGISTIC: Task("mnist", "linear", 20, 60),
    LENET: Task("mnist", "lenet5", 40, 60),
    CIFAR: Task("cifar10", "lenet5", 40, 4, target=0.25),
    # benchmarks/momentum_rules.py chose the default rule on subjects 1 to 15, which are not among the unseen ones.
    HAR: Task("uci_har", "cnn1d", 20, 13, natural="subject", unseen=tuple(str(n) for n in range(25, 31)), target=0.6),
}


@dataclass(frozen=True)
class Scale:
    """The size of a run of the table: total local steps of a site by task, seeds, and the studies."""

    iterations: dict[str, int]
    seeds: int
    few: Sequence[str]  # methods in parts where a full comparison would take too long
    fewer: Sequence[str] = FEWER  # methods in parts where a single cell takes long
    skew: str = LENET  # the task of the label-skew study
    study: str = LOGISTIC  # the task of the other studies and the edge network
    many: Sequence[int] = MANY
    test_samples: int | None = None
    studies: bool = True
    gradient_samples: int | None = 2000  # samples of Mime's full gradient; None: all
    tau: Mapping[str, int] = field(default_factory=dict)  # steps per round by task, if not the task's default


SCALES: dict[Size, Scale] = {
    "quick": Scale(
        {LOGISTIC: 400, HAR: 40}, 2, (OURS, PRINTED, "FedNAG", ALONE), skew=LOGISTIC, test_samples=2000, studies=False
    ),
    "default": Scale({LINEAR: 1000, LOGISTIC: 1000, LENET: 1000, CIFAR: 600, HAR: 200}, 3, FEW, test_samples=5000),
    "full": Scale(
        {LINEAR: 1000, LOGISTIC: 1000, LENET: 1000, CIFAR: 10000, HAR: 4000},
        5,
        tuple(METHODS_RUN),
        tuple(METHODS_RUN),
        study=LENET,
        gradient_samples=None,
        tau={HAR: 40},
    ),
}


def cells(size: Size) -> list[Cell]:
    """Return all runs of the table: label skew first, then the main table, then the studies."""
    scale = SCALES[size]
    skew = (c for seed in range(scale.seeds) for c in _skew_cells(scale, seed))
    main = (c for seed in range(scale.seeds) for c in _main_cells(scale, seed))
    more = (c for seed in range(scale.seeds) for c in _study_cells(scale, seed)) if scale.studies else iter(())
    return in_order(skew, main, more, (c for seed in range(scale.seeds) for c in _edge_cells(scale, seed)))


def _main_cells(scale: Scale, seed: int) -> Iterator[Cell]:
    for task in scale.iterations:
        for name in METHODS_RUN:
            yield _cell(scale, task, _iid(4), ("main", task, name), METHODS_RUN[name], seed)


def _skew_cells(scale: Scale, seed: int) -> Iterator[Cell]:
    for classes in CLASSES:
        for name in METHODS_RUN if classes == CLASSES[0] else scale.few:
            row = ("classes", str(classes), name)
            yield _cell(scale, scale.skew, _classes(4, classes), row, METHODS_RUN[name], seed)


def _study_cells(scale: Scale, seed: int) -> Iterator[Cell]:
    for name in scale.few:
        for tau in TAUS:
            method = {**METHODS_RUN[name], "steps": tau}
            yield _cell(scale, scale.study, _classes(4, 3), ("tau", str(tau), name), method, seed)
    for name in scale.fewer:
        method = METHODS_RUN[name]
        quantity = {"kind": "quantity", "sizes": SIZES}
        yield _cell(scale, scale.study, quantity, ("quantity", name), {**method, "weights": "equal"}, seed)
        for alpha in ALPHAS:
            split = {"kind": "dirichlet", "sites": 4, "alpha": alpha}
            yield _cell(scale, scale.study, split, ("dirichlet", str(alpha), name), method, seed)
        for sites in scale.many:
            yield _cell(scale, scale.study, _classes(sites, 3), ("sites", str(sites), name), method, seed)
    for gamma in GAMMAS:
        for name in WITH_GAMMA:
            method = {**METHODS_RUN[name], "gamma": gamma}
            yield _cell(scale, scale.study, _classes(4, 3), ("gamma", str(gamma), name), method, seed)
    for pi in PIS:
        for name in WITH_PI:
            method = {**METHODS_RUN[name], "pi": pi}
            yield _cell(scale, scale.study, _classes(4, 3), ("pi", str(pi), name), method, seed)


def _edge_cells(scale: Scale, seed: int) -> Iterator[Cell]:
    split = {"kind": "dirichlet", "sites": EDGE_SITES, "alpha": 1.0}
    for tau in (20, 40) if scale.studies else (20,):
        for name in METHODS_RUN if scale.studies else scale.few:
            row = ("edge", str(tau), name)
            method = {**METHODS_RUN[name], "steps": tau}
            timed = {"network": {**EDGE, "target": TARGET}, "run": {"evaluate_every": 1}}
            yield _cell(scale, scale.study, split, row, method, seed, timed)


def _cell(
    scale: Scale,
    name: str,
    split: Mapping[str, Any],
    row: Row,
    method: Mapping[str, Any],
    seed: int,
    more: Mapping[str, Any] | None = None,
) -> Cell:
    task = TASKS[name]
    tau = method.get("steps", scale.tau.get(name, task.tau))
    rounds = scale.iterations[name] // tau
    settings = {"rounds": rounds, "steps": tau, "batch": 64, "lr": 0.01, **method}
    if task.loss != "view":
        settings["loss"] = task.loss
    if method["name"] == "mime" and scale.gradient_samples:
        settings["gradient_samples"] = scale.gradient_samples
    large = task.model != "linear"
    experiment = {
        "name": "pfedmo",
        "data": task.data(split, scale.test_samples),
        "server": {"labelled": {"per_class": task.public}} | ({"unseen": list(task.unseen)} if task.unseen else {}),
        "model": {"name": task.model},
        "method": settings,
        "run": {"evaluate_every": max(1, rounds // 5) if large else 1},
        **(more or {}),
    }
    return Cell(row, seed, experiment)


def _iid(sites: int) -> dict[str, Any]:
    return {"kind": "iid", "sites": sites}


def _classes(sites: int, classes: int) -> dict[str, Any]:
    return {"kind": "classes", "sites": sites, "classes": classes}
