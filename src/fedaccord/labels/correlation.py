"""Correlations of tags: phi from labels or scores, and the consensus of several sites (docs/methods.md 7.1, 7.2).

All are pure functions. Values are 0/1 labels or scores in 0..1, (n, C); a mask says which of them count. A pair of tags
is looked at in the rows where both count, so a tag that was not annotated is neither present nor absent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedaccord.labels.clusters import k_means
from fedaccord.labels.views import NOT_ANNOTATED

EPSILON = 1e-8
TINY = 1e-12  # a variance below is rounding


@dataclass(frozen=True)
class PairSums:
    """Sums over the rows in which both tags of a pair count; sums of several sites can be added up.

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
    """Return the sums of values (n, C) over rows, where `counted`, bool (n, C), says which values count."""
    mask = counted.double()
    seen = torch.where(counted, values.double(), 0.0)
    return PairSums(mask.T @ mask, seen.T @ mask, seen.T @ seen)


def tag_sums(target: Tensor) -> PairSums:
    """Return how often tags occur and occur together in annotations (n, C) of 1, 0 and -1."""
    return pair_sums(target == 1, target != NOT_ANNOTATED)


def phi(first: Tensor, second: Tensor, both: Tensor) -> Tensor:
    """Return phi from the means of one tag, of the other and of their product, all over the same rows.

    A tag of constant value gives 0. Of soft scores the diagonal is below 1; nothing here looks at it.
    """
    spread = (first * (1 - first)).clamp(min=0) * (second * (1 - second)).clamp(min=0)
    # The square root has no slope at zero, which would make NaN of a gradient that is to be zero.
    root = torch.where(spread > 0, spread, 1.0).sqrt()
    return torch.where(spread > 0, (both - first * second) / (root + EPSILON), 0.0)


def phi_of_sums(sums: PairSums, shrinkage: float = 0.0) -> tuple[Tensor, Tensor]:
    """Return phi (C, C), and the pairs it says something of: those with a row, of tags that vary in these rows.

    With shrinkage `s` a phi of n rows is taken `n / (n + s)` times.
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
    """Return phi of scores (n, C), and the pairs it says something of."""
    return phi_of_sums(pair_sums(scores, torch.ones_like(scores, dtype=torch.bool) if counted is None else counted))


def off_diagonal(pairs: Tensor) -> Tensor:
    """Return a bool matrix without its diagonal."""
    return pairs & ~torch.eye(len(pairs), dtype=torch.bool, device=pairs.device)


@dataclass(frozen=True)
class Consensus:
    """How the matrices of several sites become one: `mean` by sample count, `uniform-mean`, `median`, `trimmed-mean`.

    An entry is taken over the sites that say something of it. The trimmed mean leaves out a fifth at either end, at
    least one value where three are there.
    """

    operator: str = "mean"

    def __call__(self, matrices: Sequence[Tensor], informed: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
        """Return the matrix; an entry that no site says anything of is zero."""
        values, says = torch.stack(list(matrices)).double(), torch.stack(list(informed))
        if self.operator in ("mean", "uniform-mean"):
            given = torch.tensor(weights, dtype=torch.float64) if self.operator == "mean" else torch.ones(len(values))
            shares = says * given.double()[:, None, None]
            return (values * shares).sum(0) / shares.sum(0).clamp(min=torch.finfo(torch.float64).tiny)
        number = says.sum(0)
        ranked = torch.where(says, values, math.inf).sort(0).values
        low, high = self._kept(number)
        place = torch.arange(len(values))[:, None, None]
        kept = (place >= low) & (place < high)
        return torch.where(kept, ranked, 0.0).sum(0) / kept.sum(0).clamp(min=1)

    def _kept(self, number: Tensor) -> tuple[Tensor, Tensor]:
        """Return the first of so many ranked values that is kept, and the first after it that is not."""
        if self.operator == "median":
            cut = (number - 1).clamp(min=0) // 2
        else:
            cut = torch.minimum((number // 5).clamp(min=1), (number - 1).clamp(min=0) // 2)
        return cut, number - cut


def leave_one_out(
    matrices: Mapping[str, Tensor],
    informed: Mapping[str, Tensor],
    weights: Mapping[str, float],
    operator: Consensus,
    site: str | None = None,
) -> tuple[Tensor, Tensor] | None:
    """Return what all sites but one agree on, and the pairs somebody says something of; None where no other is."""
    others = [name for name in sorted(matrices) if name != site]
    if not others:
        return None
    says = [informed[name] for name in others]
    found = operator([matrices[name] for name in others], says, [weights[name] for name in others])
    return found, torch.stack(says).any(0)


def discrepancy(first: Tensor, second: Tensor, pairs: Tensor) -> float:
    """Return the root mean squared difference of two matrices over some pairs off the diagonal; 0 without any."""
    inside = off_diagonal(pairs)
    return float((first - second).double()[inside].square().mean().sqrt()) if bool(inside.any()) else 0.0


def quality_weights(distances: Tensor, sizes: Tensor, gamma: float, volume: float) -> Tensor:
    """Return `volume * sizes + (1 - volume) * quality`, both summing to one; quality is `exp(-gamma * distance)`."""
    quality = torch.exp(-gamma * (distances - distances.min()))  # the smallest taken off, so that not all underflow
    return volume * sizes / sizes.sum() + (1 - volume) * quality / quality.sum()


def spectral_blocks(correlation: Tensor, pairs: Tensor, blocks: int | None, seed: int) -> Tensor:
    """Return the block of each tag, int64 (C,): spectral clustering by the size of its correlations.

    Tags without any are blocks of their own. `blocks` None: the square root of the number of the others, at least two.
    """
    affinity = torch.where(off_diagonal(pairs), correlation.double().abs(), 0.0)
    affinity = (affinity + affinity.T) / 2
    degree = affinity.sum(1)
    active = (degree > 0).nonzero().flatten()
    result = torch.arange(len(correlation))
    if len(active) < 2:
        return result
    wanted = min(len(active), max(2, round(math.sqrt(len(active)))) if blocks is None else blocks)
    root = degree[active].rsqrt()
    laplacian = torch.eye(len(active), dtype=torch.float64) - root[:, None] * affinity[active][:, active] * root
    coordinates = torch.linalg.eigh(laplacian).eigenvectors[:, :wanted]
    # Rows of length one (Ng, Jordan and Weiss 2001): otherwise rare tags, all near zero, make one large block.
    coordinates = torch.nn.functional.normalize(coordinates, dim=1)
    result[active] = len(correlation) + k_means(coordinates, wanted, seed)
    return torch.unique(result, return_inverse=True)[1]


def noisy_sums(sums: PairSums, noise: float, rng: np.random.Generator) -> PairSums:
    """Return sums with Gaussian noise of `noise` times what one row can change them (the Gaussian mechanism).

    A row adds at most 1 to each number, so all of them together move by at most the root of how many there are: of
    labels, or of scores by a model that was given, but not of one trained on these rows, which changes every score.
    Phi of the noisy sums tells no more than the sums do.
    """
    tags = len(sums.rows)
    scale = noise * math.sqrt(tags * tags + tags * (tags + 1))

    def drawn(symmetric: bool) -> Tensor:
        draw = torch.from_numpy(rng.normal(0.0, scale, (tags, tags)))
        return torch.triu(draw) + torch.triu(draw, 1).T if symmetric else draw

    rows = (sums.rows + drawn(True)).clamp(min=0)
    first = torch.minimum((sums.first + drawn(False)).clamp(min=0), rows)
    both = torch.minimum((sums.both + drawn(True)).clamp(min=0), torch.minimum(first, first.T))
    return PairSums(rows, first, both)
