"""Verdicts from scores: the hostile sites of a round, and the confidence in a site over rounds.

A site with an infinite score (overflow) is always hostile and does not affect the verdicts on the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from fedaccord.adversary.settings import share_of

FEWEST = 4  # sites needed to separate clusters
FEWEST_SCORES = 3
SAME = 1e-9


def two_means(scores: Tensor) -> Tensor:
    """Return a mask of the hostile sites by the published rule: the smaller cluster of 2-means, bool (sites,).

    Of equal clusters, the one farther from 0 is hostile. The best split is found exactly, because clusters in one
    dimension are intervals. Sites without a score (NaN) are benign; all are benign if there are too few sites or
    scores, or if all scores are equal.
    """
    hostile = torch.isinf(scores)
    known = torch.isfinite(scores).nonzero().flatten()
    values, order = scores[known].double().sort(stable=True)
    if len(scores) < FEWEST or len(values) < FEWEST_SCORES or float(values[-1] - values[0]) <= SAME:
        return hostile
    # Equal scores must be in the same cluster.
    cuts = [cut for cut in range(1, len(values)) if values[cut] - values[cut - 1] > SAME] or [1]
    cut = min(cuts, key=lambda cut: _spread(values[:cut]) + _spread(values[cut:]))
    low, high = values[:cut], values[cut:]
    lower = len(low) < len(high)
    if len(low) == len(high):
        lower = abs(float(low.mean())) > abs(float(high.mean()))
    hostile[known[order[:cut] if lower else order[cut:]]] = True
    return hostile


def minority(scores: Tensor, gate: float, most: float = 1 / 3) -> Tensor:
    """Return a mask of the sites with outlying high scores, at most a share `most` of all: bool (sites,).

    Of all splits into high scores and the rest, the one with the largest ratio of the gap between the means to the
    standard deviation within the two clusters is used; no site is hostile unless the ratio exceeds `gate`.
    """
    return _highest(scores, most, lambda values, limit: _count_outliers(values, gate, limit))


def peeling(scores: Tensor, gate: float, most: float = 1 / 3) -> Tensor:
    """Apply `minority` repeatedly to the remaining sites, until it finds none or a share `most` is hostile.

    Hostile sites may differ: next to two strong attackers, a weaker third one looks honest.
    """

    def count(values: Tensor, limit: int) -> int:
        found = 0
        while more := _count_outliers(values[: len(values) - found], gate, limit - found):
            found += more
        return found

    return _highest(scores, most, count)


def _highest(scores: Tensor, most: float, count: Callable[[Tensor, int], int]) -> Tensor:
    """Return a mask of the highest scores; `count` gets the sorted scores and a limit, and returns their number."""
    hostile = torch.isinf(scores)
    known = torch.isfinite(scores).nonzero().flatten()
    values, order = scores[known].double().sort(stable=True)
    if len(scores) >= FEWEST and len(values) >= FEWEST_SCORES:
        scored = len(values) + int(hostile.sum())
        found = count(values, max(0, share_of(most, scored) - int(hostile.sum())))
        hostile[known[order[len(order) - found :]]] = True
    return hostile


def _count_outliers(values: Tensor, gate: float, limit: int) -> int:
    """Return the number of outliers at the end of the sorted values, at most `limit`."""
    best, chosen = gate, 0
    if float(values[-1] - values[0]) <= SAME:
        return 0
    for number in range(1, limit + 1):
        low, high = values[:-number], values[-number:]
        within = math.sqrt((_spread(low) + _spread(high)) / (len(values) - 2))
        ratio = float(high.mean() - low.mean()) / max(within, SAME)
        if ratio > best:
            best, chosen = ratio, number
    return chosen


def next_confidence(
    confidence: float, hostile: bool, rho: float = 0.1, low: float = 0.1, high: float = 0.9, absolute: bool = False
) -> float:
    """Return the confidence in a site after a verdict: an exponential moving average with weight `rho`.

    It stops rising above `high` and stops falling below `low`; with `absolute` it never changes again there.
    """
    if absolute and not low < confidence < high:
        return confidence
    if hostile:
        return (1 - rho) * confidence if confidence > low else confidence
    return (1 - rho) * confidence + rho if confidence < high else confidence


def _spread(values: Tensor) -> float:
    return float((values - values.mean()).square().sum())
