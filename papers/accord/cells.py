"""The runs of the table, in three stages: a search of learning rates, the runs that are compared, more seeds.

Every contestant tries the same number of learning rates once per data set, judged by the annotations' likelihood on
rows kept apart from the training rows (`fedaccord tune`). The choice between ways of training alone at each site is
made on such rows as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fedaccord.config import check_experiment
from fedaccord.runs.page import duration
from fedaccord.settings_search.grid import Setting
from fedaccord.settings_search.ranking import rank
from papers.accord.contestants import ACCORD, ALONE, UNRANKED, Contestant, contestants, rates
from papers.accord.sets import EVERY, FLAMBY_SETS, SECONDS, SETS, DataSet
from papers.harness.cells import Cell, Results, Row, Size, in_order
from papers.harness.statistics import mean

SEARCH_SEED = 0
FLAMBY_SEEDS = 10
APART = "papers.harness.worker:run_apart"
TREES, TREES_APART = "papers.accord.trees:run_cell", "papers.accord.trees:run_apart"


@dataclass(frozen=True)
class Scale:
    """The size of a run of the table."""

    seeds: int
    many: int  # seeds of accord, of training alone and of the runner-up
    share: float  # of the rounds
    searched: bool  # otherwise everybody has the middle learning rate

    def seeds_of(self, name: str, contestant: str) -> int:
        """Return the number of seeds that a contestant has on a set from the start; FLamby's set is always whole."""
        if name in FLAMBY_SETS:
            return FLAMBY_SEEDS
        return self.many if contestant == ACCORD or contestant in ALONE else self.seeds

    def searches(self, name: str) -> bool:
        """Return whether learning rates are searched on a set."""
        return self.searched or name in FLAMBY_SETS


SCALES: dict[Size, Scale] = {
    "quick": Scale(2, 2, 0.2, False),
    "default": Scale(5, 10, 1.0, True),
    "full": Scale(10, 10, 2.0, True),
}


def cells(size: Size) -> list[Cell]:
    """Return the runs of the first stage: the search, and all runs of sets on which nothing is searched."""
    scale = SCALES[size]
    search = (
        apart_cell(scale, name, contestant, rate, SEARCH_SEED)
        for name, chosen in EVERY.items()
        if scale.searches(name)
        for contestant in contestants(chosen)
        for rate in rates(chosen, contestant)
    )
    return in_order(search, follow_ups(Results(), size))


def follow_ups(results: Results, size: Size) -> list[Cell]:
    """Return the runs whose settings are chosen, and with further seeds those of the runner-up on each set."""
    scale = SCALES[size]
    return in_order(_compared(results, scale), _runners_up(results, scale))


def _compared(results: Results, scale: Scale) -> Iterator[Cell]:
    for name, chosen in EVERY.items():
        for contestant in contestants(chosen):
            rate = chosen_rate(results, scale, name, contestant)
            if rate is None:
                continue
            seeds = scale.seeds_of(name, contestant.name)
            yield from (compared_cell(scale, name, contestant, rate, seed) for seed in range(seeds))
            if contestant.name in ALONE and name in SETS:
                yield from (apart_cell(scale, name, contestant, rate, seed) for seed in range(seeds))


def _runners_up(results: Results, scale: Scale) -> Iterator[Cell]:
    for name, chosen in SETS.items():
        best = runner_up(results, scale, name)
        for contestant in contestants(chosen):
            rate = chosen_rate(results, scale, name, contestant)
            if contestant.name == best and rate is not None:
                yield from (compared_cell(scale, name, contestant, rate, seed) for seed in range(scale.many))


def runner_up(results: Results, scale: Scale, name: str) -> str | None:
    """Return the best ranked contestant on a set besides `accord`; None before all have run on the first seeds."""
    figure = f"sites.mean.{SETS[name].metric}"
    rivals = [c.name for c in contestants(SETS[name]) if c.name != ACCORD and c.name not in UNRANKED]
    first = results.of_seeds(range(scale.seeds))
    if not first.ran([(name, rival) for rival in rivals], scale.seeds):
        return None
    return max(rivals, key=lambda rival: mean(first.values((name, rival), figure)))


def apart_row(name: str, contestant: str, rate: float) -> Row:
    """Return the row of a run that is judged on rows kept apart from training."""
    return ("rows apart", name, contestant, f"rate {rate:g}")


def chosen_rate(results: Results, scale: Scale, name: str, contestant: Contestant) -> float | None:
    """Return the rate with the best likelihood on rows apart; None before the search has finished, or if it failed."""
    tried = rates(EVERY[name], contestant)
    if not scale.searches(name):
        return tried[len(tried) // 2]
    searched = [apart_cell(scale, name, contestant, rate, SEARCH_SEED) for rate in tried]
    if not all(results.has(cell) for cell in searched):
        return None
    found, failed = list[dict[int, Any]](), list[dict[int, str]]()
    for cell in searched:
        figures = results.cells.get(cell.row, {}).get(SEARCH_SEED)
        found.append({} if figures is None else {SEARCH_SEED: figures})
        failed.append({SEARCH_SEED: results.failed[cell.key]} if figures is None else {})
    if not any("nll" in by[SEARCH_SEED]["figures"]["sites"]["mean"] for by in found if by):
        return None
    settings = [Setting({"rate": f"{r:g}"}, check_experiment(c.table)) for r, c in zip(tried, searched, strict=True)]
    ranked = rank(settings, found, failed, "nll")
    return None if ranked[0].failures else float(ranked[0].setting.values["rate"])


def compared_cell(scale: Scale, name: str, contestant: Contestant, rate: float, seed: int) -> Cell:
    """Return a run that is tested on the sites' test rows."""
    runner = TREES if contestant.is_trees else ""
    return Cell(
        (name, contestant.name), seed, experiment(scale, EVERY[name], contestant, rate), runner, contestant.recipe
    )


def apart_cell(scale: Scale, name: str, contestant: Contestant, rate: float, seed: int) -> Cell:
    """Return a run that is judged on rows kept apart from training."""
    runner = TREES_APART if contestant.is_trees else APART
    row = apart_row(name, contestant.name, rate)
    return Cell(row, seed, experiment(scale, EVERY[name], contestant, rate), runner, contestant.recipe)


def experiment(scale: Scale, chosen: DataSet, contestant: Contestant, rate: float) -> dict[str, Any]:
    """Return the experiment of a contestant with a learning rate."""
    share = scale.share if chosen.data else 1.0
    rounds = max(3, round(share * chosen.rounds))
    work = {"rounds": rounds, "batch": chosen.batch, "schedule": "cosine", **chosen.work}  # the same for everybody
    common = {"name": "local"} if contestant.is_trees else work
    method = {**common, **contestant.method, **dict.fromkeys(("lr", *contestant.follows_rate), rate)}
    found: dict[str, Any] = {
        "name": "accord",
        "model": dict(chosen.model),
        "method": method,
        "run": {"evaluate_every": rounds},
    }
    if chosen.data:
        found["data"] = dict(chosen.data)
    else:
        found["labels"] = {"classes": list(chosen.classes)}
        found["features"] = {"standardise": chosen.standardise}
        found["sites"] = [
            {"name": site, "data": file, "view": {"kind": "exact"}} for site, file in chosen.sites.items()
        ]
    return found | ({"server": dict(chosen.server)} if chosen.server else {})


def estimate(size: Size, workers: int) -> str:
    """Return a sentence on the time that all runs need, from the measured seconds of a cell on each set."""
    scale, runs, seconds = SCALES[size], 0, 0.0
    for name, chosen in EVERY.items():
        for contestant in contestants(chosen):
            number = scale.seeds_of(name, contestant.name)
            number += number if contestant.name in ALONE and name in SETS else 0
            number += len(rates(chosen, contestant)) if scale.searches(name) else 0
            runs += number
            seconds += number * SECONDS[name] * contestant.cost * max(0.3, scale.share)
    extra = len(SETS) * (scale.many - scale.seeds)  # of the runners-up
    took = duration((seconds + extra * seconds / runs) / workers)
    return f"about {runs + extra} runs, {took} on {workers} idle cores; finished runs are kept"
