"""Verdicts on claims about two methods, from their paired differences over seeds: pure functions.

A difference belongs to one seed and is positive where the first method is better. The 95 % interval of the mean
difference is Student's t over seeds, and every verdict follows from it:

    judge_better       the first is better           holds above 0            refuted below 0
    judge_at_least     better by `least` or more     holds above least        refuted below least
    judge_at_most      better by `most` or less      holds below most         refuted above most
    judge_not_worse    worse by at most the margin   holds above -margin      refuted below -margin
    judge_equivalent   equal within the margin       holds inside +-margin    refuted outside of it

`judge_at_least` and `judge_at_most` also judge a single figure over seeds, such as an accuracy.

`judge_equivalent` is two one-sided tests, each at 2.5 %, so that the interval that is shown also decides. A verdict is
`undecided` for a single seed, which has no interval, and if a pair has no figure, because leaving out the seeds that
failed would favour the method that failed.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["holds", "refuted", "undecided"]
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """The mean of some figures and the 95 % interval of that mean; one figure has none: -inf to inf."""

    mean: float
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class Judgement:
    """A verdict, the interval it follows from, and the number of pairs without a figure.

    Mean and interval are those of the pairs that have a figure, and NaN without any.
    """

    verdict: Verdict
    interval: Interval
    failed: int
    sentence: str

    @property
    def mean(self) -> float:
        """The mean difference."""
        return self.interval.mean


def mean_interval(values: Sequence[float]) -> Interval:
    """Return the mean of finite figures and its 95 % interval by Student's t; equal figures have one without width."""
    n = len(values)
    if not n:
        return Interval(math.nan, math.nan, math.nan, 0)
    mean = math.fsum(values) / n
    if n == 1:
        return Interval(mean, -math.inf, math.inf, 1)
    if len(set(values)) == 1:  # otherwise rounding of the mean would give them a spread
        return Interval(values[0], values[0], values[0], n)
    half = _quantile(n - 1) * statistics.stdev(values) / math.sqrt(n)
    return Interval(mean, mean - half, mean + half, n)


def paired_differences(
    first: Mapping[int, float | None], second: Mapping[int, float | None], more_is_better: bool = True
) -> list[float | None]:
    """Return first minus second for each seed that both have, positive where the first is better.

    None stands for a seed at which one of them failed. Seeds that only one of them has are left out.
    """
    return [_difference(first[seed], second[seed], more_is_better) for seed in sorted(first.keys() & second.keys())]


def _difference(first: float | None, second: float | None, more_is_better: bool) -> float | None:
    if first is None or second is None or not (math.isfinite(first) and math.isfinite(second)):
        return None
    return first - second if more_is_better else second - first


def judge_better(differences: Iterable[float | None]) -> Judgement:
    """Judge the claim that the first method is better."""
    return _judge(differences, "better", 0.0, math.inf)


def judge_at_least(differences: Iterable[float | None], least: float) -> Judgement:
    """Judge the claim that the mean is at least `least`."""
    return _judge(differences, f"at least {least:g}", least, math.inf)


def judge_at_most(differences: Iterable[float | None], most: float) -> Judgement:
    """Judge the claim that the mean is at most `most`."""
    return _judge(differences, f"at most {most:g}", -math.inf, most)


def judge_not_worse(differences: Iterable[float | None], margin: float) -> Judgement:
    """Judge the claim that the first method is at most `margin` worse."""
    _check_margin(margin)
    return _judge(differences, f"at most {margin:g} worse", -margin, math.inf)


def judge_equivalent(differences: Iterable[float | None], margin: float) -> Judgement:
    """Judge the claim that the methods differ by less than `margin`, in either direction."""
    _check_margin(margin)
    return _judge(differences, f"equal within {margin:g}", -margin, margin)


def _judge(differences: Iterable[float | None], claim: str, low: float, high: float) -> Judgement:
    """Judge whether the true mean difference is above `low` and below `high`."""
    every = list(differences)
    figures = [value for value in every if value is not None and math.isfinite(value)]
    found, failed = mean_interval(figures), len(every) - len(figures)
    verdict: Verdict = "undecided"
    if not failed and found.n > 1:
        if low < found.low and found.high < high:
            verdict = "holds"
        elif found.high < low or found.low > high:
            verdict = "refuted"
    return Judgement(verdict, found, failed, f"{claim}: {verdict}; {_reason(found, failed)}")


def _reason(found: Interval, failed: int) -> str:
    missing = f"{failed} of {found.n + failed} pairs have no figure"
    if not found.n:
        return missing if failed else "no pair was measured"
    if found.n == 1:
        measured = f"mean difference {found.mean:+.4g}, and one seed has no interval"
    else:
        measured = f"mean difference {found.mean:+.4g}, 95 % interval {found.low:+.4g} to {found.high:+.4g}, "
        measured += f"{found.n} seeds"
        if found.low == found.high:
            measured += ", all with the same difference"
    return f"{missing}; of the others: {measured}" if failed else measured


def _check_margin(margin: float) -> None:
    if not (math.isfinite(margin) and margin > 0):
        raise ValueError(f"the margin is {margin}, but should be a finite number above 0")


def _quantile(freedom: int) -> float:
    """Return Student's t such that the 95 % interval is the mean plus and minus t standard errors."""
    from scipy.special import stdtrit  # here, because importing scipy takes a tenth of a second

    return float(stdtrit(freedom, (1 + CONFIDENCE) / 2))
