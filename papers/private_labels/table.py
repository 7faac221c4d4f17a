"""Private and public label sets ("Federated Learning with Heterogeneous and Private Label Sets", arXiv 2508.18774).

The figures of the paper were not available, only its findings in words; each is judged by our figures.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from papers.harness.bars import is_ahead, verdict
from papers.harness.cells import Results, Size
from papers.harness.pages import Block, Chapter, Chart, Curve, Finding, Grid, findings_grid
from papers.harness.statistics import Paired, deviation, in_words, mean, paired, rank_correlation, spread
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


@dataclass(frozen=True)
class _Figures:
    """The figures of the table by data set, labels, regime and method."""

    results: Results
    scale: Scale

    @property
    def model(self) -> str:
        return self.scale.model

    def of(self, dataset: str, labels: int, regime: str, name: str, model: str = "") -> dict[int, float]:
        return self.results.values(row(dataset, model or self.model, labels, regime, name))

    def at(self, regime: str, name: str) -> dict[int, float]:
        return self.of(FASHION, AT, regime, name)

    def gap(self, ours: RegimeAndMethod, theirs: RegimeAndMethod) -> Paired | None:
        return paired(self.at(*ours), self.at(*theirs))


def chapters(results: Results, size: Size) -> list[Chapter]:
    """Return the page."""
    scale = SCALES[size]
    figures = _Figures(results, scale)
    return [
        Chapter("What was run", _what_was_run(scale, size)),
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
    ranks = [_rise(figures, d, "private", "FedAvg") for d in (FASHION, CIFAR)]
    seeds = figures.scale.seeds[FASHION]
    drop = _fall(figures)
    regimes = [figures.gap(("private", n), ("public", n)) for n in ("FedAvg", "FedProx")]
    tuned = [figures.gap(("private", n), ("private", "FedAvg")) for n in TUNED]
    order = figures.gap(("private", "FedAvg + MSE"), ("private", "FedAvg + pairwise"))
    public = figures.gap(("public", "FedAvg + pairwise"), ("public", "FedAvg + MSE"))
    worse = [figures.gap(("public", n), ("public", "FedAvg")) for n in TUNED]
    variance = _variance(figures)
    return [
        Finding(
            "1. Accuracy drops substantially as sites know fewer labels (private FedAvg: Spearman above 0.9)",
            _rises(ranks),
            drop,
        ),
        Finding(
            "2. Private FedAvg and FedProx perform similarly to their public forms (mean differences within 3 points)",
            verdict(regimes, seeds.untuned, lambda gap: abs(gap.mean) <= 3),
            f"private - public: FedAvg {in_words(regimes[0])}; FedProx {in_words(regimes[1])}",
        ),
        Finding(
            "3. Private: tuning beats the adapted methods (each mean difference above one standard error)",
            verdict(tuned, max(2, seeds.tuned), lambda gap: gap.mean > gap.error),  # one seed has no error
            f"MSE {in_words(tuned[0])}; pairwise {in_words(tuned[1])}",
        ),
        Finding(
            "3. Private: MSE is slightly better than pairwise (mean difference above 0)",
            verdict([order], seeds.tuned, is_ahead),
            in_words(order),
        ),
        Finding(
            "4. Public: pairwise is better than MSE (mean difference above 0)",
            verdict([public], seeds.tuned, is_ahead),
            in_words(public),
        ),
        Finding(
            "4. Public, Fashion-MNIST: tuning can be worse than none (a mean difference below 0)",
            verdict(worse, seeds.tuned, lambda gap: gap.mean < 0, of=any),
            f"MSE {in_words(worse[0])}; pairwise {in_words(worse[1])}",
        ),
        Finding(
            "5. Tuning increases the variance over seeds (each standard deviation above that of FedAvg)",
            all(variance[name] > variance["FedAvg"] for name in TUNED) if variance else None,
            ", ".join(f"{name} ± {100 * found:.1f}" for name, found in variance.items()) or "–",
        ),
    ]


def _longer(results: Results, scale: Scale) -> Finding | None:
    """Judge the two regimes after three times the rounds; with few rounds the public one is still worse."""
    if not scale.longer:
        return None
    private, public = (results.values(longer_row(scale, regime)) for regime in REGIMES)
    gap = paired(private, public)
    return Finding(
        f"The same after {3 * scale.on[FASHION].rounds} rounds",
        verdict([gap], ENOUGH, lambda gap: abs(gap.mean) <= 3),
        f"{in_words(gap)}; private {spread(private)}, public {spread(public)}",
    )


def _bars(figures: _Figures, longer: Finding | None) -> list[Finding]:
    regimes = figures.gap(("private", "FedAvg"), ("public", "FedAvg"))
    ranks = {NAMES[d]: _rise(figures, d, "private", "FedAvg") for d in (FASHION, CIFAR)}
    tuned = figures.gap(("private", "FedAvg + MSE"), ("private", "FedAvg"))
    ours = {name: figures.gap(("private", name), ("private", "FedAvg")) for name in OURS}
    return [
        Finding(
            f"|private FedAvg - public FedAvg| is at most 3 points (mean difference, {ENOUGH} seeds or more)",
            verdict([regimes], ENOUGH, lambda gap: abs(gap.mean) <= 3),
            in_words(regimes),
        ),
        *([longer] if longer else []),
        Finding(
            "Accuracy increases with labels per site (Spearman above 0.9, private FedAvg)",
            _rises(ranks.values()),
            ", ".join(f"{name} {rank:.2f}" for name, rank in ranks.items() if rank is not None) or "–",
        ),
        Finding(
            "Private with MSE tuning is not worse than private FedAvg (by more than one standard error, "
            f"{ENOUGH} seeds or more)",
            verdict([tuned], ENOUGH, lambda gap: gap.mean >= -gap.error),
            in_words(tuned),
        ),
        Finding(
            "Our best method is at least 3 points better than private FedAvg (mean difference, "
            f"{ENOUGH} seeds or more)",
            verdict(ours.values(), ENOUGH, lambda gap: gap.mean >= 3, of=any),
            "; ".join(f"{name} {in_words(gap)}" for name, gap in ours.items()),
        ),
    ]


def _variance(figures: _Figures) -> dict[str, float]:
    """Return the standard deviation of each private method; empty unless all have the seeds of the table."""
    seen = {name: figures.at("private", name) for name in ("FedAvg", *TUNED)}
    common = set.intersection(*(set(values) for values in seen.values()))
    if len(common) < max(2, figures.scale.seeds[FASHION].tuned):
        return {}
    return {name: deviation({seed: values[seed] for seed in common}) for name, values in seen.items()}


def _rise(figures: _Figures, dataset: str, regime: str, name: str) -> float | None:
    """Return the rank correlation of mean accuracy with labels per site; None if a figure is missing."""
    found = [figures.of(dataset, labels, regime, name) for labels in LABELS]
    if any(len(values) < figures.scale.seeds[dataset].over for values in found):
        return None
    return rank_correlation(LABELS, [*map(mean, found)])


def _rises(ranks: Iterable[float | None]) -> bool | None:
    known = [rank for rank in ranks if rank is not None]
    return all(rank > 0.9 for rank in known) if len(known) == 2 else None  # both data sets


def _fall(figures: _Figures) -> str:
    parts = []
    for dataset in (FASHION, CIFAR):
        for regime, name in (("private", "FedAvg"), ("public", "FedAvg")):
            few, all_ = (figures.of(dataset, labels, regime, name) for labels in (LABELS[0], LABELS[-1]))
            if few and all_:
                from_to = f"{100 * mean(all_):.1f} at 10 labels, {100 * mean(few):.1f} at 2"
                parts.append(f"{NAMES[dataset]}, {regime}: {from_to}")
    return "; ".join(parts) or "–"
