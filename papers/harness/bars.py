"""What the bars of a table may say: only what was measured of everyone they name, on every seed of the table."""

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
    """Say whether something holds of all (or `any`) differences; None unless each was measured on so many seeds."""
    found = [*gaps]
    measured = [gap for gap in found if gap is not None and gap.seeds >= seeds]
    return of(map(holds, measured)) if measured and len(measured) == len(found) else None


def is_ahead(gap: Paired) -> bool:
    """Say whether the first of a pair is ahead in the mean."""
    return gap.mean > 0


def ahead_of_all(statement: str, gaps: Mapping[str, Paired | None], seeds: int) -> Finding:
    """Judge whether one is ahead of all named rivals, told by the one that it is least ahead of."""
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
    """Judge whether a mean, in percent, comes to a bar."""
    return Finding(statement, 100 * mean(values) >= least if len(values) >= seeds else None, spread(values))
