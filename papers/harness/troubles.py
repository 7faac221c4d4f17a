"""The chapter on cells that dropped sites, have figures that are not finite, or failed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from papers.harness.cells import Result, Results
from papers.harness.pages import Chapter, Grid
from papers.harness.statistics import DROPPED

SHOWN = 2  # reasons of a cell


def troubles_chapter(results: Results) -> Chapter | None:
    """Return the chapter, or None if every cell kept its sites and has finite figures."""
    found = [(key, "failed", reason) for key, reason in results.failed.items()]
    for row, by_seed in results.cells.items():
        for seed, result in sorted(by_seed.items()):
            key = "/".join((*row, f"seed-{seed}"))
            found += [(key, what, reason) for what, reason in _troubles(result)]
    if not found:
        return None
    about = (
        f"`{DROPPED}` marks figures of runs that dropped sites: they are those of the sites that were left. A figure "
        "that is not finite, or of a cell that failed, is left out of means, counted in its place, and leaves every "
        "verdict on it undecided."
    )
    return Chapter("Dropped sites and missing figures", [about, Grid(("cell", "what", "why"), found, words=True)])


def _troubles(result: Result) -> Iterator[tuple[str, str]]:
    dropped = result.get("dropped") or []
    if isinstance(dropped, int):  # of a run on rows apart, which counts them only
        yield f"{dropped} dropped", "on rows kept apart, to choose a setting"
    elif dropped:
        more = f"; and {len(dropped) - SHOWN} more" if len(dropped) > SHOWN else ""
        yield f"{len(dropped)} dropped", "; ".join(dropped[:SHOWN]) + more
    wrong = list(_not_finite(result.get("final", {})))
    if wrong:
        yield "not finite", ", ".join(wrong[:SHOWN]) + (f" and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else "")


def _not_finite(figures: Mapping[str, Any], place: str = "") -> Iterator[str]:
    for name, value in figures.items():
        if isinstance(value, Mapping):
            yield from _not_finite(value, f"{place}{name}.")
        elif isinstance(value, float) and not math.isfinite(value):
            yield f"{place}{name}"
