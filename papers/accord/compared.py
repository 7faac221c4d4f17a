"""The figures of a set side by side: paired differences in points, who leads, the better way of training alone."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from fedaccord.evaluation.judge import Judgement, judge_better, paired_differences
from papers.accord.contestants import ACCORD, ALONE, UNRANKED, contestants
from papers.accord.sets import SETS
from papers.harness.cells import Results
from papers.harness.statistics import mean

POINTS = 100.0


@dataclass(frozen=True)
class Standing:
    """The place of `accord` on a set: the best of its rivals and the difference to it, in points."""

    name: str
    rival: str
    gap: Judgement  # of accord to the rival
    error: float  # standard error of the mean difference; NaN for one seed

    @property
    def is_first(self) -> bool:
        """Whether accord is first, or behind by at most one standard error."""
        return self.gap.mean >= 0 or -self.gap.mean <= self.error


def values(results: Results, name: str, contestant: str, scope: str = "sites.mean") -> dict[int, float]:
    """Return the figure that heads the set's view by seed, by default its mean over sites."""
    return results.values((name, contestant), f"{scope}.{SETS[name].metric}")


def difference(
    results: Results, name: str, rival: str, ours: str = ACCORD, scope: str = "sites.mean"
) -> Judgement | None:
    """Judge whether `accord` is better than a rival on the seeds of both, in points; None if there are none."""
    gaps = _gaps(results, name, rival, ours, scope)
    return judge_better(gaps) if gaps else None


def ranked_names(name: str) -> list[str]:
    """Return the contestants of a set that are ranked."""
    return [c.name for c in contestants(SETS[name]) if c.name not in UNRANKED]


def standing(results: Results, name: str) -> Standing | None:
    """Return the place of accord on a set; None if somebody has not run there."""
    names = ranked_names(name)
    found = {each: values(results, name, each) for each in names}
    seeds = set.intersection(*(set(by_seed) for by_seed in found.values()))
    if not seeds:
        return None
    # All contestants on the same seeds; further seeds then decide how sure the difference is.
    common = {each: mean({seed: by_seed[seed] for seed in seeds}) for each, by_seed in found.items()}
    rival = max((each for each in names if each != ACCORD), key=lambda each: common[each])
    gaps = _gaps(results, name, rival)
    error = statistics.stdev(gaps) / math.sqrt(len(gaps)) if len(gaps) > 1 else math.nan
    return Standing(name, rival, judge_better(gaps), error)


def better_alone(results: Results, name: str) -> str | None:
    """Return the way of training alone with the higher mean over seeds."""
    means = {way: mean(found) for way in ALONE if (found := values(results, name, way))}
    return max(means, key=lambda way: means[way]) if means else None


def _gaps(results: Results, name: str, rival: str, ours: str = ACCORD, scope: str = "sites.mean") -> list[float]:
    first, second = (values(results, name, each, scope) for each in (ours, rival))
    pairs = paired_differences({**first}, {**second})
    return [POINTS * gap for gap in pairs if gap is not None]
