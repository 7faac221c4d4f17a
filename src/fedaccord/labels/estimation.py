"""Finding out what coarse names stand for: estimates of `M[j, k] = P(coarse label j | class k)` (docs/methods.md 6.3).

All are pure functions. `coarse` holds the coarse column of each sample, (n,), `classes` the class it is taken for, and
`probabilities` P(class | sample), (n, K); a sample whose coarse column is -1 is not annotated and counts nowhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedaccord.lazy import lazy_import

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = lazy_import("torch")


CORRESPONDENCE = "correspondence"
"""What an estimated matrix is called in messages, in a site's memory and in a model folder."""

SMALLEST = 1e-8  # what no entry of a matrix may fall below where its logarithm is taken


def uniform_matrix(names: int, classes: int) -> Tensor:
    """Return the matrix of a site of which nothing is known: every coarse name equally likely given every class."""
    return torch.full((names, classes), 1.0 / names)


def confident(probabilities: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
    """Return the likeliest class of each sample, and whether its probability is above the threshold."""
    best = probabilities.max(-1)
    return best.indices, best.values > threshold


def pair_counts(coarse: Tensor, classes: Tensor, shape: tuple[int, int]) -> Tensor:
    """Count samples by coarse name and class: float (J, K)."""
    seen = coarse >= 0
    pairs = coarse[seen] * shape[1] + classes[seen]
    return torch.bincount(pairs, minlength=shape[0] * shape[1]).reshape(shape).float()


def columns_of_counts(counts: Tensor, fallback: Tensor, smoothing: float = 0.0) -> Tensor:
    """Return `(count + s) / (total + J s)` column by column; an empty column is the fallback's.

    A column of zeros would lose the mass of its class, and the loss would fight that class.
    """
    total = counts.sum(0, keepdim=True)
    shares = (counts + smoothing) / (total + len(counts) * smoothing).clamp(min=torch.finfo(counts.dtype).tiny)
    return torch.where(total > 0, shares, fallback)


def estimate_by_counts(
    probabilities: Tensor, coarse: Tensor, threshold: float, fallback: Tensor, smoothing: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Return variant E's matrix from the confident samples, and which of its columns these samples fill: bool (K,)."""
    classes, sure = confident(probabilities, threshold)
    shape = (fallback.shape[0], fallback.shape[1])
    counts = pair_counts(coarse[sure], classes[sure], shape)
    return columns_of_counts(counts, fallback, smoothing), counts.sum(0) > 0


def average_columns(matrices: Sequence[Tensor], valid: Sequence[Tensor], fallback: Tensor) -> Tensor:
    """Return the plain mean of matrices, each column over those in which it is valid; one valid nowhere falls back."""
    stacked, counted = torch.stack(list(matrices)), torch.stack(list(valid)).to(fallback.dtype)
    number = counted.sum(0)
    mean = (stacked * counted[:, None, :]).sum(0) / number.clamp(min=1)
    return torch.where(number > 0, mean, fallback)


def median_columns(matrices: Sequence[Tensor], valid: Sequence[Tensor], fallback: Tensor) -> Tensor:
    """Return the middle of matrices, entry by entry over those in which its column is valid; columns sum to 1 again.

    A column that is valid nowhere, or whose middle values are all zero, falls back.
    """
    stacked, counted = torch.stack(list(matrices)), torch.stack(list(valid))
    middle = stacked.masked_fill(~counted[:, None, :], torch.nan).nanquantile(0.5, dim=0).nan_to_num(0.0)
    return columns_of_counts(middle, fallback)


def sent_matrix(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return a matrix that somebody sent with columns of shares, whatever was in it, and which of these say anything.

    No entry is below 0 or counts for more than 1, and columns sum to 1; an empty one says nothing.
    """
    shares = matrix.clamp(0, 1)
    return columns_of_counts(shares, torch.zeros_like(shares)), shares.sum(0) > 0


def sent_counts(counts: Tensor, samples: int) -> Tensor:
    """Return counts that somebody sent, none below 0 and in all of no more samples than are there."""
    counts = counts.clamp(0, samples)
    return counts * min(1.0, samples / max(float(counts.sum()), 1e-12))


def expected_counts(probabilities: Tensor, coarse: Tensor, matrix: Tensor) -> Tensor:
    """Return the E-step's counts (J, K): each sample spread over the classes by its posterior `p_k M[j, k]`.

    Counts of several sites can be added up before `columns_of_counts`, which is the M-step.
    """
    seen = coarse >= 0
    joint = probabilities[seen] * matrix[coarse[seen]]
    joint = joint / joint.sum(-1, keepdim=True).clamp(min=torch.finfo(joint.dtype).tiny)
    return torch.zeros_like(matrix).index_add_(0, coarse[seen], joint.to(matrix.dtype))


def matrix_of_logits(logits: Tensor) -> Tensor:
    """Return the learnable matrix: a softmax over the coarse names in each column."""
    return torch.softmax(logits, 0)


def logits_of_matrix(matrix: Tensor) -> Tensor:
    """Return free parameters that stand for a matrix."""
    return (matrix + SMALLEST).log()


def frobenius(first: Tensor, second: Tensor) -> float:
    """Return the Frobenius norm of the difference of two matrices."""
    return float(torch.linalg.matrix_norm(first.float() - second.float()))
