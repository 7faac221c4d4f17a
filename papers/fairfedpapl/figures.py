"""The figures of a row: group metrics, their change under attack, and the share of excluded sites."""

from __future__ import annotations

import statistics

from papers.fairfedpapl.cells import NONE, READINGS, SCENARIOS, row_of
from papers.harness.cells import Results, Row
from papers.harness.statistics import Figures, by_seed, mean, spread

LATE = 20  # exclusions are counted after this round


def figure_path(name: str, figure: str) -> str:
    """Return the path of a group metric in the results of a scenario."""
    return f"global.{figure}{(SCENARIOS | READINGS)[name].ending}"


def delta(results: Results, row: Row, figure: str) -> Figures:
    """Return the absolute difference to the run without attack and defence, by seed."""
    name, partition, sites, *_ = row
    unattacked = results.values((name, partition, sites, "30% hostile", NONE, NONE), figure)
    return by_seed(lambda value, before: abs(value - before), results.values(row, figure), unattacked)


def delta_eod(results: Results, row: Row) -> Figures:
    """Return delta EOD by seed, by the groups that the scenario of a row is measured by."""
    return delta(results, row, figure_path(row[0], "eod"))


def delta_spd(results: Results, row: Row) -> Figures:
    """Return delta SPD by seed, by the groups that the scenario of a row is measured by."""
    return delta(results, row, figure_path(row[0], "spd"))


def late_mean(results: Results, row: Row, figure: str) -> Figures:
    """Return a server figure by seed, averaged over the rounds after the 20th or the last third of a shorter run."""
    found = {}
    for seed, result in results.cells.get(row, {}).items():
        steps = result.get("steps", [])
        before = LATE if len(steps) > LATE else 2 * len(steps) // 3
        late = [step[figure] for step in steps if step["round"] > before and figure in step]
        if late:
            found[seed] = statistics.fmean(late)
    return Figures(found)


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
    return spread(Figures(precision, out.keys() - precision.keys()))


def level(results: Results, row: Row, figure: str) -> str:
    """Format a figure over seeds."""
    return spread(results.values(row, figure), 1.0, 3)


def delta_text(results: Results, row: Row, figure: str) -> str:
    """Format the delta of a figure over seeds."""
    return spread(delta(results, row, figure), 1.0, 3)


def accuracy_change(results: Results, row: Row) -> Figures:
    """Return the difference in accuracy to the run without attack and defence by seed, in points."""
    name, partition, *_ = row
    unattacked = results.values(row_of(name, partition, NONE, NONE))
    return by_seed(lambda value, before: 100 * (value - before), results.values(row), unattacked)
