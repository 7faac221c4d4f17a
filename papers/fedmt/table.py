"""Mixed-type labels ("FedMT: Federated Learning with Mixed-type Labels", Zhang et al. 2024), and `fedmt+`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from papers.fedmt.cells import (
    AT,
    BASELINES,
    CONTROLS,
    ESTIMATORS,
    FOUND,
    GAMMAS,
    IMAGES,
    KNOWN,
    LEARNED,
    LEARNED_AVERAGED,
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
from papers.harness.bars import ahead_of_all, is_ahead, verdict
from papers.harness.cells import Results, Row, Size, look_up
from papers.harness.pages import Block, Chapter, Chart, Curve, Finding, Grid, findings_grid
from papers.harness.statistics import in_words, mean, paired, spread

__all__ = ["TITLE", "cells", "chapters"]

TITLE = "Mixed-type labels: FedMT"
OWN_NAMES, ERROR, CONFIDENT = "sites.mean.accuracy", "sites.mean.matrix_error", "sites.mean.confident"
RowOf = Callable[..., Row]

# As published for CIFAR-100. The paper's tables exchange the names of FedTrans and FedRep; these are of its table 2.
PUBLISHED: dict[str, dict[int, float]] = {
    "Single": {5: 15.80, 10: 20.38, 25: 29.57},
    "FedTrans": {5: 39.45, 10: 42.97, 25: 47.37},
    "FedRep": {5: 43.43, 10: 48.70, 25: 54.83},
    "SemiFL": {5: 27.93, 10: 40.80, 25: 55.98},
    KNOWN: {5: 57.12, 10: 61.57, 25: 66.70},
    FOUND: {5: 46.41, 10: 57.11, 25: 66.01},
}
PUBLISHED_FROM_RANDOM = (  # the paper's appendix, as named there: its table 2 has these two names the other way round
    ["Single", "8.56", "12.29", "17.73"],
    ["FedRep", "16.89", "21.90", "26.53"],
    ["FedTrans", "21.31", "24.53", "28.16"],
)
PUBLISHED_ESTIMATORS = {  # evenly spread, gamma 0.9 and 0.99; n = 25
    FOUND: (66.01, 58.64, 41.09),
    ESTIMATORS[1]: (63.14, 48.33, 33.92),
    LEARNED: (56.51, 49.49, 36.55),
    LEARNED_AVERAGED: (56.03, 49.45, 37.09),
}
PUBLISHED_THRESHOLDS = {"SemiFL": {0.7: 58.48, 0.9: 56.00, 0.95: 55.13}, FOUND: {0.7: 61.39, 0.9: 59.71, 0.95: 56.76}}
PUBLISHED_WEIGHTS = {
    KNOWN: {1.0: 58.63, 0.25: 64.02, 0.0625: 66.90, 0.015625: 66.29},
    FOUND: {1.0: 56.76, 0.25: 60.18, 0.0625: 65.93, 0.015625: 64.76},
}


def chapters(results: Results, size: Size) -> list[Chapter]:
    """Return the page."""
    scale = SCALES[size]
    labels = scale.labels
    parts = [
        Chapter("What was run", _what_was_run(scale, size)),
        Chapter("Bars", [findings_grid([*_order(results, scale), *_beyond(results, scale), *_matrix(results, scale)])]),
        Chapter(f"{TEXTS} over labels at the server", _over_labels(results, labels)),
        Chapter(f"{TEXTS} without the hidden layer", _linear(results, labels)),
    ]
    if scale.studies:
        parts += [
            Chapter("Texts spread unevenly, and four ways to the matrix", _over_gamma(results)),
            Chapter("The error of the matrix", _errors(results)),
            Chapter("Sites, thresholds and the weight of pseudo-labels", _studies(results, scale)),
        ]
    return [*parts, Chapter(f"{IMAGES} over labels at the server", _over_image_labels(results, scale))]


def _what_was_run(scale: Scale, size: Size) -> list[Block]:
    model = scale.image_model["name"]
    seeds = ", ".join(f"{count} at n = {labels}" for labels, count in sorted(scale.image_labels.items()))
    own = ON_TEXTS.of(FOUND, scale.rounds, AT)
    shrunk = (
        "The images are run with the paper's settings, as far as they are known, but sites share "
        f"{scale.image_samples} images (40,000 in the paper), and all methods begin with random weights."
        if size == "full"
        else "Shrunk against the paper (`--full`: ResNet-18, 200 rounds of 5 epochs): network, rounds and number of "
        f"the images. {model} has a 3x3 stem of stride 2, residual blocks of {_widths(scale)} channels and "
        f"{scale.image_model.get('norm', 'group')} norm. All methods begin with random weights."
    )
    return [
        f"{TEXTS}: 150 intents in 10 domains, hashed into 1,024 features, an MLP with one hidden layer of 128. The "
        f"server has n texts of each intent, 10 sites have 750 texts each, labelled by domain, unless said; "
        f"{scale.rounds} rounds, {scale.seeds} seeds ({scale.few} where numbers of sites, thresholds or weights vary). "
        "Not run: gamma 0.1, which the paper has too, and FedRep and FedTrans on texts spread unevenly.",
        f"{IMAGES}: our 12,500 training and 5,000 test images, 100 classes in 20 groups; 10 sites share "
        f"{scale.image_samples} images{_asked(scale)}, {scale.image_rounds} rounds, `{model}`; seeds: {seeds}.",
        "Figures are the accuracy in the fine classes on the published test texts, or our test images, of the model of "
        "the last round, in percent: mean ± standard deviation over seeds. Differences are paired by seed. `E` stands "
        "for a matrix that every site counts for itself, `T` for the true one; `fedmt+` is ours: EM on counts of all "
        "sites, and pseudo-labels given the coarse label. SemiFL here averages batch-norm statistics instead of having "
        "the sites compute them anew in each round, and FedRep's server is half of the mean, not one more site in it.",
        f"On texts {KNOWN} and {FOUND} learn from the coarse labels of {own['project_on']} samples (`project_on`) with "
        f"a threshold of {own['threshold']:g}, `lambda2 = {own['lambda2']:g}` and a warm-up of {own['warmup']} steps. "
        "As published they would learn from confident samples only, with 0.95, 1/16 and no warm-up: a line of the "
        "last study has that.",
        "Settings of the texts were chosen on CLINC150's validation part, on a seed that is not in the table; "
        "docs/mixed-types.md lists what was tried for which method.",
        *_choice_of_images(scale, size),
        shrunk,
    ]


def _asked(scale: Scale) -> str:
    asked = scale.on_images.common.get("participation")
    return "" if asked is None else f", {asked} of which are asked in each round"


def _choice_of_images(scale: Scale, size: Size) -> list[Block]:
    if size == "full":
        return []
    given = scale.on_images.of(FOUND, scale.image_rounds, 25)
    return [
        "Settings of the images were chosen on training images that were held out, n = 25, on a seed that is not in "
        f"the table (docs/mixed-types.md lists what was tried); {KNOWN} and {PLUS} are given what {FOUND} has "
        f"({given['project_on']} coarse labels, threshold {given['threshold']:g}, `lambda2 = {given['lambda2']:g}`, "
        f"{given['epochs']} passes at each site). All take {given['server_epochs'] * given['rounds']} passes over the "
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
        Chart("Accuracy over labelled texts of each intent at the server", "n", "test accuracy, %", curves),
        _grid("method", results, names, columns),
        f"Against {FOUND}, by seed:",
        _against("method", results, [name for name in names if name != FOUND], columns),
        "Accuracy of the sites in their own 10 names:",
        _grid("method", results, coarse, columns, OWN_NAMES),
    ]


def _linear(results: Results, labels: Sequence[int]) -> list[Block]:
    columns = {f"n = {n}": {"labels": n, "linear": True} for n in labels}
    return [
        "With few labels a linear model learns these texts better than the MLP, so it is the harder control. It has no "
        "encoder to share: FedTrans and FedRep would be Single.",
        _grid("method", results, WITHOUT_LAYER, columns),
        f"Against {FOUND}, linear too, by seed:",
        _against("method", results, [name for name in WITHOUT_LAYER if name != FOUND], columns),
    ]


def _over_gamma(results: Results) -> list[Block]:
    columns: dict[str, dict[str, Any]] = {"evenly": {}} | {f"gamma {gamma}": {"gamma": gamma} for gamma in GAMMAS}
    published = [[name, *(f"{value:.2f}" for value in printed)] for name, printed in PUBLISHED_ESTIMATORS.items()]
    return [
        f"n = {AT}. Accuracy:",
        _grid("method", results, SKEWED, columns),
        f"Against {FOUND}, by seed:",
        _against("method", results, [name for name in SKEWED if name != FOUND], columns),
        "Distance of the matrix from the true one in the last round, mean over sites:",
        _grid("method", results, [*ESTIMATORS, PLUS], columns, ERROR, scale=1.0),
        "Published, CIFAR-100, n = 25:",
        Grid(("method", *columns), published),
    ]


def _errors(results: Results) -> list[Block]:
    curves = []
    for name in OVER_ROUNDS:
        by_round = _curve(results, text_row(name))
        if by_round:
            curves.append(Curve(name, [*by_round], [*by_round.values()]))
    columns = {f"{size} texts at each site": {"size": size} for size in SIZES}
    return [
        Chart("Distance of the matrix from the true one", "round", "Frobenius norm, mean over sites", curves),
        _grid("method", results, (FOUND, PLUS), columns, ERROR, scale=1.0),
        "Accuracy:",
        _grid("method", results, (FOUND, PLUS), columns),
    ]


def _studies(results: Results, scale: Scale) -> list[Block]:
    results = results.of_seeds(range(scale.few))  # what has its usual value has run on more
    sites = {f"{sites} sites": {"sites": sites, "size": 7500 // sites} for sites in SITES}
    thresholds = {str(threshold): {"threshold": threshold} for threshold in THRESHOLDS}
    weights = {str(weight): {"weight": weight} for weight in WEIGHTS}
    paper = text_row(PAPER)
    return [
        f"7,500 texts over so many sites, n = {AT}:",
        _grid("method", results, STUDIED, sites),
        "Published, CIFAR-100, 40,000 images, n = 25: from 10 to 80 sites SemiFL falls from 55.98 to 26.10, and "
        "FedMT (E) loses 35.59 % of its 66.01.",
        "The threshold above which a sample is confident:",
        _grid("threshold", results, ("SemiFL", FOUND), thresholds),
        "Share of confident samples, last round:",
        _grid("threshold", results, ("SemiFL", FOUND), thresholds, CONFIDENT),
        _published("Published, CIFAR-100, n = 25", PUBLISHED_THRESHOLDS, thresholds),
        "Published at 0.8: SemiFL 58.71, FedMT (E) 61.00.",
        "The weight of pseudo-labels (`lambda2`):",
        _grid("lambda2", results, (KNOWN, FOUND), weights),
        _published("Published, CIFAR-100, n = 25", PUBLISHED_WEIGHTS, weights),
        "Published at 1/2, 1/8 and 1/32: FedMT (T) 60.82, 66.28, 66.28; FedMT (E) 56.87, 63.89, 65.06.",
        f"{PAPER}: {spread(results.values(paper))}, with {spread(results.values(paper, CONFIDENT))} % of the samples "
        "confident in the last round.",
    ]


def _over_image_labels(results: Results, scale: Scale) -> list[Block]:
    labels = sorted(scale.image_labels)
    columns = {f"n = {n}": {"labels": n} for n in labels}
    names = scale.image_methods
    published = {name: {str(n): value for n, value in printed.items()} for name, printed in PUBLISHED.items()}
    shown = [[name, *(f"{published[name][str(n)]:.2f}" for n in labels)] for name in names if name in published]
    return [
        _grid("method", results, names, columns, row=image_row),
        f"Against {FOUND}, by seed:",
        _against("method", results, [name for name in names if name != FOUND], columns, row=image_row),
        "Published (ResNet-18, 200 rounds, 42,500 images; Single, FedTrans and FedRep began with ImageNet weights):",
        Grid(("method", *columns), shown),
        *_published_from_random(labels),
    ]


def _published_from_random(labels: Sequence[int]) -> list[Block]:
    if labels != [5, 10, 25]:
        return []
    return [
        "Published, beginning with random weights as all methods here do (the appendix; between its tables the paper "
        "exchanges the names of FedRep and FedTrans, and which is which is not known):",
        Grid(("method", *(f"n = {n}" for n in labels)), [*PUBLISHED_FROM_RANDOM]),
    ]


def _order(results: Results, scale: Scale) -> list[Finding]:
    """T >= E > every baseline, for each number of labels."""
    found = []
    places: list[tuple[str, Callable[[str], Row], Sequence[str], int]] = [
        *((f"{TEXTS}, n = {n}", partial(text_row, labels=n), BASELINES, scale.seeds) for n in scale.labels),
        *(
            (f"{TEXTS}, linear, n = {n}", partial(text_row, labels=n, linear=True), ("SemiFL", "Single"), scale.seeds)
            for n in scale.labels
        ),
        (f"{IMAGES}, n = 25", partial(image_row, labels=25), BASELINES, scale.image_labels[25]),
    ]
    for where, row, baselines, seeds in places:
        ours = results.values(row(FOUND))
        true = paired(results.values(row(KNOWN)), ours)
        not_behind = verdict([true], seeds, lambda gap: gap.mean >= 0)
        found.append(Finding(f"{where}: {KNOWN} is not behind {FOUND}", not_behind, in_words(true)))
        gaps = {name: paired(ours, results.values(row(name))) for name in baselines}
        words = "; ".join(f"{name} {in_words(gap)}" for name, gap in gaps.items())
        ahead = verdict(gaps.values(), seeds, is_ahead)
        found.append(Finding(f"{where}: {FOUND} is ahead of every baseline", ahead, words))
    return found


def _beyond(results: Results, scale: Scale) -> list[Finding]:
    """What fedmt+ adds, and the controls beside it."""
    gap = paired(results.values(text_row(PLUS)), results.values(text_row(FOUND)))
    enough = verdict([gap], scale.seeds, lambda gap: gap.mean >= 2)
    found = [Finding(f"{TEXTS}, n = {AT}: {PLUS} is at least 2 points ahead of {FOUND}", enough, in_words(gap))]
    ahead = partial(ahead_of_all, seeds=scale.seeds)
    for n in scale.labels:
        of = partial(text_row, labels=n, linear=True)
        gaps = {name: paired(results.values(of(PLUS)), results.values(of(name))) for name in ("Single", FOUND, KNOWN)}
        found.append(ahead(f"{TEXTS}, linear, n = {n}: {PLUS} is ahead of Single, {FOUND} and {KNOWN}", gaps))
        rivals = (KNOWN, *CONTROLS[:2], *BASELINES)
        gaps = {name: paired(results.values(text_row(PLUS, n)), results.values(text_row(name, n))) for name in rivals}
        found.append(ahead(f"{TEXTS}, n = {n}: {PLUS} is ahead of {KNOWN}, likelihood alone and baselines", gaps))
    if scale.studies:
        for gamma in GAMMAS:
            row = partial(text_row, gamma=gamma)
            others = (FOUND, *CONTROLS[:2], "SemiFL")
            gaps = {name: paired(results.values(row(PLUS)), results.values(row(name))) for name in others}
            found.append(ahead(f"{TEXTS}, gamma {gamma}: {PLUS} is ahead of {FOUND}, likelihood and SemiFL", gaps))
    return found


def _matrix(results: Results, scale: Scale) -> list[Finding]:
    by_round = _curve(results, text_row(FOUND))
    ends = list(by_round.values())
    by_size = {size: results.values(text_row(FOUND, size=size), ERROR) for size in SIZES}
    errors = {size: mean(values) for size, values in by_size.items() if values}
    all_sizes = all(len(values) >= scale.seeds for values in by_size.values())
    spread_as = {"evenly": 0.0} | ({f"by gamma {gamma}": gamma for gamma in GAMMAS} if scale.studies else {})
    return [
        Finding(
            "The error of the estimated matrix falls over the rounds",
            ends[-1] < ends[0] if len(ends) > 1 and results.ran([text_row(FOUND)], scale.seeds) else None,
            f"{ends[0]:.2f} in round {min(by_round)}, {ends[-1]:.2f} in round {max(by_round)}" if ends else "–",
        ),
        Finding(
            "It is lower with more samples at each site",
            all(a > b for a, b in pairwise(errors.values())) if all_sizes else None,
            ", ".join(f"{size} texts: {error:.2f}" for size, error in errors.items()) or "–",
        ),
        *(_ahead_of_learned(results, how, gamma, scale.seeds) for how, gamma in spread_as.items()),
    ]


def _ahead_of_learned(results: Results, how: str, gamma: float, seeds: int) -> Finding:
    ours = results.values(text_row(FOUND, gamma=gamma))
    gaps = {name: paired(ours, results.values(text_row(name, gamma=gamma))) for name in (LEARNED, LEARNED_AVERAGED)}
    return ahead_of_all(f"{FOUND} is ahead of the learnable matrix, texts spread {how}", gaps, seeds)


def _curve(results: Results, row: Row) -> dict[int, float]:
    """Return the error of the matrix by round, the mean over seeds."""
    found: dict[int, dict[int, float]] = {}
    for seed, result in results.cells.get(row, {}).items():
        for at in result.get("curve", ()):
            value = look_up(at, "sites.matrix_error")
            if value is not None:
                found.setdefault(at["round"], {})[seed] = value
    return {at: mean(values) for at, values in sorted(found.items())}


def _grid(
    corner: str,
    results: Results,
    names: Iterable[str],
    columns: Mapping[str, Mapping[str, Any]],
    figure: str = "global.accuracy",
    scale: float = 100.0,
    row: RowOf = text_row,
) -> Grid:
    """Return a figure of some contestants in some settings."""
    lines = [[n, *(spread(results.values(row(n, **at), figure), scale) for at in columns.values())] for n in names]
    return Grid((corner, *columns), lines)


def _against(
    corner: str,
    results: Results,
    names: Iterable[str],
    columns: Mapping[str, Mapping[str, Any]],
    row: RowOf = text_row,
) -> Grid:
    """Return paired differences of some contestants from FedMT (E)."""

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
