"""The runs of the table of private label sets: regimes, tunings, and possible causes of differences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from papers.harness.cells import Cell, Row, Size, in_order

FASHION, CIFAR = "fashion_mnist", "cifar10"
NAMES = {FASHION: "Fashion-MNIST", CIFAR: "CIFAR-10 subset"}
AT = 3  # labels per site at which every method runs
LABELS = (2, 3, 5, 7, 10)
REGIMES = ("private", "public")

PUBLISHED: dict[str, dict[str, Any]] = {
    "FedAvg": {},
    "FedProx": {"local": "fedprox"},
    "FedAvg + MSE": {"tuning": "mse"},
    "FedAvg + pairwise": {"tuning": "pairwise"},
}
TUNED = ("FedAvg + MSE", "FedAvg + pairwise")
OURS: dict[str, dict[str, Any]] = {
    "FedAvg + balance": {"tuning": "balance"},
    "SCAFFOLD": {
        "local": "scaffold",
        "lr": 0.05,
    },  # larger steps, since it has no momentum; runs with momentum diverged
}
RegimeAndMethod = tuple[str, str]
OVER_LABELS: list[RegimeAndMethod] = [
    ("public", "FedAvg"),
    *(("private", name) for name in ("FedAvg", *TUNED, "FedAvg + balance")),
]


@dataclass(frozen=True)
class Training:
    """The settings on one data set."""

    samples: int  # per site
    unlabelled: int  # at the server
    batch: int
    lr: float
    epochs: int = 1  # per round
    rounds: int = 16
    tuning_lr: float = 0.01


@dataclass(frozen=True)
class Seeds:
    """The number of seeds in the parts of the table."""

    untuned: int  # three labels per site, without tuning: the two regimes vary most over seeds
    tuned: int  # three labels per site, with tuning
    over: int  # other numbers of labels


@dataclass(frozen=True)
class Scale:
    """The size of a run of the table."""

    on: dict[str, Training]
    seeds: dict[str, Seeds]
    model: str
    confirming: bool = False  # one row with the larger network
    longer: int = 0  # seeds of FedAvg with three times the rounds, in both regimes
    causes: int = 0  # seeds of the small runs with one setting changed at a time
    test: int | None = None  # test images used; None: all


SCALES: dict[Size, Scale] = {
    "quick": Scale(
        {FASHION: Training(300, 500, 32, 0.05, rounds=8), CIFAR: Training(300, 500, 32, 0.05, rounds=8)},
        {FASHION: Seeds(2, 2, 1), CIFAR: Seeds(1, 1, 1)},
        "lenet5",
        test=1000,
    ),
    "default": Scale(
        {FASHION: Training(2000, 1000, 64, 0.01), CIFAR: Training(350, 500, 32, 0.02, 3)},
        {FASHION: Seeds(16, 8, 2), CIFAR: Seeds(1, 1, 1)},
        "lenet5",
        confirming=True,
        longer=8,
        causes=8,
    ),
    "full": Scale(
        {FASHION: Training(2000, 1000, 64, 0.01, 1, 100), CIFAR: Training(350, 500, 32, 0.02, 3, 100)},
        {FASHION: Seeds(16, 10, 10), CIFAR: Seeds(10, 10, 10)},
        "cnn",
        causes=10,
    ),
}

PLAIN = Training(2000, 1000, 64, 0.01)
CAUSES: dict[str, Training] = {
    "as in the table, with an MLP": PLAIN,
    "48 rounds instead of 16": replace(PLAIN, rounds=48),
    "3 passes in each round instead of 1": replace(PLAIN, epochs=3),
    "tuning rate 0.001 instead of 0.01": replace(PLAIN, tuning_lr=0.001),
    "tuning rate 0.1 instead of 0.01": replace(PLAIN, tuning_lr=0.1),
    "250 inputs at the server instead of 1000": replace(PLAIN, unlabelled=250),
    "4000 inputs at the server instead of 1000": replace(PLAIN, unlabelled=4000),
}


def cells(size: Size) -> list[Cell]:
    """Return all runs of the table."""
    scale = SCALES[size]
    by_data = [part for data in (FASHION, CIFAR) for part in (_at_three(scale, data), _over(scale, data))]
    larger = [_cell(scale, FASHION, AT, regime, "FedAvg", 0, "cnn") for regime in REGIMES]
    return in_order(*by_data, larger if scale.confirming else (), _causes(scale), _longer(scale))


def everyone(dataset: str) -> Sequence[str]:
    """Return the methods on a data set with three labels per site."""
    return (*PUBLISHED, *OURS) if dataset == FASHION else (*PUBLISHED, "FedAvg + balance")


def row(dataset: str, model: str, labels: int, regime: str, name: str) -> Row:
    """Return the row of a run."""
    return dataset, model, f"{labels} labels", regime, name


def longer_row(scale: Scale, regime: str) -> Row:
    """Return the row of FedAvg with three times the rounds, Fashion-MNIST, three labels per site."""
    return row(FASHION, f"{scale.model}, {3 * scale.on[FASHION].rounds} rounds", AT, regime, "FedAvg")


def cause_row(cause: str, regime: str, name: str) -> Row:
    """Return the row of a run with one setting changed; settings of the tuning change only tuned runs."""
    if name not in TUNED:
        cause = next(c for c, training in CAUSES.items() if training == _untuned(CAUSES[cause]))
    return "causes", cause, regime, name


def _untuned(training: Training) -> Training:
    return replace(training, tuning_lr=PLAIN.tuning_lr, unlabelled=PLAIN.unlabelled)


def _at_three(scale: Scale, dataset: str) -> Iterator[Cell]:
    for name in everyone(dataset):
        seeds = scale.seeds[dataset].untuned if name in PUBLISHED and name not in TUNED else scale.seeds[dataset].tuned
        for regime in REGIMES if name in PUBLISHED else ("private",):  # ours are for private sets only
            for seed in range(seeds):
                yield _cell(scale, dataset, AT, regime, name, seed)


def _over(scale: Scale, dataset: str) -> Iterator[Cell]:
    for labels in LABELS:
        for regime, name in OVER_LABELS:
            for seed in range(scale.seeds[dataset].over):
                yield _cell(scale, dataset, labels, regime, name, seed)


def _longer(scale: Scale) -> Iterator[Cell]:
    training = replace(scale.on[FASHION], rounds=3 * scale.on[FASHION].rounds)
    for regime in REGIMES:
        experiment = _experiment(FASHION, AT, training, scale.model, regime, "FedAvg", scale.test)
        yield from (Cell(longer_row(scale, regime), seed, experiment) for seed in range(scale.longer))


def _causes(scale: Scale) -> Iterator[Cell]:
    seen: set[Row] = set()
    for cause, training in CAUSES.items():
        for regime in REGIMES:
            for name in ("FedAvg", *TUNED):
                counts_for = cause_row(cause, regime, name)
                if counts_for not in seen:
                    seen.add(counts_for)
                    experiment = _experiment(FASHION, AT, training, "mlp", regime, name, scale.test)
                    yield from (Cell(counts_for, seed, experiment) for seed in range(scale.causes))


def _cell(scale: Scale, dataset: str, labels: int, regime: str, name: str, seed: int, model: str = "") -> Cell:
    model = model or scale.model
    experiment = _experiment(dataset, labels, scale.on[dataset], model, regime, name, scale.test)
    return Cell(row(dataset, model, labels, regime, name), seed, experiment)


def _experiment(
    dataset: str, labels: int, training: Training, model: str, regime: str, name: str, test: int | None
) -> dict[str, Any]:
    method = {
        "name": "private-labels",
        "labels": regime,
        "rounds": training.rounds,
        "batch": training.batch,
        "lr": training.lr,
        "tuning_lr": training.tuning_lr,
        **(PUBLISHED | OURS)[name],
    }
    if training.epochs > 1:
        method["epochs"] = training.epochs
    partition = {"kind": "label-sets", "sites": 10, "labels": labels, "samples": training.samples}
    data = {"dataset": dataset, "partition": partition, "test": 0.0}
    if test is not None and dataset == FASHION:
        data["test_samples"] = test
    return {
        "name": "private-labels",
        "data": data,
        "server": {"unlabelled": training.unlabelled},
        "model": {"name": model},
        "method": method,
        "run": {"evaluate_every": training.rounds},
    }
