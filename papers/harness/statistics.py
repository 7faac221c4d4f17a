"""Statistics over seeds: means, standard deviations, paired differences, rank correlation."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Paired:
    """The mean difference of two methods on the same seeds."""

    mean: float
    error: float  # standard error; NaN for one seed
    seeds: int
    wins: int

    def __str__(self) -> str:
        error = "" if math.isnan(self.error) else f", se {self.error:.1f}"
        return f"{self.mean:+.1f}{error}, better on {self.wins} of {self.seeds}"


def paired(ours: Mapping[int, float], theirs: Mapping[int, float], scale: float = 100.0) -> Paired | None:
    """Compare figures on the seeds that both have, multiplied by `scale`; return None if there are none."""
    gaps = [scale * (ours[seed] - theirs[seed]) for seed in sorted(ours.keys() & theirs.keys())]
    if not gaps:
        return None
    error = statistics.stdev(gaps) / len(gaps) ** 0.5 if len(gaps) > 1 else math.nan
    return Paired(statistics.fmean(gaps), error, len(gaps), sum(gap > 0 for gap in gaps))


def in_words(gap: Paired | None) -> str:
    """Format a paired difference; a dash if there is none."""
    return "–" if gap is None else str(gap)


def mean(values: Mapping[int, float]) -> float:
    """Return the mean over seeds; NaN without seeds."""
    return statistics.fmean(values.values()) if values else math.nan


def deviation(values: Mapping[int, float]) -> float:
    """Return the standard deviation over seeds; NaN for fewer than two."""
    return statistics.stdev(values.values()) if len(values) > 1 else math.nan


def spread(values: Mapping[int, float], scale: float = 100.0, digits: int = 1) -> str:
    """Format mean and standard deviation over seeds, as in `71.4 ± 2.0`; a dash without seeds."""
    if not values:
        return "–"
    around = deviation(values)
    plus_minus = "" if math.isnan(around) else f" ± {scale * around:.{digits}f}"
    return f"{scale * mean(values):.{digits}f}{plus_minus}"


def rank_correlation(x: Sequence[float], y: Sequence[float]) -> float:
    """Return Spearman's correlation with ties at their mean rank; NaN if one side is constant."""
    a, b = _ranks(x), _ranks(y)
    if len(set(a)) < 2 or len(set(b)) < 2:
        return math.nan
    return statistics.correlation(a, b)


def _ranks(values: Sequence[float]) -> list[float]:
    ordered = sorted(values)
    return [ordered.index(value) + (ordered.count(value) - 1) / 2 for value in values]
