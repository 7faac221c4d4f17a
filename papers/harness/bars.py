"""Verdicts on statements, given only if every method they name was measured on every seed of the table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from papers.harness.pages import Finding
from papers.harness.statistics import Paired, mean, spread


def verdict(
    gaps: Iterable[Paired | None],
    seeds: int,
    holds: Callable[[Paired], bool],
    of: Callable[[Iterable[bool]], bool] = all,
) -> bool | None:
    """Return whether `holds` is true of all (or `any`) differences; None unless each has at least `seeds` seeds."""
    found = [*gaps]
    measured = [gap for gap in found if gap is not None and gap.seeds >= seeds]
    return of(map(holds, measured)) if measured and len(measured) == len(found) else None


def is_ahead(gap: Paired) -> bool:
    """Return whether the first of a pair has the higher mean."""
    return gap.mean > 0


def ahead_of_all(statement: str, gaps: Mapping[str, Paired | None], seeds: int) -> Finding:
    """Judge whether a method is better than all named rivals, and name the closest one."""
    measured = {name: gap for name, gap in gaps.items() if gap is not None}
    if not measured:
        return Finding(statement, None, "–")
    closest = min(measured, key=lambda name: measured[name].mean)
    figures = f"closest: {closest}, {measured[closest]}"
    missing = [name for name, gap in gaps.items() if gap is None or gap.seeds < seeds]
    if missing:
        figures += f"; not on all {seeds} seeds: {', '.join(missing)}"
    return Finding(statement, verdict(gaps.values(), seeds, is_ahead), figures)


def reaches(statement: str, values: Mapping[int, float], least: float, seeds: int) -> Finding:
    """Judge whether a mean, in percent, is at least `least`."""
    return Finding(statement, 100 * mean(values) >= least if len(values) >= seeds else None, spread(values))
