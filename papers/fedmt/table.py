"""Mixed-type labels ("FedMT: Federated Learning with Mixed-type Labels", Zhang et al. 2024), and `fedmt+`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from papers.fedmt import published
from papers.fedmt.cells import (
    AT,
    ESTIMATORS,
    FOUND,
    GAMMAS,
    IMAGES,
    KNOWN,
    MAIN,
    ON_TEXTS,
    OVER_ROUNDS,
    PAPER,
    PLUS,
    SCALES,
    SITES,
    SIZES,
    SKEWED,
    STUDIED,
    TEXTS,
    THRESHOLDS,
    WEIGHTS,
    WITHOUT_LAYER,
    Scale,
    cells,
    image_row,
    text_row,
)
from papers.fedmt.findings import findings, matrix_error_by_round
from papers.harness.cells import Results, Row, Size
from papers.harness.claims import load_ledger
from papers.harness.ledger import claims_chapter
from papers.harness.pages import Block, Chapter, Chart, Curve, Grid, findings_grid
from papers.harness.statistics import in_words, mean, paired, spread

__all__ = ["TITLE", "cells", "chapters"]
TITLE = "Mixed-type labels: FedMT"
OWN_NAMES, ERROR, CONFIDENT = "sites.mean.accuracy", "sites.mean.matrix_error", "sites.mean.confident"
RowOf = Callable[..., Row]


def chapters(results: Results, size: Size) -> list[Chapter]:
    """Return the page."""
    scale = SCALES[size]
    labels = scale.labels
    parts = [
        Chapter("What was run", _what_was_run(scale, size)),
        claims_chapter(load_ledger(Path(__file__).with_name("claims.toml")), results, cells(size)),
        Chapter("Criteria", [findings_grid(findings(results, scale))]),
        Chapter(f"{TEXTS} over labels at the server", _over_labels(results, labels)),
        Chapter(f"{TEXTS} without the hidden layer", _linear(results, labels)),
    ]
    if scale.studies:
        parts += [
            Chapter("Skewed splits, and four estimators of the matrix", _over_gamma(results)),
            Chapter("The error of the matrix", _errors(results)),
            Chapter("Sites, thresholds and the weight of pseudo-labels", _studies(results, scale)),
        ]
    return [*parts, Chapter(f"{IMAGES} over labels at the server", _over_image_labels(results, scale))]


def _what_was_run(scale: Scale, size: Size) -> list[Block]:
    model = scale.image_model["name"]
    seeds = ", ".join(f"{count} at n = {labels}" for labels, count in sorted(scale.image_labels.items()))
    own = ON_TEXTS.of(FOUND, scale.rounds, AT)
    smaller = (
        "The images are run with the paper's settings as far as known, but the sites share "
        f"{scale.image_samples} images (40,000 in the paper), and all methods start from random weights."
        if size == "full"
        else "Smaller than in the paper (`--full`: ResNet-18, 200 rounds of 5 epochs): network, rounds and number of "
        f"the images. {model} has a 3x3 stem of stride 2, residual blocks of {_widths(scale)} channels and "
        f"{scale.image_model.get('norm', 'group')} norm. All methods start from random weights."
    )
    return [
        f"{TEXTS}: 150 intents in 10 domains, hashed into 1,024 features, an MLP with one hidden layer of 128. The "
        f"server has n texts of each intent; unless stated otherwise 10 sites have 750 texts each, labelled by domain; "
        f"{scale.rounds} rounds, {scale.seeds} seeds ({scale.few} in studies of sites, thresholds and weights). "
        "Not run: gamma 0.1, which is in the paper, and FedRep and FedTrans on skewed splits.",
        f"{IMAGES}: our 12,500 training and 5,000 test images, 100 classes in 20 groups; 10 sites share "
        f"{scale.image_samples} images{_asked(scale)}, {scale.image_rounds} rounds, `{model}`; seeds: {seeds}.",
        "Figures are the accuracy in the fine classes on the published test texts, or on our test images, of the model "
        "of the last round, in percent: mean ± standard deviation over seeds. Differences are paired by seed. `E`: "
        "every site estimates the matrix from its own counts; `T`: the true matrix. `fedmt+` is ours: EM on the counts "
        "of all sites, and pseudo-labels conditioned on the coarse label. SemiFL here averages batch-norm statistics "
        "instead of recomputing them at the sites in each round, and FedRep's server has half of the weight in the "
        "mean instead of counting as one more site.",
        f"On texts {KNOWN} and {FOUND} learn from the coarse labels of {own['project_on']} samples (`project_on`) with "
        f"a threshold of {own['threshold']:g}, `lambda2 = {own['lambda2']:g}` and a warm-up of {own['warmup']} steps. "
        "As published they learn from confident samples only, with 0.95, 1/16 and no warm-up; the last line of the "
        "last study shows this.",
        "Settings for texts were chosen on CLINC150's validation part, on a seed that is not in the table; "
        "docs/mixed-types.md lists the settings tried for each method.",
        *_choice_of_images(scale, size),
        smaller,
    ]


def _asked(scale: Scale) -> str:
    asked = scale.on_images.common.get("participation")
    return "" if asked is None else f", {asked} of them train in each round"


def _choice_of_images(scale: Scale, size: Size) -> list[Block]:
    if size == "full":
        return []
    given = scale.on_images.of(FOUND, scale.image_rounds, 25)
    return [
        "Settings for images were chosen on held-out training images, n = 25, on a seed that is not in the table "
        f"(docs/mixed-types.md lists the settings tried); {KNOWN} and {PLUS} have the settings of {FOUND} "
        f"({given['project_on']} coarse labels, threshold {given['threshold']:g}, `lambda2 = {given['lambda2']:g}`, "
        f"{given['epochs']} epochs at each site). All take {given['server_epochs'] * given['rounds']} epochs over the "
        "server's images in total, and three times as many at n = 5.",
    ]


def _widths(scale: Scale) -> str:
    *first, last = (str(width) for width in scale.image_model["widths"])
    return f"{', '.join(first)} and {last}"


def _over_labels(results: Results, labels: Sequence[int]) -> list[Block]:
    names = [name for name in MAIN if any(results.values(text_row(name, n)) for n in labels)]
    curves = [
        Curve(name, shown, [100 * mean(results.values(text_row(name, n))) for n in shown])
        for name in names
        if (shown := [n for n in labels if results.values(text_row(name, n))])
    ]
    columns = {f"n = {n}": {"labels": n} for n in labels}
    coarse = [name for name in names if name not in ("Single", "SemiFL")]
    return [
        Chart("Accuracy over labelled texts per intent at the server", "n", "test accuracy, %", curves),
        _grid("method", results, names, columns),
        f"Difference to {FOUND}, paired by seed:",
        _against("method", results, [name for name in names if name != FOUND], columns),
        "Accuracy of the sites in their 10 coarse classes:",
        _grid("method", results, coarse, columns, OWN_NAMES),
    ]


def _linear(results: Results, labels: Sequence[int]) -> list[Block]:
    columns = {f"n = {n}": {"labels": n, "linear": True} for n in labels}
    return [
        "With few labels a linear model learns these texts better than the MLP, so it is the stronger control. It has "
        "no encoder to share: FedTrans and FedRep would equal Single.",
        _grid("method", results, WITHOUT_LAYER, columns),
        f"Difference to {FOUND}, also linear, paired by seed:",
        _against("method", results, [name for name in WITHOUT_LAYER if name != FOUND], columns),
    ]


def _over_gamma(results: Results) -> list[Block]:
    columns: dict[str, dict[str, Any]] = {"even": {}} | {f"gamma {gamma}": {"gamma": gamma} for gamma in GAMMAS}
    printed = [[name, *(f"{value:.2f}" for value in values)] for name, values in published.BY_ESTIMATOR.items()]
    return [
        f"n = {AT}. Accuracy:",
        _grid("method", results, SKEWED, columns),
        f"Difference to {FOUND}, paired by seed:",
        _against("method", results, [name for name in SKEWED if name != FOUND], columns),
        "Distance of the estimated matrix from the true one in the last round, mean over sites:",
        _grid("method", results, [*ESTIMATORS, PLUS], columns, ERROR, scale=1.0),
        "Published, CIFAR-100, n = 25:",
        Grid(("method", *columns), printed),
    ]


def _errors(results: Results) -> list[Block]:
    curves = []
    for name in OVER_ROUNDS:
        by_round = matrix_error_by_round(results, text_row(name))
        if by_round:
            curves.append(Curve(name, [*by_round], [*by_round.values()]))
    columns = {f"{size} texts per site": {"size": size} for size in SIZES}
    return [
        Chart("Distance of the estimated matrix from the true one", "round", "Frobenius norm, mean over sites", curves),
        _grid("method", results, (FOUND, PLUS), columns, ERROR, scale=1.0),
        "Accuracy:",
        _grid("method", results, (FOUND, PLUS), columns),
    ]


def _studies(results: Results, scale: Scale) -> list[Block]:
    results = results.of_seeds(range(scale.few))  # rows with default values ran on more seeds
    sites = {f"{sites} sites": {"sites": sites, "size": 7500 // sites} for sites in SITES}
    thresholds = {str(threshold): {"threshold": threshold} for threshold in THRESHOLDS}
    weights = {str(weight): {"weight": weight} for weight in WEIGHTS}
    paper = text_row(PAPER)
    return [
        f"7,500 texts split over the sites, n = {AT}:",
        _grid("method", results, STUDIED, sites),
        "Published, CIFAR-100, 40,000 images, n = 25: from 10 to 80 sites SemiFL falls from 55.98 to 26.10, and "
        "FedMT (E) loses 35.59 % of its 66.01.",
        "Confidence threshold:",
        _grid("threshold", results, ("SemiFL", FOUND), thresholds),
        "Share of confident samples, last round:",
        _grid("threshold", results, ("SemiFL", FOUND), thresholds, CONFIDENT),
        _published("Published, CIFAR-100, n = 25", published.BY_THRESHOLD, thresholds),
        "Published at 0.8: SemiFL 58.71, FedMT (E) 61.00.",
        "Weight of pseudo-labels (`lambda2`):",
        _grid("lambda2", results, (KNOWN, FOUND), weights),
        _published("Published, CIFAR-100, n = 25", published.BY_WEIGHT, weights),
        "Published at 1/2, 1/8 and 1/32: FedMT (T) 60.82, 66.28, 66.28; FedMT (E) 56.87, 63.89, 65.06.",
        f"{PAPER}: {spread(results.values(paper))}, with {spread(results.values(paper, CONFIDENT))} % of the samples "
        "confident in the last round.",
    ]


def _over_image_labels(results: Results, scale: Scale) -> list[Block]:
    labels = sorted(scale.image_labels)
    columns = {f"n = {n}": {"labels": n} for n in labels}
    names = scale.image_methods
    shown = [[name, *(f"{published.MAIN[name][n]:.2f}" for n in labels)] for name in names if name in published.MAIN]
    return [
        _grid("method", results, names, columns, row=image_row),
        f"Difference to {FOUND}, paired by seed:",
        _against("method", results, [name for name in names if name != FOUND], columns, row=image_row),
        "Published (ResNet-18, 200 rounds, 42,500 images; Single, FedTrans and FedRep started from ImageNet weights):",
        Grid(("method", *columns), shown),
        *_published_from_random(labels),
    ]


def _published_from_random(labels: Sequence[int]) -> list[Block]:
    if labels != [5, 10, 25]:
        return []
    return [
        "Published, from random weights as here (the appendix; the paper's tables swap the names FedRep and FedTrans, "
        "and it is not known which is right):",
        Grid(("method", *(f"n = {n}" for n in labels)), [*published.FROM_RANDOM]),
    ]


def _grid(
    corner: str,
    results: Results,
    names: Iterable[str],
    columns: Mapping[str, Mapping[str, Any]],
    figure: str = "global.accuracy",
    scale: float = 100.0,
    row: RowOf = text_row,
) -> Grid:
    """Return a figure of methods, one column per setting."""
    lines = [[n, *(spread(results.values(row(n, **at), figure), scale) for at in columns.values())] for n in names]
    return Grid((corner, *columns), lines)


def _against(
    corner: str,
    results: Results,
    names: Iterable[str],
    columns: Mapping[str, Mapping[str, Any]],
    row: RowOf = text_row,
) -> Grid:
    """Return the paired differences of methods to FedMT (E), one column per setting."""

    def gap(name: str, at: Mapping[str, Any]) -> str:
        return in_words(paired(results.values(row(name, **at)), results.values(row(FOUND, **at))))

    return Grid((corner, *columns), [[name, *(gap(name, at) for at in columns.values())] for name in names])


def _published(title: str, printed: Mapping[str, Mapping[float, float]], columns: Iterable[str]) -> Grid:
    heads = [*columns]
    lines = []
    for name, values in printed.items():
        by_head = {str(key): f"{value:.2f}" for key, value in values.items()}
        lines.append([name, *(by_head.get(head, "–") for head in heads)])
    return Grid((title, *heads), lines)
