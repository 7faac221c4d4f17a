"""A small reproducible k-means: double precision, one random stream, ties by order."""

from __future__ import annotations

import torch
from torch import Tensor

MOST_STEPS = 100


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
