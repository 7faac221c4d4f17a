"""Private against public label sets ("Federated Learning with Heterogeneous and Private Label Sets", arXiv 2508.18774).

The paper's figures could not be had, only what it found in words; each finding is marked here with our figures.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fedaccord.reproduce.cells import Cell, Results, Size, in_order
from fedaccord.reproduce.pages import Block, Chapter, Chart, Curve, Finding, Grid, findings_grid
from fedaccord.reproduce.statistics import Paired, deviation, in_words, mean, paired, rank_correlation, spread

TITLE = "Private label sets"
FASHION, CIFAR = "fashion_mnist", "cifar10"
NAMES = {FASHION: "Fashion-MNIST", CIFAR: "CIFAR-10 subset"}
AT = 3  # labels per site where every contestant runs
LABELS = (2, 3, 5, 7, 10)
ENOUGH = 8  # seeds that a bar of ours asks for

PUBLISHED: dict[str, dict[str, Any]] = {
    "FedAvg": {},
    "FedProx": {"local": "fedprox"},
    "FedAvg + MSE": {"tuning": "mse"},
    "FedAvg + pairwise": {"tuning": "pairwise"},
}
OURS: dict[str, dict[str, Any]] = {
    "FedAvg + balance": {"tuning": "balance"},
    "SCAFFOLD": {"local": "scaffold", "lr": 0.05},  # without momentum, so with longer steps; with it, runs diverged
}
Contestant = tuple[str, str]  # regime, method
OVER_LABELS: list[Contestant] = [
    ("public", "FedAvg"),
    *(("private", name) for name in ("FedAvg", "FedAvg + MSE", "FedAvg + pairwise", "FedAvg + balance")),
]


@dataclass(frozen=True)
class Training:
    """What the runs on one data set are given."""

    samples: int  # at each site
    unlabelled: int  # at the server
    batch: int
    lr: float
    epochs: int = 1  # in each round
    seeds: int = 1  # with three labels per site
    fewer: int = 1  # with other numbers


@dataclass(frozen=True)
class Scale:
    """How large a run of the table is."""

    rounds: int
    on: dict[str, Training]
    model: str
    confirming: bool  # one row with the larger network
    test: int | None = None  # test images used; None: all


SCALES: dict[Size, Scale] = {
    "quick": Scale(
        8, {FASHION: Training(300, 500, 32, 0.05, seeds=2), CIFAR: Training(300, 500, 32, 0.05)}, "lenet5", False, 1000
    ),
    "default": Scale(
        16, {FASHION: Training(2000, 1000, 64, 0.01, 1, 8, 2), CIFAR: Training(350, 500, 32, 0.02, 3)}, "lenet5", True
    ),
    "full": Scale(
        100,
        {FASHION: Training(2000, 1000, 64, 0.01, 1, 10, 10), CIFAR: Training(350, 500, 32, 0.02, 3, 10, 10)},
        "cnn",
        False,
    ),
}


def cells(size: Size) -> list[Cell]:
    """Return all runs of the table."""
    scale = SCALES[size]
    by_data = [part for data in (FASHION, CIFAR) for part in (_at_three(scale, data), _over(scale, data))]
    larger = [_cell(scale, FASHION, AT, regime, "FedAvg", 0, "cnn") for regime in ("private", "public")]
    return in_order(*by_data, larger if scale.confirming else ())


def _at_three(scale: Scale, dataset: str) -> Iterator[Cell]:
    for regime, name in _contestants(_everyone(dataset)):
        for seed in range(scale.on[dataset].seeds):
            yield _cell(scale, dataset, AT, regime, name, seed)


def _over(scale: Scale, dataset: str) -> Iterator[Cell]:
    for labels in LABELS:
        for regime, name in OVER_LABELS:
            for seed in range(scale.on[dataset].fewer):
                yield _cell(scale, dataset, labels, regime, name, seed)


def _everyone(dataset: str) -> Sequence[str]:
    return (*PUBLISHED, *OURS) if dataset == FASHION else (*PUBLISHED, "FedAvg + balance")


def _contestants(names: Sequence[str]) -> list[Contestant]:
    """Ours are made for private sets; of the others both regimes run."""
    both, private = ("private", "public"), ("private",)
    return [(regime, name) for name in names for regime in (both if name in PUBLISHED else private)]


def _cell(scale: Scale, dataset: str, labels: int, regime: str, name: str, seed: int, model: str = "") -> Cell:
    model, training = model or scale.model, scale.on[dataset]
    method = {
        "name": "private-labels", "labels": regime, "rounds": scale.rounds, "batch": training.batch, "lr": training.lr,
        "tuning_lr": 0.01, **(PUBLISHED | OURS)[name],
    }  # fmt: skip
    if training.epochs > 1:
        method["epochs"] = training.epochs
    partition = {"kind": "label-sets", "sites": 10, "labels": labels, "samples": training.samples}
    data = {"dataset": dataset, "partition": partition, "test": 0.0}
    if scale.test is not None and dataset == FASHION:
        data["test_samples"] = scale.test
    experiment = {
        "name": "private-labels",
        "data": data,
        "server": {"unlabelled": training.unlabelled},
        "model": {"name": model},
        "method": method,
        "run": {"evaluate_every": scale.rounds},
    }
    return Cell((dataset, model, f"{labels} labels", regime, name), seed, experiment)


@dataclass(frozen=True)
class _Figures:
    """The table's figures as the page asks for them."""

    results: Results
    model: str

    def of(self, dataset: str, labels: int, regime: str, name: str, model: str = "") -> dict[int, float]:
        return self.results.values((dataset, model or self.model, f"{labels} labels", regime, name))

    def at(self, regime: str, name: str) -> dict[int, float]:
        return self.of(FASHION, AT, regime, name)

    def gap(self, ours: Contestant, theirs: Contestant) -> Paired | None:
        return paired(self.at(*ours), self.at(*theirs))


def chapters(results: Results, size: Size) -> list[Chapter]:
    """Return the page."""
    scale = SCALES[size]
    figures = _Figures(results, scale.model)
    return [
        Chapter("What was run", _what_was_run(scale, size)),
        Chapter("The paper's findings", [findings_grid(_findings(figures))]),
        Chapter("Our bars", [findings_grid(_bars(figures))]),
        *(Chapter(f"{NAMES[d]}, {AT} labels per site", [_everyone_grid(figures, d)]) for d in (FASHION, CIFAR)),
        *(Chapter(f"{NAMES[d]} over labels per site", _over_labels(figures, d)) for d in (FASHION, CIFAR)),
        *([Chapter("The larger network", [_larger(figures)])] if scale.confirming else []),
    ]


def _what_was_run(scale: Scale, size: Size) -> list[Block]:
    shrunk = (
        "This is the paper's size as far as it is known."
        if size == "full"
        else f"Shrunk against the paper: {scale.model} instead of the larger CNN, {scale.rounds} rounds instead of "
        "100, and fewer seeds than 10 ("
        + "; ".join(f"{NAMES[d]}: {t.seeds} at {AT} labels, {t.fewer} elsewhere" for d, t in scale.on.items())
        + "). `--full` is the paper's size."
    )
    return [
        f"10 sites, {scale.rounds} rounds, SGD with momentum 0.9. "
        + " ".join(
            f"{NAMES[data]}: {t.samples} samples at each site, {t.unlabelled} without labels at the server, passes in "
            f"each round: {t.epochs}, batch {t.batch}, learning rate {t.lr}."
            for data, t in scale.on.items()
        )
        + " Of CIFAR-10 only 4,000 training images are at hand.",
        "Figures are the accuracy of the global model of the last round on the published test images, in percent: mean "
        "± standard deviation over seeds, which differ in label sets, samples and initial weights. Differences are "
        "paired by seed.",
        shrunk,
    ]


def _everyone_grid(figures: _Figures, dataset: str) -> Grid:
    rows = []
    for name in _everyone(dataset):
        private = figures.of(dataset, AT, "private", name)
        public = figures.of(dataset, AT, "public", name)
        plain = figures.of(dataset, AT, "private", "FedAvg")
        rows.append([
            name, str(len(private)), spread(private), spread(public),
            in_words(paired(private, public)), "" if name == "FedAvg" else in_words(paired(private, plain)),
        ])  # fmt: skip
    head = ("method", "seeds", "private", "public", "private - public", "private: against FedAvg")
    return Grid(head, rows)


def _over_labels(figures: _Figures, dataset: str) -> list[Block]:
    rows, curves = [], []
    for regime, name in OVER_LABELS:
        values = [figures.of(dataset, labels, regime, name) for labels in LABELS]
        rows.append([f"{regime}, {name}", *map(spread, values)])
        shown = [(labels, 100 * mean(v), 100 * deviation(v)) for labels, v in zip(LABELS, values, strict=True) if v]
        if shown:
            x, y, around = (list(column) for column in zip(*shown, strict=True))
            curves.append(Curve(f"{regime}, {name}", x, y, [0.0 if a != a else a for a in around]))
    chart = Chart(f"{NAMES[dataset]}: accuracy over labels per site", "labels per site", "test accuracy, %", curves)
    return [chart, Grid(("labels per site", *map(str, LABELS)), rows)]


def _larger(figures: _Figures) -> Grid:
    small, large = figures.model, "cnn"
    rows = []
    for regime in ("private", "public"):
        on = figures.of(FASHION, AT, regime, "FedAvg", large)
        same = {seed: value for seed, value in figures.at(regime, "FedAvg").items() if seed in on}
        rows.append([f"{regime}, FedAvg", spread(same), spread(on)])
    return Grid(("Fashion-MNIST, seed 0", small, f"{large} (two 5x5 convolutions, 512)"), rows)


def _findings(figures: _Figures) -> list[Finding]:
    rising = [rank for d in (FASHION, CIFAR) for rank in [_rise(figures, d, "private", "FedAvg")] if rank is not None]
    drop = _fall(figures)
    regimes = [figures.gap(("private", n), ("public", n)) for n in ("FedAvg", "FedProx")]
    tuned = [figures.gap(("private", n), ("private", "FedAvg")) for n in ("FedAvg + MSE", "FedAvg + pairwise")]
    order = figures.gap(("private", "FedAvg + MSE"), ("private", "FedAvg + pairwise"))
    public = figures.gap(("public", "FedAvg + pairwise"), ("public", "FedAvg + MSE"))
    worse = [figures.gap(("public", n), ("public", "FedAvg")) for n in ("FedAvg + MSE", "FedAvg + pairwise")]
    seen = {n: figures.at("private", n) for n in ("FedAvg", "FedAvg + MSE", "FedAvg + pairwise")}
    variance = {name: deviation(values) for name, values in seen.items() if len(values) > 1}
    return [
        Finding("1. Accuracy falls substantially as sites know fewer labels", _all(r > 0.9 for r in rising), drop),
        Finding(
            "2. Private FedAvg and FedProx perform about like their public forms (within 3 points)",
            _all(abs(gap.mean) <= 3 for gap in regimes if gap),
            f"private - public: FedAvg {in_words(regimes[0])}; FedProx {in_words(regimes[1])}",
        ),
        Finding(
            "3. Private: tuning beats the adapted methods",
            _all(gap.mean > gap.error for gap in tuned if gap and gap.seeds > 1),
            f"MSE {in_words(tuned[0])}; pairwise {in_words(tuned[1])}",
        ),
        Finding("3. Private: MSE is slightly better than pairwise", _ahead(order), in_words(order)),
        Finding("4. Public: pairwise is better than MSE", _ahead(public), in_words(public)),
        Finding(
            "4. Public, Fashion-MNIST: tuning can be worse than none",
            any(gap.mean < 0 for gap in worse if gap) if any(worse) else None,
            f"MSE {in_words(worse[0])}; pairwise {in_words(worse[1])}",
        ),
        Finding(
            "5. Tuning raises the variance over seeds",
            _all(found > variance["FedAvg"] for name, found in variance.items() if name != "FedAvg")
            if "FedAvg" in variance
            else None,
            ", ".join(f"{name} ± {100 * found:.1f}" for name, found in variance.items()) or "–",
        ),
    ]


def _bars(figures: _Figures) -> list[Finding]:
    regimes = figures.gap(("private", "FedAvg"), ("public", "FedAvg"))
    ranks = {NAMES[d]: _rise(figures, d, "private", "FedAvg") for d in (FASHION, CIFAR)}
    tuned = figures.gap(("private", "FedAvg + MSE"), ("private", "FedAvg"))
    ours = {name: figures.gap(("private", name), ("private", "FedAvg")) for name in OURS}
    counted = [gap for gap in ours.values() if gap and gap.seeds >= ENOUGH]
    return [
        Finding(
            f"|private FedAvg - public FedAvg| is at most 3 points ({ENOUGH} seeds or more)",
            abs(regimes.mean) <= 3 if regimes and regimes.seeds >= ENOUGH else None, in_words(regimes),
        ),
        Finding(
            "Accuracy rises with labels per site (Spearman above 0.9, private FedAvg)",
            _all(rank > 0.9 for rank in ranks.values() if rank is not None),
            ", ".join(f"{name} {rank:.2f}" for name, rank in ranks.items() if rank is not None),
        ),
        Finding(
            "Private with MSE tuning is not behind private FedAvg",
            tuned.mean >= -tuned.error if tuned and tuned.seeds >= ENOUGH else None, in_words(tuned),
        ),
        Finding(
            "The best of ours is at least 3 points ahead of private FedAvg",
            any(gap.mean >= 3 for gap in counted) if counted else None,
            "; ".join(f"{name} {in_words(gap)}" for name, gap in ours.items()),
        ),
    ]  # fmt: skip


def _rise(figures: _Figures, dataset: str, regime: str, name: str) -> float | None:
    """Return the rank correlation of mean accuracy with the number of labels a site knows."""
    means = {labels: mean(v) for labels in LABELS if (v := figures.of(dataset, labels, regime, name))}
    return rank_correlation([*means], [*means.values()]) if len(means) > 1 else None


def _fall(figures: _Figures) -> str:
    parts = []
    for dataset in (FASHION, CIFAR):
        for regime, name in (("private", "FedAvg"), ("public", "FedAvg")):
            few, all_ = (figures.of(dataset, labels, regime, name) for labels in (LABELS[0], LABELS[-1]))
            if few and all_:
                from_to = f"{100 * mean(all_):.1f} at 10 labels, {100 * mean(few):.1f} at 2"
                parts.append(f"{NAMES[dataset]}, {regime}: {from_to}")
    return "; ".join(parts)


def _ahead(gap: Paired | None) -> bool | None:
    return None if gap is None else gap.mean > 0


def _all(checks: Iterator[bool] | Any) -> bool | None:
    found = list(checks)
    return all(found) if found else None
