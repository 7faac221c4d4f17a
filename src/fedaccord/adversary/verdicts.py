"""From scores to verdicts: who is hostile in a round, and how far a site is trusted over the rounds.

A site with an infinite score, too large to compute with, is hostile whatever the others do; the rest is judged without.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

FEWEST = 4  # sites below which no cluster can be told from another
FEWEST_SCORES = 3
SAME = 1e-9


def two_means(scores: Tensor) -> Tensor:
    """Mark the hostile sites as published: 2-means in one dimension, the smaller cluster; on a tie that far from 0.

    The best split is found exactly: in one dimension clusters are ranges. Sites without a score (NaN) are benign, and
    so are all where there are too few sites or scores, or only one value.
    """
    hostile = torch.isinf(scores)
    known = torch.isfinite(scores).nonzero().flatten()
    values, order = scores[known].double().sort(stable=True)
    if len(scores) < FEWEST or len(values) < FEWEST_SCORES or float(values[-1] - values[0]) <= SAME:
        return hostile
    cuts = range(1, len(values))
    # A cut between equal values would tell apart what is the same.
    spreads = [
        _spread(values[:cut]) + _spread(values[cut:]) if values[cut] - values[cut - 1] > SAME else math.inf
        for cut in cuts
    ]
    cut = spreads.index(min(spreads)) + 1
    low, high = values[:cut], values[cut:]
    if len(low) != len(high):
        lower = len(low) < len(high)
    else:
        lower = abs(float(low.mean())) > abs(float(high.mean()))
    hostile[known[order[:cut] if lower else order[cut:]]] = True
    return hostile


def minority(scores: Tensor, gate: float, most: float = 1 / 3) -> Tensor:
    """Mark the sites above a gap: at most a share `most` of all, and only if they stand clearly apart.

    Among the splits into a few high scores and the rest, the one with the largest ratio of the gap between the means to
    the deviation within both counts; nobody is hostile unless it exceeds `gate`.
    """
    return _highest(scores, most, lambda values, largest: _standing_apart(values, gate, largest))


def peeling(scores: Tensor, gate: float, most: float = 1 / 3) -> Tensor:
    """Mark a minority, then look again among the rest, until nobody stands apart or a share `most` is marked.

    Hostile sites need not be alike: beside two that push hard, a third that pushes less looks like one of the honest.
    """

    def number(values: Tensor, largest: int) -> int:
        marked = 0
        while further := _standing_apart(values[: len(values) - marked], gate, largest - marked):
            marked += further
        return marked

    return _highest(scores, most, number)


def at_most(share: float, sites: int) -> int:
    """Return how many of so many sites a share is, rounded down."""
    # The small step is for products such as 0.29 * 100, which floating point puts just below 29.
    return math.floor(share * sites + 1e-9)


def _highest(scores: Tensor, most: float, number: Callable[[Tensor, int], int]) -> Tensor:
    """Mark as many of the highest scores as `number` says of the sorted ones; it is told how many there may be."""
    hostile = torch.isinf(scores)
    known = torch.isfinite(scores).nonzero().flatten()
    values, order = scores[known].double().sort(stable=True)
    if len(scores) >= FEWEST and len(values) >= FEWEST_SCORES:
        scored = len(values) + int(hostile.sum())
        marked = number(values, max(0, at_most(most, scored) - int(hostile.sum())))
        hostile[known[order[len(order) - marked :]]] = True
    return hostile


def _standing_apart(values: Tensor, gate: float, largest: int) -> int:
    """Return how many of the highest sorted values stand apart from the rest, at most `largest`; 0 if none do."""
    best, chosen = gate, 0
    if float(values[-1] - values[0]) <= SAME:
        return 0
    for number in range(1, largest + 1):
        low, high = values[:-number], values[-number:]
        within = math.sqrt((_spread(low) + _spread(high)) / (len(values) - 2))
        ratio = float(high.mean() - low.mean()) / max(within, SAME)
        if ratio > best:
            best, chosen = ratio, number
    return chosen


def next_confidence(
    confidence: float, hostile: bool, rho: float = 0.1, low: float = 0.1, high: float = 0.9, absolute: bool = False
) -> float:
    """Return how far a site is trusted after a verdict: towards 0 or 1 by a share `rho`.

    It rises no further from `high` on and falls no further from `low` on; `absolute` freezes it there for good.
    """
    if absolute and not low < confidence < high:
        return confidence
    if hostile:
        return (1 - rho) * confidence if confidence > low else confidence
    return (1 - rho) * confidence + rho if confidence < high else confidence


def _spread(values: Tensor) -> float:
    return float((values - values.mean()).square().sum())
