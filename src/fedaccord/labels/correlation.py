"""Correlations of tags: phi from labels or scores (docs/methods.md 7.1).

All are pure functions. Values are 0/1 labels or scores in 0..1, (n, C), with a mask of the values that count. A pair of
tags uses the rows in which both count, so a tag that was not annotated is neither present nor absent.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedaccord.labels.views import NOT_ANNOTATED

EPSILON = 1e-8
TINY = 1e-12  # smaller variances are rounding errors
MOST_STEPS = 100  # of k-means


@dataclass(frozen=True)
class PairSums:
    """Sums over the rows in which both tags of a pair count; sums of several sites add up.

    `first[c, d]` is the sum of tag c's values in the rows of the pair (c, d).
    """

    rows: Tensor  # float64 (C, C)
    first: Tensor
    both: Tensor

    def __add__(self, other: PairSums) -> PairSums:
        return PairSums(self.rows + other.rows, self.first + other.first, self.both + other.both)

    def __sub__(self, other: PairSums) -> PairSums:
        return PairSums(self.rows - other.rows, self.first - other.first, self.both - other.both)


def pair_sums(values: Tensor, counted: Tensor) -> PairSums:
    """Return the pair sums of values (n, C) with the mask `counted`, bool (n, C)."""
    mask = counted.double()
    seen = torch.where(counted, values.double(), 0.0)
    return PairSums(mask.T @ mask, seen.T @ mask, seen.T @ seen)


def tag_sums(target: Tensor) -> PairSums:
    """Return the pair sums of annotations (n, C) of 1, 0 and -1 = not annotated."""
    return pair_sums(target == 1, target != NOT_ANNOTATED)


def phi(first: Tensor, second: Tensor, both: Tensor) -> Tensor:
    """Return phi from the means of one tag, of the other and of their product, all over the same rows.

    A constant tag gives 0. The diagonal of soft scores is below 1 and is not used.
    """
    spread = (first * (1 - first)).clamp(min=0) * (second * (1 - second)).clamp(min=0)
    # The gradient of the square root at zero would turn a zero gradient into NaN.
    root = torch.where(spread > 0, spread, 1.0).sqrt()
    return torch.where(spread > 0, (both - first * second) / (root + EPSILON), 0.0)


def phi_of_sums(sums: PairSums, shrinkage: float = 0.0) -> tuple[Tensor, Tensor]:
    """Return phi (C, C), and the informed pairs: those with rows in which both tags vary.

    With shrinkage `s` a phi of n rows is multiplied by `n / (n + s)`.
    """
    rows = sums.rows.clamp(min=1)
    one, other = sums.first / rows, sums.first.T / rows
    found = phi(one, other, sums.both / rows).clamp(-1, 1)
    mean, square = one.diagonal(), (sums.both / rows).diagonal()
    varied = (one > 0) & (one < 1) & (square - mean.square() > TINY)[:, None]
    informed = (sums.rows > 0) & varied & varied.T
    shrunk = found * (sums.rows.clamp(min=0) / (sums.rows.clamp(min=0) + shrinkage)) if shrinkage else found
    return torch.where(informed, shrunk, 0.0), off_diagonal(informed)


def phi_of_scores(scores: Tensor, counted: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return phi of scores (n, C), and the informed pairs."""
    return phi_of_sums(pair_sums(scores, torch.ones_like(scores, dtype=torch.bool) if counted is None else counted))


def off_diagonal(pairs: Tensor) -> Tensor:
    """Return a bool matrix without its diagonal."""
    return pairs & ~torch.eye(len(pairs), dtype=torch.bool, device=pairs.device)


def discrepancy(first: Tensor, second: Tensor, pairs: Tensor) -> float:
    """Return the root mean squared difference of two matrices over off-diagonal pairs; 0 if there are none."""
    inside = off_diagonal(pairs)
    return float((first - second).double()[inside].square().mean().sqrt()) if bool(inside.any()) else 0.0


def k_means(points: Tensor, clusters: int, seed: int, restarts: int = 10) -> Tensor:
    """Return the cluster of each point, int64 (n,), from the best of several restarts; clusters may be empty."""
    generator = torch.Generator().manual_seed(seed)
    x = points.double()
    runs = [_lloyd(x, _first_centres(x, clusters, generator)) for _ in range(restarts)]
    return min(runs, key=lambda run: run[1])[0]


def _first_centres(x: Tensor, clusters: int, generator: torch.Generator) -> Tensor:
    """Draw initial centres from the points, by squared distance from earlier centres (k-means++)."""
    centres = x[torch.randint(len(x), (1,), generator=generator)]
    while len(centres) < clusters:
        nearest = torch.cdist(x, centres).square().amin(1)
        if not bool(nearest.sum() > 0):  # fewer distinct points than clusters
            break
        centres = torch.cat([centres, x[torch.multinomial(nearest, 1, generator=generator)]])
    return centres


def _lloyd(x: Tensor, centres: Tensor) -> tuple[Tensor, float]:
    last = torch.full((len(x),), -1)
    for _ in range(MOST_STEPS):
        distances = torch.cdist(x, centres).square()
        cluster = distances.argmin(1)
        if torch.equal(cluster, last):
            break
        sums = torch.zeros_like(centres).index_add_(0, cluster, x)
        sizes = torch.bincount(cluster, minlength=len(centres))[:, None]
        centres = torch.where(sizes > 0, sums / sizes.clamp(min=1), centres)
        last = cluster
    return last, float(torch.cdist(x, centres).square().gather(1, last[:, None]).sum())
