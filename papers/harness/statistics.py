"""Statistics over seeds: figures by seed, means, deviations, paired differences, rank correlation."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from fedaccord.evaluation.judge import Interval, mean_interval, paired_differences

DROPPED = "†"  # marks a figure of a run that dropped sites


class Figures(dict[int, float]):
    """A figure by seed, with the seeds at which it failed (no finite value) and those at which sites were dropped."""

    def __init__(
        self, found: Mapping[int, float] | None = None, failed: Iterable[int] = (), dropped: Iterable[int] = ()
    ) -> None:
        super().__init__(found or {})
        self.failed, self.dropped = frozenset(failed), frozenset(dropped)

    def with_failures(self) -> dict[int, float | None]:
        """Return the figures with None at the seeds that failed."""
        return {**self, **dict.fromkeys(self.failed)}

    @property
    def seeds(self) -> frozenset[int]:
        """The seeds that ran, failed ones included."""
        return frozenset(self) | self.failed


def by_seed(compute: Callable[..., float], *figures: Figures) -> Figures:
    """Return a function of several figures for each seed that all ran; a seed at which one failed has failed."""
    seeds = sorted(frozenset.intersection(*(each.seeds for each in figures))) if figures else []
    whole = [seed for seed in seeds if all(seed in each for each in figures)]
    dropped = frozenset[int]().union(*(each.dropped for each in figures)).intersection(seeds)
    return Figures({s: compute(*(each[s] for each in figures)) for s in whole}, set(seeds) - set(whole), dropped)


def mean_by_seed(figures: Collection[Figures]) -> Figures:
    """Return the mean of several figures for each seed that all ran."""
    return by_seed(lambda *values: statistics.fmean(values), *figures)


def differences(
    ours: Figures, theirs: Figures, scale: float = 100.0, more_is_better: bool = True
) -> list[float | None]:
    """Return the paired differences times `scale`, positive where ours is better; None where one of them failed."""
    gaps = paired_differences(ours.with_failures(), theirs.with_failures(), more_is_better)
    return [None if gap is None else scale * gap for gap in gaps]


@dataclass(frozen=True)
class Paired:
    """The mean difference of two methods on the same seeds, its 95 % interval, and the seeds without a figure."""

    interval: Interval
    wins: int
    failed: int = 0

    @property
    def mean(self) -> float:
        """The mean difference."""
        return self.interval.mean

    def __str__(self) -> str:
        missing = f", {self.failed} without a figure" if self.failed else ""
        return f"{interval_text(self.interval)}, better on {self.wins} of {self.interval.n}{missing}"


def paired(ours: Figures, theirs: Figures, scale: float = 100.0) -> Paired | None:
    """Compare figures on the seeds that both ran, multiplied by `scale`; return None if no pair has figures."""
    every = differences(ours, theirs, scale)
    gaps = [gap for gap in every if gap is not None]
    if not gaps:
        return None
    return Paired(mean_interval(gaps), sum(gap > 0 for gap in gaps), len(every) - len(gaps))


def interval_text(found: Interval, digits: int = 1) -> str:
    """Format a mean and its 95 % interval, as in `+1.2 (+0.2 to +2.2)`; one seed has no interval."""
    if not found.n:
        return "–"
    middle = f"{found.mean:+.{digits}f}"
    return middle if math.isinf(found.low) else f"{middle} ({found.low:+.{digits}f} to {found.high:+.{digits}f})"


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
    """Format mean and standard deviation over seeds, as in `71.4 ± 2.0`; a dash without seeds.

    Seeds without a figure are counted, as in `71.4 ± 2.0 (4 of 5 seeds)`, and `†` marks runs that dropped sites.
    """
    text = "–"
    if values:
        around = deviation(values)
        plus_minus = "" if math.isnan(around) else f" ± {scale * around:.{digits}f}"
        text = f"{scale * mean(values):.{digits}f}{plus_minus}"
    if not isinstance(values, Figures):
        return text
    missing = f" ({len(values)} of {len(values.seeds)} seeds)" if values.failed else ""
    return text + missing + (f" {DROPPED}" if values.dropped else "")


def rank_correlation(x: Sequence[float], y: Sequence[float]) -> float:
    """Return Spearman's correlation with ties at their mean rank; NaN if one side is constant."""
    a, b = _ranks(x), _ranks(y)
    if len(set(a)) < 2 or len(set(b)) < 2:
        return math.nan
    return statistics.correlation(a, b)


def _ranks(values: Sequence[float]) -> list[float]:
    ordered = sorted(values)
    return [ordered.index(value) + (ordered.count(value) - 1) / 2 for value in values]
