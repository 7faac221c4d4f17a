"""Candidate labels: pFedPLL, its ablations, its baselines, the controls the paper leaves out, and `pfedpll+`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from papers.harness.bars import ahead_of_all, is_ahead, reaches, verdict
from papers.harness.cells import Cell, Results, Row, Size, in_order
from papers.harness.pages import Block, Chapter, Chart, Curve, Finding, Grid, findings_grid
from papers.harness.statistics import in_words, mean, paired, spread

TITLE = "Partial labels: pFedPLL"
REAL = {"Lost": "partial_label/lost.npz", "MSRCv2": "partial_label/msrcv2.npz", "FG-NET": "partial_label/fgnet.npz"}
IMAGES = {"MNIST": "mnist", "Fashion-MNIST": "fashion_mnist"}
OURS, PLUS, ALONE = "pFedPLL", "pfedpll+", "local, pFedPLL's loss"
PLUS_LOCAL = "pfedpll+, local head"
LEVERAGED = "Fed_LW, cross-entropy"  # the paper does not say which form; the other stays at chance on images for long
ACCURACY, TOLD_APART = "sites.mean.accuracy", "sites.mean.disambiguation"

BASELINES: dict[str, dict[str, Any]] = {
    "Fed_LW": {"name": "fed-lw"},
    LEVERAGED: {"name": "fed-lw", "form": "cross-entropy"},
    "Fed_CC": {"name": "fed-cc"},
    "Fed_RC": {"name": "fed-rc"},
    "Fed_CAVL": {"name": "fed-cavl"},
    "Fed_ABS_GCE": {"name": "fed-abs-gce"},
    "FedAvg, uniform targets": {"name": "fed-uniform"},
    "our approximation of LAAR": {"name": "fedpll-la-approx"},
}
CONTROLS: dict[str, dict[str, Any]] = {
    "CC, local head": {"name": "fed-cc", "head": "local"},
    "RC, local head": {"name": "fed-rc", "head": "local"},
    "local, CC": {"name": "local", "loss": "cc"},
    ALONE: {"name": "local", "loss": "pfedpll"},
    # What pfedpll+ has beside its own parts, given to others as well.
    "Fed_CC, noise and dropout": {"name": "fed-cc", "noise": 0.5, "dropout": 0.3},
    PLUS_LOCAL: {"name": "pfedpll+", "head": "local"},
    "local, noise and dropout": {"name": "local", "loss": "pfedpll", "noise": 0.5, "dropout": 0.3},
}
METHODS: dict[str, dict[str, Any]] = {OURS: {"name": "pfedpll"}, PLUS: {"name": "pfedpll+"}, **BASELINES, **CONTROLS}
# What noise does for others than pfedpll+, and a head of its own for that, is shown on the real sets.
ON_IMAGES = tuple(name for name in METHODS if not name.endswith("noise and dropout") and name != PLUS_LOCAL)
COMPONENTS: dict[str, dict[str, Any]] = {
    "pFedPLL_LCI_LCP": {"name": "pfedpll", "score": "samples"},
    "pFedPLL_LCP_KL": {"name": "pfedpll", "isolation": False},
    "pFedPLL_LCP": {"name": "pfedpll", "isolation": False, "score": "samples"},
    "pFedPLL_w/o": {"name": "pfedpll", "isolation": False, "score": "samples", "calibration": False},
}
TERMS: dict[str, dict[str, Any]] = {
    "L_" + " + L_".join(terms): {"name": "pfedpll", "terms": terms}
    for terms in (["s"], ["pc"], ["nc"], ["s", "pc"], ["s", "nc"], ["pc", "nc"])
}
FEW = (OURS, PLUS, "Fed_CC", ALONE)  # where a whole comparison would take too long
ON_LARGER = (*FEW, PLUS_LOCAL)  # whether a skewed site needs a head of its own shows where it has samples enough
RHOS = (0.2, 0.3, 0.4)
MANY = (20, 40, 80)

# Accuracy as published (T = 100), in the order of PUBLISHED_NAMES.
PUBLISHED_NAMES = (
    OURS,
    "Fed_LW",
    "Fed_CC",
    "Fed_RC",
    "Fed_CAVL",
    "our approximation of LAAR",
    "Fed_ABS_GCE",
    "FedAvg, uniform targets",
)
PUBLISHED: dict[str, tuple[float, ...]] = {
    "MNIST": (98.14, 97.04, 96.60, 96.44, 48.21, 82.01, 94.18, 92.69),
    "Fashion-MNIST": (84.06, 82.89, 82.35, 80.17, 46.35, 51.23, 76.44, 80.12),
    "Lost": (56.04, 55.29, 55.03, 53.87, 38.82, 52.96, 49.46, 47.69),
    "MSRCv2": (56.10, 49.98, 49.16, 50.19, 35.43, 46.31, 40.96, 41.60),
}
PLUS_BARS = {"Lost": 68.0, "MSRCv2": 50.0}


@dataclass(frozen=True)
class Scale:
    """How large a run of the table is."""

    rounds: int  # of the real sets
    steps: int
    seeds: int
    image_rounds: int
    image_steps: int
    image_batch: int
    image_samples: int
    image_seeds: int
    image_lr: float
    image_test: float = 0.2


SCALES: dict[Size, Scale] = {
    "quick": Scale(30, 20, 2, 5, 10, 64, 2000, 1, 0.1),
    "default": Scale(100, 40, 5, 20, 20, 64, 8000, 3, 0.1),
    "full": Scale(100, 40, 10, 100, 40, 256, 60000, 5, 0.01),
}
LARGER = replace(SCALES["default"], image_rounds=40, image_steps=40, image_samples=20000, image_lr=0.03)


def cells(size: Size) -> list[Cell]:
    """Return all runs of the table, the real sets first."""
    scale = SCALES[size]
    real = (_real(scale, data, name, seed) for data in REAL for name in METHODS for seed in range(scale.seeds))
    if size == "quick":
        return in_order(real, (_image(scale, "MNIST", name, METHODS[name], 0) for name in FEW))
    return in_order(real, _image_cells(scale), _larger_cells() if size == "default" else (), _study_cells(scale))


def _image_cells(scale: Scale) -> Iterator[Cell]:
    for seed in range(scale.image_seeds):
        for data in IMAGES:
            for name in ON_IMAGES:
                yield _image(scale, data, name, METHODS[name], seed)


def _larger_cells() -> Iterator[Cell]:
    """Some of them with more images and more steps, closer to the paper's size."""
    for seed in range(LARGER.image_seeds):
        for data in IMAGES:
            for name in ON_LARGER:
                cell = _image(LARGER, data, name, METHODS[name], seed)
                yield replace(cell, row=_larger_row(data, name))


def _study_cells(scale: Scale) -> Iterator[Cell]:
    """Ablations, sizes of the candidate sets and numbers of sites, all on MNIST."""
    for seed in range(scale.image_seeds):
        for name, method in (COMPONENTS | TERMS).items():
            yield _image(scale, "MNIST", name, method, seed)
        for rho in RHOS:
            for name in (*FEW, LEVERAGED):
                yield _image(scale, "MNIST", name, METHODS[name], seed, rho=rho)
        for sites in MANY:
            for name in FEW:
                yield _image(scale, "MNIST", name, METHODS[name], seed, sites=sites)


def _real(scale: Scale, data: str, name: str, seed: int) -> Cell:
    experiment = {
        "name": "pfedpll",
        "data": {
            "dataset": REAL[data],
            "partition": {"kind": "dirichlet", "sites": 4, "alpha": 0.5},
            "view": {"kind": "candidates"},
            "standardise": "federation",
        },
        "server": {"unlabelled": 100},
        "model": {"name": "mlp", "hidden": [128]},
        "method": {
            "rounds": scale.rounds,
            "steps": scale.steps,
            "batch": 32,
            "lr": 0.01,
            "momentum": 0.9,
            **METHODS[name],
        },
        "run": {"evaluate_every": max(1, scale.rounds // 10), "batched": "always"},
    }
    return Cell((data, name), seed, experiment)


def _image_row(data: str, name: str, rho: float = 0.4, sites: int = 4) -> Row:
    return (data, f"rho {rho}", f"{sites} sites", name)


def _larger_row(data: str, name: str) -> Row:
    return (data, "larger", name)


def _image(
    scale: Scale, data: str, name: str, method: Mapping[str, Any], seed: int, rho: float = 0.4, sites: int = 4
) -> Cell:
    # With many sites a round costs as many passes as with four, so that the study ends in finite time.
    steps = {"steps": scale.image_steps} if sites == 4 else {"epochs": 1}
    experiment = {
        "name": "pfedpll",
        "data": {
            "dataset": IMAGES[data],
            "samples": scale.image_samples,
            "test": scale.image_test,
            "test_samples": 500,  # the global model is not judged here, only the sites'
            "partition": {"kind": "dirichlet", "sites": sites, "alpha": 0.5},
            "view": {"kind": "candidates", "generate": "instance", "rho": rho},
        },
        "server": {"unlabelled": 640},
        "model": {"name": "lenet5"},
        "method": {
            "rounds": scale.image_rounds,
            "batch": scale.image_batch,
            "lr": scale.image_lr,
            "momentum": 0.9,
            **steps,
            **method,
        },
        "run": {"evaluate_every": max(1, scale.image_rounds // 5)},
    }
    return Cell(_image_row(data, name, rho, sites), seed, experiment)


def chapters(results: Results, size: Size) -> list[Chapter]:
    """Return the page."""
    scale = SCALES[size]
    parts = [
        Chapter("What was run", _what_was_run(scale, size)),
        Chapter("Bars", [findings_grid(_bars(results, scale))]),
        Chapter("The paper's orderings", [findings_grid(_orderings(results, scale))]),
        *(Chapter(data, _comparison(results, data, {n: (data, n) for n in METHODS})) for data in REAL),
        *(
            Chapter(data, [*_set_size(results, data), *_comparison(results, data, _image_rows(data))])
            for data in IMAGES
            if size != "quick" or data == "MNIST"
        ),
    ]
    if size == "default":
        parts += [Chapter(f"Closer to the paper's size, {data}", _larger(results, data)) for data in IMAGES]
    if size != "quick":
        parts += [
            Chapter("Components, MNIST", [_ablation(results, COMPONENTS)]),
            Chapter("Loss terms, MNIST", [_ablation(results, TERMS)]),
            Chapter("Size of the candidate sets, MNIST", [_over_rho(results)]),
            Chapter("Number of sites, MNIST", _over_sites(results)),
        ]
    return parts


def _image_rows(data: str) -> dict[str, Row]:
    return {name: _image_row(data, name) for name in ON_IMAGES}


def _what_was_run(scale: Scale, size: Size) -> list[Block]:
    blocks: list[Block] = [
        f"Real candidate sets: 4 sites, Dirichlet 0.5, {scale.rounds} rounds of {scale.steps} steps of 32, SGD with "
        "momentum 0.9 and learning rate 0.01, an MLP with one hidden layer of 128 on features standardised by the "
        f"moments of all sites, {scale.seeds} seeds. The server holds 100 inputs without labels, for the KL score; "
        "they are taken out for every method alike.",
        f"Images: {scale.image_samples} training images, candidate sets from a clean network (rho 0.4 unless said), "
        f"LeNet-5, {scale.image_rounds} rounds of {scale.image_steps} steps of {scale.image_batch}, learning rate "
        f"{scale.image_lr}, {scale.image_seeds} seeds; with 20 sites and more a round is one pass over a site's data.",
        "Figures are the mean over sites of the accuracy of each site's own model on its own 20 %, in percent, last "
        "round: mean ± standard deviation over seeds. `best` is the best evaluated round, chosen on the same test "
        "data: it is shown because papers report it, and nothing is concluded from it. `told apart` is how often the "
        "true label is the most likely one among a training sample's candidates. Differences are paired by seed. "
        "Network, scaling and step sizes are the same for all methods.",
    ]
    if size != "full":
        blocks.append(
            "Shrunk against the paper (100 rounds of 40 steps of 256 on all 60,000 images; `--full`): rounds, steps, "
            "batch and number of the images" + (", and the real sets" if size == "quick" else "") + ". To make up for "
            f"the missing steps all methods alike have a learning rate of {scale.image_lr} on images instead of 0.01, "
            "chosen on another seed; even so some are far from their end, and the figures tell who learns fast as well "
            "as who ends best."
        )
    return blocks


def _comparison(results: Results, data: str, rows: Mapping[str, Row]) -> list[Block]:
    printed = dict(zip(PUBLISHED_NAMES, PUBLISHED.get(data, ()), strict=False))
    alone = results.values(rows[ALONE], ACCURACY)
    lines = []
    for name, row in rows.items():
        last = results.values(row, ACCURACY)
        if not last:
            continue
        lines.append(
            [
                name,
                f"{printed[name]:.2f}" if name in printed else "",
                spread(last),
                spread(results.values(row, ACCURACY, "best")),
                spread(results.values(row, TOLD_APART)),
                "" if name == ALONE else in_words(paired(last, alone)),
            ]
        )
    return [Grid(("method", "published", "last round", "best round", "told apart", "against " + ALONE), lines)]


def _larger(results: Results, data: str) -> list[Block]:
    size = f"{LARGER.image_rounds} rounds of {LARGER.image_steps} steps, {LARGER.image_samples} images"
    return [
        f"Some contestants with {size}, learning rate {LARGER.image_lr}, all else as above.",
        *_comparison(results, data, {name: _larger_row(data, name) for name in ON_LARGER}),
    ]


def _set_size(results: Results, data: str) -> list[Block]:
    sizes = results.values(_image_row(data, OURS), "set_size")
    return [f"Mean size of the candidate sets: {mean(sizes):.2f}."] if sizes else []


def _ablation(results: Results, variants: Mapping[str, Any]) -> Grid:
    whole = results.values(_image_row("MNIST", OURS), ACCURACY)
    lines = [[OURS, spread(whole), ""]]
    for name in variants:
        values = results.values(_image_row("MNIST", name), ACCURACY)
        lines.append([name, spread(values), in_words(paired(values, whole))])
    return Grid(("variant", "last round", f"against {OURS}"), lines)


def _over_rho(results: Results) -> Grid:
    names = (*FEW, LEVERAGED)
    lines = [[n, *(spread(results.values(_image_row("MNIST", n, rho), ACCURACY)) for rho in RHOS)] for n in names]
    sizes = [results.values(_image_row("MNIST", OURS, rho), "set_size") for rho in RHOS]
    lines.append(["mean set size", *(spread(size, 1.0, digits=2) for size in sizes)])
    lines.append(["published set size", "2.99", "3.97", "4.93"])
    return Grid(("rho", *map(str, RHOS)), lines)


def _over_sites(results: Results) -> list[Block]:
    lines, curves = [], []
    for name in FEW:
        values = [results.values(_image_row("MNIST", name, sites=sites), ACCURACY) for sites in MANY]
        lines.append([name, *map(spread, values)])
        if all(values):
            curves.append(Curve(name, MANY, [100 * mean(v) for v in values]))
    return [
        Chart("Accuracy over the number of sites, MNIST", "sites", "accuracy at the sites, %", curves),
        Grid(("sites", *map(str, MANY)), lines),
    ]


def _bars(results: Results, scale: Scale) -> list[Finding]:
    found = []
    rows = {d: {n: (d, n) for n in METHODS} for d in REAL} | {d: _image_rows(d) for d in IMAGES}
    for data, by_name in rows.items():
        figures = {name: results.values(row, ACCURACY) for name, row in by_name.items()}
        seeds = scale.seeds if data in REAL else scale.image_seeds
        ours, plus = figures[OURS], figures[PLUS]
        larger = results.values(_larger_row(data, OURS), ACCURACY)
        if data in PUBLISHED:
            printed = PUBLISHED[data][0]
            which = ", larger runs" if larger else ""
            statement = f"{data}{which}: pFedPLL at or above {printed:.2f}"
            found.append(reaches(statement, larger or ours, printed, seeds))
        gaps = {other: paired(ours, figures[other]) for other in BASELINES}
        found.append(ahead_of_all(f"{data}: pFedPLL ahead of every baseline", gaps, seeds))
        if data in PLUS_BARS:
            bar = PLUS_BARS[data]
            found.append(reaches(f"{data}: pfedpll+ at {bar:.0f} or more", plus, bar, seeds))
            gap = paired(plus, figures[ALONE])
            holds = verdict([gap], seeds, lambda gap: gap.mean >= 3)
            found.append(Finding(f"{data}: pfedpll+ 3 points or more ahead of training alone", holds, in_words(gap)))
        for name in (PLUS, PLUS_LOCAL) if data == "FG-NET" else (PLUS,):  # the one set where validation was for it
            gaps = {other: paired(figures[name], figures[other]) for other in (*BASELINES, "local, CC", ALONE)}
            found.append(ahead_of_all(f"{data}: {name} ahead of every baseline and of training alone", gaps, seeds))
    return found


def _orderings(results: Results, scale: Scale) -> list[Finding]:
    whole = results.values(_image_row("MNIST", OURS), ACCURACY)
    found = []
    for statement, variants in (
        ("The full method is ahead of every ablation of its components", COMPONENTS),
        ("All three loss terms are ahead of any subset", TERMS),
    ):
        gaps = {n: paired(whole, results.values(_image_row("MNIST", n), ACCURACY)) for n in variants}
        words = "; ".join(f"ahead of {name} by {gap}" for name, gap in gaps.items() if gap is not None)
        found.append(Finding(statement, verdict(gaps.values(), scale.image_seeds, is_ahead), words or "–"))
    return found
