"""The criteria of the table: the order of the methods, the gains of `fedmt+`, and the estimated matrix."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

from papers.fedmt.cells import (
    AT,
    BASELINES,
    CONTROLS,
    FOUND,
    GAMMAS,
    IMAGES,
    KNOWN,
    LEARNED,
    LEARNED_AVERAGED,
    PLUS,
    SIZES,
    TEXTS,
    Scale,
    image_row,
    text_row,
)
from papers.harness.bars import ahead_of_all, is_ahead, verdict
from papers.harness.cells import Results, Row, look_up
from papers.harness.pages import Finding
from papers.harness.statistics import in_words, mean, paired

ERROR = "sites.mean.matrix_error"


def findings(results: Results, scale: Scale) -> list[Finding]:
    """Judge every criterion."""
    return [*_order(results, scale), *_beyond(results, scale), *_matrix(results, scale)]


def _order(results: Results, scale: Scale) -> list[Finding]:
    """Judge the published order: T >= E > every baseline, for each number of labels."""
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
        not_worse = verdict([true], seeds, lambda gap: gap.mean >= 0)
        found.append(Finding(f"{where}: {KNOWN} is not worse than {FOUND}", not_worse, in_words(true)))
        gaps = {name: paired(ours, results.values(row(name))) for name in baselines}
        words = "; ".join(f"{name} {in_words(gap)}" for name, gap in gaps.items())
        ahead = verdict(gaps.values(), seeds, is_ahead)
        found.append(Finding(f"{where}: {FOUND} is better than every baseline", ahead, words))
    return found


def _beyond(results: Results, scale: Scale) -> list[Finding]:
    """Judge `fedmt+` against FedMT, the controls and the baselines."""
    gap = paired(results.values(text_row(PLUS)), results.values(text_row(FOUND)))
    enough = verdict([gap], scale.seeds, lambda gap: gap.mean >= 2)
    found = [Finding(f"{TEXTS}, n = {AT}: {PLUS} is at least 2 points better than {FOUND}", enough, in_words(gap))]
    ahead = partial(ahead_of_all, seeds=scale.seeds)
    for n in scale.labels:
        of = partial(text_row, labels=n, linear=True)
        gaps = {name: paired(results.values(of(PLUS)), results.values(of(name))) for name in ("Single", FOUND, KNOWN)}
        found.append(ahead(f"{TEXTS}, linear, n = {n}: {PLUS} is better than Single, {FOUND} and {KNOWN}", gaps))
        rivals = (KNOWN, *CONTROLS[:2], *BASELINES)
        gaps = {name: paired(results.values(text_row(PLUS, n)), results.values(text_row(name, n))) for name in rivals}
        found.append(ahead(f"{TEXTS}, n = {n}: {PLUS} is better than {KNOWN}, likelihood only and the baselines", gaps))
    if scale.studies:
        for gamma in GAMMAS:
            row = partial(text_row, gamma=gamma)
            others = (FOUND, *CONTROLS[:2], "SemiFL")
            gaps = {name: paired(results.values(row(PLUS)), results.values(row(name))) for name in others}
            found.append(
                ahead(f"{TEXTS}, gamma {gamma}: {PLUS} is better than {FOUND}, likelihood only and SemiFL", gaps)
            )
    return found


def _matrix(results: Results, scale: Scale) -> list[Finding]:
    by_round = matrix_error_by_round(results, text_row(FOUND))
    ends = list(by_round.values())
    by_size = {size: results.values(text_row(FOUND, size=size), ERROR) for size in SIZES}
    errors = {size: mean(values) for size, values in by_size.items() if values}
    all_sizes = all(len(values) >= scale.seeds for values in by_size.values())
    spread_as = {"evenly": 0.0} | ({f"by gamma {gamma}": gamma for gamma in GAMMAS} if scale.studies else {})
    return [
        Finding(
            "The error of the estimated matrix decreases over the rounds",
            ends[-1] < ends[0] if len(ends) > 1 and results.ran([text_row(FOUND)], scale.seeds) else None,
            f"{ends[0]:.2f} in round {min(by_round)}, {ends[-1]:.2f} in round {max(by_round)}" if ends else "–",
        ),
        Finding(
            "It is lower with more samples per site",
            all(a > b for a, b in pairwise(errors.values())) if all_sizes else None,
            ", ".join(f"{size} texts: {error:.2f}" for size, error in errors.items()) or "–",
        ),
        *(_ahead_of_learned(results, how, gamma, scale.seeds) for how, gamma in spread_as.items()),
    ]


def _ahead_of_learned(results: Results, how: str, gamma: float, seeds: int) -> Finding:
    ours = results.values(text_row(FOUND, gamma=gamma))
    gaps = {name: paired(ours, results.values(text_row(name, gamma=gamma))) for name in (LEARNED, LEARNED_AVERAGED)}
    return ahead_of_all(f"{FOUND} is better than the learnable matrix, texts split {how}", gaps, seeds)


def matrix_error_by_round(results: Results, row: Row) -> dict[int, float]:
    """Return the error of the matrix by round, averaged over seeds."""
    found: dict[int, dict[int, float]] = {}
    for seed, result in results.cells.get(row, {}).items():
        for at in result.get("curve", ()):
            value = look_up(at, "sites.matrix_error")
            if value is not None:
                found.setdefault(at["round"], {})[seed] = value
    return {at: mean(values) for at, values in sorted(found.items())}
