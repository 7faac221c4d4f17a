"""Differences of two models on test rows, with intervals, and what they allow to say; pure functions.

A model is better than another if the 95 % interval of the difference of their figures lies above zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from fedaccord.evaluation.intervals import Estimate, percentile_interval, share_difference
from fedaccord.lazy import Array

Standing = Literal["better", "worse", "unclear", "unmeasured"]
FEWEST_FOR_VERDICT = 10  # test rows; the bootstrap of fewer rows is too sure of itself
SHARES_OF_ROWS = ("accuracy", "in_set")


@dataclass(frozen=True)
class Difference:
    """The difference of two models on a site's test rows, with its interval; paired if both answered the same rows."""

    measure: str
    estimate: Estimate
    rows: int
    paired: bool

    @property
    def standing(self) -> Standing:
        """Whether the interval shows a better or a worse model."""
        return standing(self.estimate, self.rows)


@dataclass(frozen=True)
class Gain:
    """A site's first figure alone and together; the difference has an interval if both models were examined."""

    measure: str
    alone: float
    together: float
    difference: Difference | None = None


def standing(difference: Estimate | None, rows: int) -> Standing:
    """Return whether a difference is better or worse, by its interval; few rows allow no verdict."""
    if difference is None:
        return "unmeasured"
    if difference.low is None or difference.high is None or rows < FEWEST_FOR_VERDICT:
        return "unclear"
    return "better" if difference.low > 0 else "worse" if difference.high < 0 else "unclear"


def paired_difference(measure: str, new: Array, old: Array, value: float, rows: int) -> Estimate:
    """Return a difference with its interval from the figures of both models on the same resamples of `rows` rows."""
    if measure in SHARES_OF_ROWS:
        return share_difference(value, rows, new - old)
    return percentile_interval(value, new - old)


def unpaired_difference(new: Estimate, old: Estimate) -> Estimate:
    """Return a difference with an interval from the two intervals, as if the test rows were different ones.

    The distances of the ends from the figures add up like standard deviations (Newcombe's square-and-add). If both
    models answered the same rows, the interval is wider than it needs to be.
    """
    value = new.value - old.value
    if new.low is None or new.high is None or old.low is None or old.high is None:
        return Estimate(value)
    below = math.hypot(new.value - new.low, old.high - old.value)
    above = math.hypot(new.high - new.value, old.value - old.low)
    return Estimate(value, value - below, value + above)
