"""Private and public label sets ("Federated Learning with Heterogeneous and Private Label Sets", arXiv 2508.18774).

The figures of the paper were not available, only its findings in words; each is judged by our figures.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path

from fedaccord.evaluation.judge import (
    Judgement,
    judge_at_least,
    judge_better,
    judge_equivalent,
    judge_not_worse,
)
from papers.harness.bars import judged_finding
from papers.harness.cells import Results, Row, Size
from papers.harness.claims import load_ledger
from papers.harness.ledger import claims_chapter
from papers.harness.pages import Block, Chapter, Chart, Curve, Finding, Grid, findings_grid
from papers.harness.statistics import Figures, deviation, differences, in_words, mean, paired, rank_correlation, spread
from papers.private_labels.cells import (
    AT,
    CAUSES,
    CIFAR,
    FASHION,
    LABELS,
    NAMES,
    OURS,
    OVER_LABELS,
    REGIMES,
    SCALES,
    TUNED,
    RegimeAndMethod,
    Scale,
    cause_row,
    cells,
    everyone,
    longer_row,
    row,
)

__all__ = ["TITLE", "cells", "chapters"]
TITLE = "Private label sets"
ENOUGH = 8  # seeds required by our criteria
SIMILAR = 3.0  # points within which two methods are similar


@dataclass(frozen=True)
class _Figures:
    """The figures of the table by data set, labels, regime and method."""

    results: Results
    scale: Scale

    @property
    def model(self) -> str:
        return self.scale.model

    def of(self, dataset: str, labels: int, regime: str, name: str, model: str = "") -> Figures:
        return self.results.values(row(dataset, model or self.model, labels, regime, name))

    def at(self, regime: str, name: str) -> Figures:
        return self.of(FASHION, AT, regime, name)

    def gaps(self, ours: RegimeAndMethod, theirs: RegimeAndMethod) -> list[float | None]:
        return differences(self.at(*ours), self.at(*theirs))

    def better(self, ours: RegimeAndMethod, theirs: RegimeAndMethod) -> Judgement:
        return judge_better(self.gaps(ours, theirs))


def chapters(results: Results, size: Size) -> list[Chapter]:
    """Return the page."""
    scale = SCALES[size]
    figures = _Figures(results, scale)
    return [
        Chapter("What was run", _what_was_run(scale, size)),
        claims_chapter(
            load_ledger(Path(__file__).with_name("claims.toml")),
            results,
            cells(size),
            {"deviation": deviation_by_seed},
            {"model": scale.model},
        ),
        Chapter("The paper's findings", [findings_grid(_findings(figures))]),
        Chapter("Our criteria", [findings_grid(_bars(figures, _longer(results, scale)))]),
        *(Chapter(f"{NAMES[d]}, {AT} labels per site", [_everyone_grid(figures, d)]) for d in (FASHION, CIFAR)),
        *(Chapter(f"{NAMES[d]} over labels per site", _over_labels(figures, d)) for d in (FASHION, CIFAR)),
        *([Chapter("The larger network", [_larger(figures)])] if scale.confirming else []),
        *([Chapter("Settings that the findings depend on", _causes(results, scale))] if scale.causes else []),
    ]


def _what_was_run(scale: Scale, size: Size) -> list[Block]:
    smaller = (
        "This is the paper's size as far as known."
        if size == "full"
        else f"Smaller than in the paper: {scale.model} instead of the larger CNN, {scale.on[FASHION].rounds} rounds "
        "instead of 100, and fewer seeds than 10 ("
        + "; ".join(
            f"{NAMES[d]}: at {AT} labels {n.untuned} without tuning and {n.tuned} otherwise, elsewhere {n.over}"
            for d, n in scale.seeds.items()
        )
        + "). `--full` is the paper's size."
    )
    return [
        f"10 sites, SGD with momentum 0.9 (SCAFFOLD: no momentum, learning rate {OURS['SCAFFOLD']['lr']}). "
        + " ".join(
            f"{NAMES[data]}: {t.rounds} rounds, {t.samples} samples per site, {t.unlabelled} unlabelled samples at the "
            f"server, epochs per round: {t.epochs}, batch {t.batch}, learning rate {t.lr}."
            for data, t in scale.on.items()
        )
        + " CIFAR-10 is a subset of 4,000 training images.",
        "Figures are the accuracy of the global model of the last round on the published test images, in percent: mean "
        "± standard deviation over seeds, which determine label sets, samples and initial weights. Differences are "
        "paired by seed, on the seeds that both have.",
        smaller,
    ]


def _everyone_grid(figures: _Figures, dataset: str) -> Grid:
    rows = []
    for name in everyone(dataset):
        private = figures.of(dataset, AT, "private", name)
        public = figures.of(dataset, AT, "public", name)
        plain = figures.of(dataset, AT, "private", "FedAvg")
        rows.append(
            [
                name,
                str(len(private)),
                spread(private),
                spread(public),
                in_words(paired(private, public)),
                "" if name == "FedAvg" else in_words(paired(private, plain)),
            ]
        )
    head = ("method", "seeds", "private", "public", "private - public", "private: difference to FedAvg")
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
    for regime in REGIMES:
        on = figures.of(FASHION, AT, regime, "FedAvg", large)
        same = {seed: value for seed, value in figures.at(regime, "FedAvg").items() if seed in on}
        rows.append([f"{regime}, FedAvg", spread(same), spread(on)])
    return Grid(("Fashion-MNIST, seed 0", small, f"{large} (two 5x5 convolutions, 512)"), rows)


def _causes(results: Results, scale: Scale) -> list[Block]:
    rows = []
    for cause in CAUSES:
        at = {(r, n): results.values(cause_row(cause, r, n)) for r in REGIMES for n in ("FedAvg", *TUNED)}
        mse, pairwise = TUNED
        rows.append(
            [
                cause,
                spread(at["private", "FedAvg"]),
                in_words(paired(at["private", "FedAvg"], at["public", "FedAvg"])),
                *(in_words(paired(at["private", name], at["private", "FedAvg"])) for name in TUNED),
                *(in_words(paired(at["public", name], at["public", "FedAvg"])) for name in TUNED),
                in_words(paired(at["public", pairwise], at["public", mse])),
                " / ".join(
                    f"{100 * deviation(v):.1f}" if len(v := at["private", name]) > 1 else "–"
                    for name in ("FedAvg", *TUNED)
                ),
            ]
        )
    head = (
        "setting",
        "private FedAvg",
        "private - public",
        "private: MSE",
        "private: pairwise",
        "public: MSE",
        "public: pairwise",
        "public: pairwise - MSE",
        "private: deviation of FedAvg / MSE / pairwise",
    )
    return [
        f"Fashion-MNIST, {AT} labels per site, an MLP with 128 hidden units in place of {scale.model}, one setting "
        f"changed at a time, {scale.causes} paired seeds. Tunings are shown as differences to FedAvg without tuning.",
        Grid(head, rows),
    ]


def _findings(figures: _Figures) -> list[Finding]:
    seeds, over = figures.scale.seeds[FASHION], {NAMES[d]: of.over for d, of in figures.scale.seeds.items()}
    few, many = ({d: figures.of(d, n, "private", "FedAvg") for d in NAMES} for n in (LABELS[0], LABELS[-1]))
    falls = {NAMES[dataset]: judge_better(differences(many[dataset], few[dataset])) for dataset in few}
    similar = {
        name: judge_equivalent(figures.gaps(("private", name), ("public", name)), SIMILAR)
        for name in ("FedAvg", "FedProx")
    }
    mse, pairs = TUNED
    plain = {regime: figures.at(regime, "FedAvg") for regime in REGIMES}
    tuned = {name: judge_better(differences(figures.at("private", name), plain["private"])) for name in TUNED}
    worse = {name: judge_better(differences(plain["public"], figures.at("public", name))) for name in TUNED}
    varying = {
        name: judge_better(differences(_around(figures.at("private", name)), _around(plain["private"])))
        for name in TUNED
    }
    order = figures.better(("private", mse), ("private", pairs))
    public = figures.better(("public", pairs), ("public", mse))
    return [
        judged_finding("1. Private FedAvg is better with 10 labels than with 2", falls, over, note=_fall(figures)),
        judged_finding(
            f"2. Private FedAvg and FedProx are within {SIMILAR:g} points of their public forms", similar, seeds.untuned
        ),
        judged_finding("3. Private: tuning is better than none", tuned, seeds.tuned),
        judged_finding("3. Private: MSE is better than pairwise", {"": order}, seeds.tuned),
        judged_finding("4. Public: pairwise is better than MSE", {"": public}, seeds.tuned),
        judged_finding("4. Public, Fashion-MNIST: a tuning is worse than none", worse, seeds.tuned, of="any"),
        judged_finding(
            "5. Private: tuning increases the deviation over seeds (from their median)", varying, seeds.tuned
        ),
    ]


def _around(values: Figures) -> Figures:
    """Return the distance of each seed from the median over seeds, whose paired differences compare variances."""
    middle = statistics.median(values.values()) if values else 0.0
    return Figures({seed: abs(value - middle) for seed, value in values.items()}, values.failed, values.dropped)


def deviation_by_seed(results: Results, row: Row) -> Figures:
    """Return the distance of the accuracy from its median over seeds, by seed."""
    return _around(results.values(row))


def _longer(results: Results, scale: Scale) -> Finding | None:
    """Judge the two regimes after three times the rounds; with few rounds the public one is still worse."""
    if not scale.longer:
        return None
    private, public = (results.values(longer_row(scale, regime)) for regime in REGIMES)
    return judged_finding(
        f"The same after {3 * scale.on[FASHION].rounds} rounds",
        {"": judge_equivalent(differences(private, public), SIMILAR)},
        ENOUGH,
        note=f"private {spread(private)}, public {spread(public)}",
    )


def _bars(figures: _Figures, longer: Finding | None) -> list[Finding]:
    regimes = figures.gaps(("private", "FedAvg"), ("public", "FedAvg"))
    ranks = {NAMES[d]: judge_at_least(_rises(figures, d), 0.9) for d in (FASHION, CIFAR)}
    tuned = figures.gaps(("private", "FedAvg + MSE"), ("private", "FedAvg"))
    ours = {name: judge_at_least(figures.gaps(("private", name), ("private", "FedAvg")), SIMILAR) for name in OURS}
    over = {NAMES[dataset]: of.over for dataset, of in figures.scale.seeds.items()}
    return [
        judged_finding(
            f"Private and public FedAvg are within {SIMILAR:g} points ({ENOUGH} seeds or more)",
            {"": judge_equivalent(regimes, SIMILAR)},
            ENOUGH,
        ),
        *([longer] if longer else []),
        judged_finding("Spearman's correlation of accuracy and labels per site is at least 0.9", ranks, over, digits=2),
        judged_finding(
            f"Private with MSE tuning is at most 1 point worse than private FedAvg ({ENOUGH} seeds or more)",
            {"": judge_not_worse(tuned, 1.0)},
            ENOUGH,
        ),
        judged_finding(
            f"A method of ours is at least {SIMILAR:g} points better than private FedAvg ({ENOUGH} seeds or more)",
            ours,
            ENOUGH,
            of="any",
        ),
    ]


def _rises(figures: _Figures, dataset: str) -> list[float | None]:
    """Return the rank correlation of private FedAvg's accuracy with labels per site, for each seed with all figures."""
    found = [figures.of(dataset, labels, "private", "FedAvg") for labels in LABELS]
    seeds = sorted(set.intersection(*(set(values) for values in found)))
    return [rank_correlation(LABELS, [values[seed] for values in found]) for seed in seeds]


def _fall(figures: _Figures) -> str:
    parts = []
    for dataset in (FASHION, CIFAR):
        for regime, name in (("private", "FedAvg"), ("public", "FedAvg")):
            few, all_ = (figures.of(dataset, labels, regime, name) for labels in (LABELS[0], LABELS[-1]))
            if few and all_:
                from_to = f"{100 * mean(all_):.1f} at 10 labels, {100 * mean(few):.1f} at 2"
                parts.append(f"{NAMES[dataset]}, {regime}: {from_to}")
    return "; ".join(parts) or "–"
