"""Candidate labels: pFedPLL, its ablations and baselines, further controls, and `pfedpll+`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedaccord.evaluation.judge import judge_at_least, judge_better
from papers.harness.bars import ahead_of_all, judged_finding, reaches
from papers.harness.cells import Results, Row, Size
from papers.harness.claims import load_ledger
from papers.harness.ledger import claims_chapter
from papers.harness.pages import Block, Chapter, Chart, Curve, Finding, Grid, findings_grid
from papers.harness.statistics import differences, in_words, mean, paired, spread
from papers.pfedpll.cells import (
    ALONE,
    BASELINES,
    COMPONENTS,
    FEW,
    IMAGES,
    LARGER,
    LEVERAGED,
    MANY,
    METHODS,
    ON_IMAGES,
    ON_LARGER,
    OURS,
    PLUS,
    PLUS_LOCAL,
    REAL,
    RHOS,
    SCALES,
    TERMS,
    Scale,
    cells,
    image_row,
    larger_row,
)
from papers.pfedpll.published import PUBLISHED, PUBLISHED_NAMES

__all__ = ["TITLE", "cells", "chapters"]

TITLE = "Partial labels: pFedPLL"
ACCURACY, DISAMBIGUATION = "sites.mean.accuracy", "sites.mean.disambiguation"
PLUS_BARS = {"Lost": 68.0, "MSRCv2": 50.0}


def chapters(results: Results, size: Size) -> list[Chapter]:
    """Return the page."""
    scale = SCALES[size]
    parts = [
        Chapter("What was run", _what_was_run(scale, size)),
        claims_chapter(load_ledger(Path(__file__).with_name("claims.toml")), results, cells(size)),
        Chapter("Criteria", [findings_grid(_bars(results, scale))]),
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
    return {name: image_row(data, name) for name in ON_IMAGES}


def _what_was_run(scale: Scale, size: Size) -> list[Block]:
    blocks: list[Block] = [
        f"Real candidate sets: 4 sites, Dirichlet 0.5, {scale.rounds} rounds of {scale.steps} steps of 32, SGD with "
        "momentum 0.9 and learning rate 0.01, an MLP with one hidden layer of 128 on features standardised by the "
        f"moments of all sites, {scale.seeds} seeds. The server holds 100 unlabelled inputs for the KL score; "
        "they are removed from the data for every method.",
        f"Images: {scale.image_samples} training images, candidate sets from a clean network (rho 0.4 unless stated "
        f"otherwise), LeNet-5, {scale.image_rounds} rounds of {scale.image_steps} steps of {scale.image_batch}, "
        f"learning rate {scale.image_lr}, {scale.image_seeds} seeds; with 20 sites or more a round is one epoch.",
        "Figures are the accuracy of each site's model on the 20 % that the site holds out, averaged over sites, in "
        "percent, last round: mean ± standard deviation over seeds. `best round` is the best evaluated round, chosen "
        "on the same test data: it is shown because papers report it, and no conclusion is drawn from it. "
        "`disambiguation` is how often the true label is the most likely one among a training sample's candidates. "
        "Differences are paired by seed. Network, scaling and step sizes are the same for all methods.",
    ]
    if size != "full":
        blocks.append(
            "Smaller than in the paper (100 rounds of 40 steps of 256 on all 60,000 images; `--full`): rounds, steps, "
            "batch and number of the images" + (", and the real sets" if size == "quick" else "") + ". To compensate "
            f"for fewer steps, all methods have a learning rate of {scale.image_lr} on images instead of 0.01, "
            "chosen on another seed. Even so, some have not converged, and the figures reflect speed as well as final "
            "accuracy."
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
                spread(results.values(row, DISAMBIGUATION)),
                "" if name == ALONE else in_words(paired(last, alone)),
            ]
        )
    return [
        Grid(("method", "published", "last round", "best round", "disambiguation", "difference to " + ALONE), lines)
    ]


def _larger(results: Results, data: str) -> list[Block]:
    size = f"{LARGER.image_rounds} rounds of {LARGER.image_steps} steps, {LARGER.image_samples} images"
    return [
        f"Some methods with {size}, learning rate {LARGER.image_lr}, everything else as above.",
        *_comparison(results, data, {name: larger_row(data, name) for name in ON_LARGER}),
    ]


def _set_size(results: Results, data: str) -> list[Block]:
    sizes = results.values(image_row(data, OURS), "set_size")
    return [f"Mean size of the candidate sets: {mean(sizes):.2f}."] if sizes else []


def _ablation(results: Results, variants: Mapping[str, Any]) -> Grid:
    whole = results.values(image_row("MNIST", OURS), ACCURACY)
    lines = [[OURS, spread(whole), ""]]
    for name in variants:
        values = results.values(image_row("MNIST", name), ACCURACY)
        lines.append([name, spread(values), in_words(paired(values, whole))])
    return Grid(("variant", "last round", f"difference to {OURS}"), lines)


def _over_rho(results: Results) -> Grid:
    names = (*FEW, LEVERAGED)
    lines = [[n, *(spread(results.values(image_row("MNIST", n, rho), ACCURACY)) for rho in RHOS)] for n in names]
    sizes = [results.values(image_row("MNIST", OURS, rho), "set_size") for rho in RHOS]
    lines.append(["mean set size", *(spread(size, 1.0, digits=2) for size in sizes)])
    lines.append(["published set size", "2.99", "3.97", "4.93"])
    return Grid(("rho", *map(str, RHOS)), lines)


def _over_sites(results: Results) -> list[Block]:
    lines, curves = [], []
    for name in FEW:
        values = [results.values(image_row("MNIST", name, sites=sites), ACCURACY) for sites in MANY]
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
        larger = results.values(larger_row(data, OURS), ACCURACY)
        if data in PUBLISHED:
            printed = PUBLISHED[data][0]
            which = ", larger runs" if larger else ""
            statement = f"{data}{which}: pFedPLL reaches at least {printed:.2f}"
            found.append(reaches(statement, larger or ours, printed, seeds))
        rivals = {other: figures[other] for other in BASELINES}
        found.append(ahead_of_all(f"{data}: pFedPLL is better than every baseline", ours, rivals, seeds))
        if data in PLUS_BARS:
            bar = PLUS_BARS[data]
            found.append(reaches(f"{data}: pfedpll+ reaches at least {bar:.0f}", plus, bar, seeds))
            statement = f"{data}: pfedpll+ is at least 3 points better than local training"
            judged = {"": judge_at_least(differences(plus, figures[ALONE]), 3)}
            found.append(judged_finding(statement, judged, seeds))
        for name in (
            (PLUS, PLUS_LOCAL) if data == "FG-NET" else (PLUS,)
        ):  # the only set where validation favoured a local head
            rivals = {other: figures[other] for other in (*BASELINES, "local, CC", ALONE)}
            statement = f"{data}: {name} is better than every baseline and local training"
            found.append(ahead_of_all(statement, figures[name], rivals, seeds))
    return found


def _orderings(results: Results, scale: Scale) -> list[Finding]:
    whole = results.values(image_row("MNIST", OURS), ACCURACY)
    found = []
    for statement, variants in (
        ("The full method is better than every ablation of its components", COMPONENTS),
        ("All three loss terms are better than any subset", TERMS),
    ):
        rivals = {name: results.values(image_row("MNIST", name), ACCURACY) for name in variants}
        judged = {name: judge_better(differences(whole, values)) for name, values in rivals.items()}
        found.append(judged_finding(statement, judged, scale.image_seeds))
    return found
