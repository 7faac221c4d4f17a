"""The figures of a row: group metrics, their change under attack, and the share of excluded sites."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from papers.fairfedpapl.cells import NONE, READINGS, SCENARIOS, row_of
from papers.harness.cells import Results, Row
from papers.harness.statistics import Paired, mean, paired, spread

LATE = 20  # exclusions are counted after this round


def figure_path(name: str, figure: str) -> str:
    """Return the path of a group metric in the results of a scenario."""
    return f"global.{figure}{(SCENARIOS | READINGS)[name].ending}"


def delta(results: Results, row: Row, figure: str) -> dict[int, float]:
    """Return the absolute difference to the run without attack and defence, by seed, on the seeds that both have."""
    name, partition, sites, *_ = row
    unattacked = results.values((name, partition, sites, "30% hostile", NONE, NONE), figure)
    values = results.values(row, figure)
    return {seed: abs(values[seed] - unattacked[seed]) for seed in sorted(values.keys() & unattacked.keys())}


def late_mean(results: Results, row: Row, figure: str) -> dict[int, float]:
    """Return a server figure by seed, averaged over the rounds after the 20th or the last third of a shorter run."""
    found = {}
    for seed, result in results.cells.get(row, {}).items():
        steps = result.get("steps", [])
        before = LATE if len(steps) > LATE else 2 * len(steps) // 3
        late = [step[figure] for step in steps if step["round"] > before and figure in step]
        if late:
            found[seed] = statistics.fmean(late)
    return found


def excluded_shares(results: Results, row: Row) -> str:
    """Format the percentages of hostile and of honest sites that are excluded."""
    right, wrong = (late_mean(results, row, figure) for figure in ("hostile_excluded", "false_exclusions"))
    return f"{100 * mean(right):.0f} / {100 * mean(wrong):.0f}" if right else "–"


def precision(results: Results, row: Row) -> str:
    """Format the share of hostile sites among the excluded ones, over the seeds with an exclusion."""
    hostile = float(row[3].removesuffix("% hostile")) / 100
    right, wrong = (late_mean(results, row, figure) for figure in ("hostile_excluded", "false_exclusions"))
    found = {seed: hostile * right[seed] for seed in right.keys() & wrong.keys()}
    out = {seed: found[seed] + (1 - hostile) * wrong[seed] for seed in found}
    precision = {seed: found[seed] / out[seed] for seed in sorted(out) if out[seed]}
    return mean_text(precision, len(results.cells.get(row, {})), 100.0, 1)


def level(results: Results, row: Row, figure: str) -> str:
    """Format a figure over seeds."""
    return mean_text(results.values(row, figure), len(results.cells.get(row, {})))


def delta_text(results: Results, row: Row, figure: str) -> str:
    """Format the delta of a figure over seeds."""
    return mean_text(delta(results, row, figure), len(results.cells.get(row, {})))


def mean_text(values: Mapping[int, float], ran: int, scale: float = 1.0, digits: int = 3) -> str:
    """Format mean and standard deviation, and the number of seeds with the figure if some of the `ran` lack it."""
    text = spread(values, scale, digits)
    return f"{text} ({len(values)} of {ran} seeds)" if 0 < len(values) < ran else text


def accuracy_change(results: Results, row: Row) -> Paired | None:
    """Return the paired difference in accuracy to the run without attack and defence."""
    name, partition, *_ = row
    return paired(results.values(row), results.values(row_of(name, partition, NONE, NONE)))
