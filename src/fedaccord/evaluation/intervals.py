"""Intervals of figures by resampling test rows (the bootstrap); pure functions.

A resample draws as many test rows as there are, with replacement. It is a row of weights: how often it drew each test
row. A figure of many resamples is then a matrix operation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fedaccord.lazy import Array, np

LEVEL = 0.95
MOST_RESAMPLES, FEWEST_RESAMPLES = 1000, 200
_WORK = 20_000_000  # resamples x rows x answers, which bounds the time of a large test part
_BLOCK = 4_000_000  # weights in memory at a time


@dataclass(frozen=True)
class Estimate:
    """A figure with its 95 % interval; without an interval if all resamples agree."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Resampling:
    """The seed of the resamples, and their number unless rows and answers are very many."""

    seed: int
    most: int = MOST_RESAMPLES

    def number(self, rows: int, answers: int) -> int:
        """Return the number of resamples for a test part: at least 200."""
        return int(min(self.most, max(FEWEST_RESAMPLES, _WORK // max(1, rows * answers))))

    def weights(self, rows: int, number: int) -> Iterator[Array]:
        """Yield the weights of `number` resamples in blocks: float (resamples, rows), each row sums to `rows`."""
        rng = np.random.default_rng(self.seed)
        step = max(1, _BLOCK // rows)
        for start in range(0, number, step):
            size = min(step, number - start)
            drawn = rng.integers(0, rows, (size, rows)) + rows * np.arange(size)[:, None]
            yield np.bincount(drawn.ravel(), minlength=size * rows).reshape(size, rows).astype(float)

    def orders(self, rows: int, number: int) -> Iterator[Array]:
        """Yield `number` random orders of the rows in blocks: int (orders, rows)."""
        rng = np.random.default_rng(self.seed)
        step = max(1, _BLOCK // rows)
        for start in range(0, number, step):
            yield rng.permuted(np.tile(np.arange(rows), (min(step, number - start), 1)), axis=1)


def percentile_interval(value: float, replicates: Array) -> Estimate:
    """Return the figure with the 2.5 % and 97.5 % percentiles of its resamples; NaN replicates are left out."""
    found = replicates[np.isfinite(replicates)]
    if not len(found) or found.min() == found.max():
        return Estimate(value)
    low, high = np.quantile(found, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(value, float(low), float(high))


def share_interval(share: float, rows: float, replicates: Array) -> Estimate:
    """Return a share of `rows` rows with its interval.

    If every row or no row is a hit, all resamples agree although the share is uncertain. Then the interval is the exact
    one of a binomial share (Clopper and Pearson).
    """
    if 0 < share < 1:
        return percentile_interval(share, replicates)
    return Estimate(1.0, 1 - _unseen(rows), 1.0) if share else Estimate(0.0, 0.0, _unseen(rows))


def share_difference(value: float, rows: int, replicates: Array) -> Estimate:
    """Return the difference of two shares of the same rows with its interval.

    If two models are right on the same rows, all resamples agree, although the models may differ on other rows. Then
    the interval reaches in both directions as far as the largest share that `rows` rows may miss.
    """
    found = percentile_interval(value, replicates)
    if found.low is not None:
        return found
    return Estimate(value, max(-1.0, value - _unseen(rows)), min(1.0, value + _unseen(rows)))


def _unseen(rows: float) -> float:
    """Return the largest share that `rows` rows may miss: the end of the exact interval of 0 hits."""
    return float(1 - ((1 - LEVEL) / 2) ** (1 / rows))


def reflected_interval(value: float, replicates: Array) -> Estimate:
    """Return a non-negative figure with its percentiles reflected at the figure: 2 v - q(97.5 %), 2 v - q(2.5 %).

    For a figure that resampling itself increases, such as a calibration error: percentiles alone would lie above it.
    """
    plain = percentile_interval(value, replicates)
    if plain.low is None or plain.high is None:
        return plain
    return Estimate(value, max(0.0, 2 * value - plain.high), max(0.0, 2 * value - plain.low))
