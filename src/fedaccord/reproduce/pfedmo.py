"""Personalised momentum: pFedMo, its nine baselines, and what the server's public data gives without any site.

The paper's main table says nothing of its split; its baselines' figures are those of sites that hold all classes, so
the sites here are i.i.d. there. Label skew, quantity skew and Dirichlet splits are parts of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedaccord.methods.registry import METHODS
from fedaccord.reproduce.bars import ahead_of_all, is_ahead, verdict
from fedaccord.reproduce.cells import Cell, Results, Row, Size, in_order
from fedaccord.reproduce.pages import Block, Chapter, Chart, Curve, Finding, Grid, findings_grid
from fedaccord.reproduce.pfedmo_published import DIRICHLET, MAIN, MARGINS, MINUTES_TO_TARGET, QUANTITY_SKEW
from fedaccord.reproduce.statistics import in_words, mean, paired, spread

TITLE = "Personalised momentum: pFedMo"
OURS, PRINTED, ALONE = "pFedMo", "pFedMo, printed rule", "public data alone"
ACCURACY = "global.accuracy"

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

CLASSES, ALPHAS = (3, 6, 9), (0.05, 0.1, 1.0)
TAUS, GAMMAS, PIS = (10, 20, 40, 100), (0.1, 0.3, 0.5, 0.7, 0.9), (0.0, 0.25, 0.5, 0.75, 1.0)
MANY = (4, 8, 12, 16, 50, 100)
SIZES = [5000, 12500, 17500, 24400]  # published: 25000, of which the server's 600 public images are taken
EDGE: dict[str, list[float]] = {"speed": [50, 400], "up": [1, 8], "down": [4, 32], "latency": [0.01, 0.1]}
EDGE_SITES, TARGET = 16, 0.85


@dataclass(frozen=True)
class Task:
    """A data set with a network, as all methods get it."""

    dataset: str
    model: str
    tau: int
    public: int  # labelled samples of each class at the server: 1 % of the training data
    loss: str = "view"
    natural: str = ""  # the column that says whose a sample is
    unseen: tuple[str, ...] = ()  # whose samples are the test, where no test part is published

    def data(self, partition: Mapping[str, Any], test_samples: int | None) -> dict[str, Any]:
        """Return the section `[data]`."""
        if self.natural:
            return {"dataset": self.dataset, "partition": {"kind": "natural", "by": self.natural}, "test": 0.0,
                    "standardise": "federation"}  # fmt: skip
        limit = {} if test_samples is None else {"test_samples": test_samples}
        return {"dataset": self.dataset, "partition": dict(partition), "test": 0.0, **limit}


LINEAR, LOGISTIC, LENET = "Linear, MNIST", "Logistic, MNIST", "LeNet-5, MNIST"
CIFAR, HAR = "LeNet-5, CIFAR-10 subset", "1-D CNN, UCI-HAR"
TASKS = {
    LINEAR: Task("mnist", "linear", 20, 60, loss="squared"),
    LOGISTIC: Task("mnist", "linear", 20, 60),
    LENET: Task("mnist", "lenet5", 40, 60),
    CIFAR: Task("cifar10", "lenet5", 40, 4),
    # Of the unseen, none is among those that benchmarks/momentum_rules.py chose the default rule on (1 to 15).
    HAR: Task("uci_har", "cnn1d", 20, 13, natural="subject", unseen=tuple(str(n) for n in range(25, 31))),
}


@dataclass(frozen=True)
class Scale:
    """How large a run of the table is: local steps of a site in all by task, seeds, and what is run beside."""

    iterations: dict[str, int]
    seeds: int
    few: Sequence[str]  # who runs where a whole comparison would take too long
    fewer: Sequence[str] = FEWER  # and where one cell takes long already
    skew: str = LENET  # the task of classes at each site
    study: str = LOGISTIC  # the task of other splits, tau, gamma, pi, numbers of sites and the edge network
    many: Sequence[int] = MANY
    test_samples: int | None = None
    studies: bool = True
    gradient_samples: int | None = 2000  # that Mime's full gradient is taken on; None: all


SCALES: dict[Size, Scale] = {
    "quick": Scale(
        {LOGISTIC: 400, HAR: 40}, 2, (OURS, PRINTED, "FedNAG", ALONE), skew=LOGISTIC, test_samples=2000, studies=False
    ),
    "default": Scale(
        {LINEAR: 1000, LOGISTIC: 1000, LENET: 1000, CIFAR: 600, HAR: 200}, 3, FEW, test_samples=5000
    ),
    "full": Scale(
        {LINEAR: 1000, LOGISTIC: 1000, LENET: 1000, CIFAR: 10000, HAR: 4000}, 5, tuple(METHODS_RUN),
        tuple(METHODS_RUN), study=LENET, gradient_samples=None,
    ),
}


def cells(size: Size) -> list[Cell]:
    """Return all runs of the table: the bars' first, then the main table, then the studies."""
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
        for name in (OURS, PRINTED, "FedNAG"):
            method = {**METHODS_RUN[name], "gamma": gamma}
            yield _cell(scale, scale.study, _classes(4, 3), ("gamma", str(gamma), name), method, seed)
    for pi in PIS:
        for name in (OURS, PRINTED):
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
    scale: Scale, name: str, split: Mapping[str, Any], row: Row, method: Mapping[str, Any], seed: int,
    more: Mapping[str, Any] | None = None,
) -> Cell:  # fmt: skip
    task = TASKS[name]
    tau = method.get("steps", task.tau)
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


def chapters(results: Results, size: Size) -> list[Chapter]:
    """Return the page."""
    scale = SCALES[size]
    parts = [
        Chapter("What was run", _what_was_run(scale, size)),
        Chapter("Bars", [findings_grid(_bars(results, scale))]),
        Chapter(f"Classes at each site: {scale.skew}", _over_classes(results)),
        *(Chapter(f"Main table: {t}", _comparison(results, ("main", t), MAIN.get(t))) for t in scale.iterations),
    ]
    if scale.studies:
        parts += [
            Chapter(f"Quantity skew: {scale.study}", _quantity(results)),
            Chapter(f"Dirichlet splits: {scale.study}", [_over(results, "dirichlet", ALPHAS, scale.fewer, DIRICHLET)]),
            Chapter(f"Steps in a round: {scale.study}", [_over(results, "tau", TAUS, scale.few)]),
            Chapter(f"Nesterov momentum: {scale.study}", [_over(results, "gamma", GAMMAS, (OURS, PRINTED, "FedNAG"))]),
            Chapter(f"Temperature: {scale.study}", [_over(results, "pi", PIS, (OURS, PRINTED))]),
            Chapter(f"Number of sites: {scale.study}", _over_sites(results, scale)),
        ]
    return [*parts, Chapter("A simulated edge network", _edge(results, scale))]


def _what_was_run(scale: Scale, size: Size) -> list[Block]:
    steps = ", ".join(f"{name} {total}" for name, total in scale.iterations.items())
    blocks: list[Block] = [
        f"Four sites unless said, batches of 64, learning rate 0.01, every momentum constant 0.5, {scale.seeds} paired "
        f"seeds. Local steps of a site in all (T): {steps}. A round is 20 steps, with LeNet-5 40. `Linear` is least "
        "squares on one-hot targets.",
        "The server's public data is 1 % of the training data, the same number of each class, taken out of the data "
        "before it is dealt to the sites, for every method alike; pFedMo alone and `public data alone` look at it. Of "
        "it pFedMo holds a fifth out and takes its scores on that part; `public data alone` takes none and learns from "
        "all. Nothing is chosen on test data.",
        "The paper does not tell the split of its main table; ours is i.i.d. (but UCI-HAR's sites are "
        "people)." + (_studies() if scale.studies else ""),
        "UCI-HAR: subjects 1 to 24 are the sites, and the test is the six others, whom nothing was chosen on. Its "
        "windows overlap by half, so a public window may share half of its signal with a training window of the same "
        "person; with a test window none does.",
        "Figures are the accuracy of the global model (for pFedMo the mean of the sites' models) on the test data "
        "after T local steps, in percent: mean ± standard deviation over seeds. Differences are paired by seed. What "
        "the paper calls training accuracy is taken for that of the global model on the test data. Published figures "
        "come from all of CIFAR-10, LeNet-5 on UCI-HAR and sites whose split is not told: beside ours, not the same "
        f"experiment. `until {100 * TARGET:g} %` is the first evaluated round with that accuracy: its mean over the "
        "seeds that came to it, and how many did. Networks (LeNet-5, 1-D CNN) are evaluated at every fifth of their "
        "rounds only, so there it is no finer than that; linear models, and all on the edge network, in every round.",
    ]
    if size != "full":
        blocks.append(
            "Shrunk against the paper (T = 4000 for UCI-HAR and 10000 for CIFAR-10, LeNet-5 throughout, all test data; "
            "`--full`): T as above, " + (f"{scale.test_samples} test images, " if scale.test_samples else "")
            + f"Mime's full gradient on {scale.gradient_samples} samples of a site, "
            "splits other than three classes with some of the methods, and quantity skew, Dirichlet splits, tau, "
            f"gamma, pi, numbers of sites and the edge network with {scale.study}"
            + ("" if scale.studies else "; most studies are left out") + "."
        )
    return blocks


def _studies() -> str:
    return (
        " Label skew, quantity skew and Dirichlet splits have chapters of their own. Steps, Nesterov momentum, "
        "temperature and numbers of sites are studied with three classes at each site and, where pi is not what is "
        "varied, pi = 1; the published studies have pi = 0.5. Quantity skew is "
        f"{', '.join(f'{n:,}' for n in SIZES)}: all 60,000 training images but the server's 600 public ones, which the "
        "largest site (25,000 in the paper) does without."
    )


def _values(results: Results, *row: str) -> dict[int, float]:
    return results.values(row, ACCURACY)


def _comparison(results: Results, at: Row, printed: Mapping[str, float] | None = None) -> list[Block]:
    printed, ours, rows = printed or {}, _values(results, *at, OURS), []
    for name in METHODS_RUN:
        found = _values(results, *at, name)
        if found:
            told = f"{printed[name]:.2f}" if name in printed else ""
            gap = "" if name == OURS else in_words(paired(ours, found))
            rows.append([name, told, spread(found), gap, _reached(results, (*at, name))])
    return [Grid(("method", "published", "ours", f"{OURS} ahead by", f"until {100 * TARGET:g} %"), rows)]


def _over_classes(results: Results) -> list[Block]:
    head = ("method", *(f"{c} classes" for c in CLASSES), f"{OURS} ahead at 3", "published margin at 3, 6, 9")
    ours, rows = _values(results, "classes", "3", OURS), []
    for name in METHODS_RUN:
        found = [_values(results, "classes", str(c), name) for c in CLASSES]
        if any(found):
            gap = "" if name == OURS else in_words(paired(ours, found[0]))
            rows.append([name, *map(spread, found), gap, MARGINS if name == OURS else ""])
    curves = []
    for name in METHODS_RUN:
        found = [_values(results, "classes", str(c), name) for c in CLASSES]
        if all(found):
            curves.append(Curve(name, CLASSES, [100 * mean(v) for v in found]))
    return [Chart("Accuracy over classes at each site", "classes", "accuracy, %", curves), Grid(head, rows)]


def _quantity(results: Results) -> list[Block]:
    said = f"Sites of {', '.join(map(str, SIZES))} samples, all weighed alike. Published for pFedMo: {QUANTITY_SKEW}."
    return [said, *_comparison(results, ("quantity",))]


def _over(
    results: Results, what: str, values: Sequence[float], names: Sequence[str],
    printed: Mapping[float, float] | None = None,
) -> Grid:  # fmt: skip
    rows = [[name, *(spread(_values(results, what, str(v), name)) for v in values)] for name in names]
    if printed:
        rows.insert(0, ["pFedMo, published", *(f"{printed[v]:.2f}" if v in printed else "" for v in values)])
    return Grid((what, *map(str, values)), rows)


def _over_sites(results: Results, scale: Scale) -> list[Block]:
    curves = []
    for name in scale.fewer:
        found = [_values(results, "sites", str(n), name) for n in scale.many]
        if all(found):
            curves.append(Curve(name, scale.many, [100 * mean(v) for v in found]))
    chart = Chart("Accuracy over the number of sites, 3 classes each", "sites", "accuracy, %", curves)
    return [chart, _over(results, "sites", scale.many, scale.fewer)]


def _edge(results: Results, scale: Scale) -> list[Block]:
    network = "; ".join(f"{key} {low:g} to {high:g}" for key, (low, high) in EDGE.items())
    said = (
        f"{EDGE_SITES} sites, Dirichlet 1, {scale.study}, each with a computer and a link drawn by the seed "
        f"({network}: samples in a second, megabits in a second, seconds). Time is simulated, not measured; the "
        "server's own work is free. DOMO and Mime are charged a model more on the way down than they would need: the "
        "server's momentum, which sites could infer from two models, and the model itself with each of two questions. "
        f"Published, on another system and task: {MINUTES_TO_TARGET}."
    )
    taus = (20, 40) if scale.studies else (20,)
    rows = []
    for name in METHODS_RUN:
        told = [_reached(results, ("edge", str(tau), name)) for tau in taus]
        last = [spread(_values(results, "edge", str(tau), name)) for tau in taus]
        if any(results.cells.get(("edge", str(tau), name)) for tau in taus):
            rows.append([name, *told, *last])
    head = ("method", *(f"tau {tau}: until {100 * TARGET:g} %" for tau in taus), *(f"tau {tau}: last" for tau in taus))
    return [said, Grid(head, rows)]


def _reached(results: Results, row: Row) -> str:
    """Write when the target was first reached, in rounds and, on a network, simulated minutes."""
    curves = [result["curve"] for result in results.cells.get(row, {}).values()]
    first = [next((p for p in curve if p["global"].get("accuracy", 0) >= TARGET), None) for curve in curves]
    there = [point for point in first if point is not None]
    if not there:
        return f"never, 0 of {len(curves)}" if curves else "–"
    rounds = f"{sum(p['round'] for p in there) / len(there):.1f} rounds"
    minutes = [p["simulated"] / 60 for p in there if "simulated" in p]
    timed = f", {sum(minutes) / len(minutes):.1f} min" if minutes else ""
    if timed and row[-1] == ALONE:
        timed = ", no site works"
    return f"{rounds}{timed}, {len(there)} of {len(curves)}"


def _bars(results: Results, scale: Scale) -> list[Finding]:
    ours = {c: _values(results, "classes", str(c), OURS) for c in CLASSES}
    gaps = {n: paired(ours[3], _values(results, "classes", "3", n)) for n in BASELINES}
    lost = paired(ours[9], ours[3])
    alone = paired(ours[3], _values(results, "classes", "3", ALONE))
    printed = paired(ours[3], _values(results, "classes", "3", PRINTED))
    return [
        ahead_of_all(
            f"{scale.skew}, 3 classes at each site: pFedMo ahead of all nine baselines, mean over paired seeds",
            gaps, scale.seeds,
        ),
        Finding(
            f"{scale.skew}: pFedMo loses less than 2 points from 9 to 3 classes at each site",
            verdict([lost], scale.seeds, lambda gap: gap.mean < 2),
            "–" if lost is None else f"lost {lost.mean:.1f} (published 0.17)",
        ),
        Finding(
            "pFedMo is ahead of what the server's public data gives without any site, 3 classes at each site",
            verdict([alone], scale.seeds, is_ahead), in_words(alone),
        ),
        Finding(
            "The default rule is ahead of the printed one, 3 classes at each site",
            verdict([printed], scale.seeds, is_ahead), in_words(printed),
        ),
    ]  # fmt: skip
