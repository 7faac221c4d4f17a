"""The criteria of the table: the order of the methods, the gains of `fedmt+`, and the estimated matrix."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

from fedaccord.evaluation.judge import judge_at_least, judge_better, judge_not_worse
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
from papers.harness.bars import ahead_of_all, judged_finding
from papers.harness.cells import Results, Row, look_up
from papers.harness.pages import Finding
from papers.harness.statistics import differences, mean

ERROR = "sites.mean.matrix_error"
MARGIN = 0.5  # points by which T may be worse than E


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
        true = judge_not_worse(differences(results.values(row(KNOWN)), ours), MARGIN)
        found.append(judged_finding(f"{where}: {KNOWN} is at most {MARGIN} worse than {FOUND}", {"": true}, seeds))
        rivals = {name: results.values(row(name)) for name in baselines}
        found.append(ahead_of_all(f"{where}: {FOUND} is better than every baseline", ours, rivals, seeds))
    return found


def _beyond(results: Results, scale: Scale) -> list[Finding]:
    """Judge `fedmt+` against FedMT, the controls and the baselines."""
    enough = judge_at_least(differences(results.values(text_row(PLUS)), results.values(text_row(FOUND))), 2)
    statement = f"{TEXTS}, n = {AT}: {PLUS} is at least 2 points better than {FOUND}"
    found = [judged_finding(statement, {"": enough}, scale.seeds)]
    ahead = partial(ahead_of_all, seeds=scale.seeds)
    for n in scale.labels:
        of = partial(text_row, labels=n, linear=True)
        rivals = {name: results.values(of(name)) for name in ("Single", FOUND, KNOWN)}
        statement = f"{TEXTS}, linear, n = {n}: {PLUS} is better than Single, {FOUND} and {KNOWN}"
        found.append(ahead(statement, results.values(of(PLUS)), rivals))
        rivals = {name: results.values(text_row(name, n)) for name in (KNOWN, *CONTROLS[:2], *BASELINES)}
        statement = f"{TEXTS}, n = {n}: {PLUS} is better than {KNOWN}, likelihood only and the baselines"
        found.append(ahead(statement, results.values(text_row(PLUS, n)), rivals))
    if scale.studies:
        for gamma in GAMMAS:
            row = partial(text_row, gamma=gamma)
            rivals = {name: results.values(row(name)) for name in (FOUND, *CONTROLS[:2], "SemiFL")}
            statement = f"{TEXTS}, gamma {gamma}: {PLUS} is better than {FOUND}, likelihood only and SemiFL"
            found.append(ahead(statement, results.values(row(PLUS)), rivals))
    return found


def _matrix(results: Results, scale: Scale) -> list[Finding]:
    row = text_row(FOUND)
    first, last = (results.values(row, "sites.matrix_error", when) for when in ("first", "last"))
    by_size = {size: results.values(text_row(FOUND, size=size), ERROR) for size in SIZES}
    falls = {
        f"{few} to {many} texts": judge_better(differences(by_size[few], by_size[many], 1.0))
        for few, many in pairwise(SIZES)
    }
    spread_as = {"evenly": 0.0} | ({f"by gamma {gamma}": gamma for gamma in GAMMAS} if scale.studies else {})
    return [
        judged_finding(
            "The error of the estimated matrix is lower in the last round than in the first",
            {"lower by": judge_better(differences(first, last, 1.0))},
            scale.seeds,
            digits=2,
        ),
        judged_finding("It is lower with more samples per site", falls, scale.seeds, digits=2),
        *(_ahead_of_learned(results, how, gamma, scale.seeds) for how, gamma in spread_as.items()),
    ]


def _ahead_of_learned(results: Results, how: str, gamma: float, seeds: int) -> Finding:
    ours = results.values(text_row(FOUND, gamma=gamma))
    rivals = {name: results.values(text_row(name, gamma=gamma)) for name in (LEARNED, LEARNED_AVERAGED)}
    return ahead_of_all(f"{FOUND} is better than the learnable matrix, texts split {how}", ours, rivals, seeds)


def matrix_error_by_round(results: Results, row: Row) -> dict[int, float]:
    """Return the error of the matrix by round, averaged over seeds."""
    found: dict[int, dict[int, float]] = {}
    for seed, result in results.cells.get(row, {}).items():
        for at in result.get("curve", ()):
            value = look_up(at, "sites.matrix_error")
            if value is not None:
                found.setdefault(at["round"], {})[seed] = value
    return {at: mean(values) for at, values in sorted(found.items())}
