"""Estimates of a coarse site's correspondence `M[j, k] = P(coarse label j | class k)` (docs/methods.md 6.3).

All are pure functions. `coarse` holds the coarse column of each sample, (n,), `classes` its predicted class, and
`probabilities` P(class | sample), (n, K). A sample whose coarse column is -1 is not annotated and is not counted.
"""

from __future__ import annotations

from collections.abc import Sequence

from fedaccord.lazy import Tensor, torch

CORRESPONDENCE = "correspondence"
"""Name of an estimated matrix in messages, in a site's memory and in a model folder."""

SMALLEST = 1e-8  # lower bound of a matrix entry before its logarithm


def uniform_matrix(names: int, classes: int) -> Tensor:
    """Return the uninformative matrix: every coarse name is equally likely given every class."""
    return torch.full((names, classes), 1.0 / names)


def confident(probabilities: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
    """Return the most likely class of each sample, and whether its probability exceeds the threshold."""
    best = probabilities.max(-1)
    return best.indices, best.values > threshold


def pair_counts(coarse: Tensor, classes: Tensor, shape: tuple[int, int]) -> Tensor:
    """Return the number of samples by coarse name and class: float (J, K)."""
    seen = coarse >= 0
    pairs = coarse[seen] * shape[1] + classes[seen]
    return torch.bincount(pairs, minlength=shape[0] * shape[1]).reshape(shape).float()


def columns_of_counts(counts: Tensor, fallback: Tensor, smoothing: float = 0.0) -> Tensor:
    """Return `(count + s) / (total + J s)` for each column; an empty column is taken from the fallback.

    A column of zeros would lose the mass of its class, and the loss would suppress that class.
    """
    total = counts.sum(0, keepdim=True)
    shares = (counts + smoothing) / (total + len(counts) * smoothing).clamp(min=torch.finfo(counts.dtype).tiny)
    return torch.where(total > 0, shares, fallback)


def estimate_by_counts(
    probabilities: Tensor, coarse: Tensor, threshold: float, fallback: Tensor, smoothing: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Return variant E's matrix from confident samples, and the columns that these samples fill: bool (K,)."""
    classes, sure = confident(probabilities, threshold)
    shape = (fallback.shape[0], fallback.shape[1])
    counts = pair_counts(coarse[sure], classes[sure], shape)
    return columns_of_counts(counts, fallback, smoothing), counts.sum(0) > 0


def average_columns(matrices: Sequence[Tensor], valid: Sequence[Tensor], fallback: Tensor) -> Tensor:
    """Return the mean of matrices, each column over those in which it is valid; otherwise from the fallback."""
    stacked, counted = torch.stack(list(matrices)), torch.stack(list(valid)).to(fallback.dtype)
    number = counted.sum(0)
    mean = (stacked * counted[:, None, :]).sum(0) / number.clamp(min=1)
    return torch.where(number > 0, mean, fallback)


def median_columns(matrices: Sequence[Tensor], valid: Sequence[Tensor], fallback: Tensor) -> Tensor:
    """Return the median of matrices, each entry over those in which its column is valid, with normalised columns.

    A column that is never valid, or whose medians are all zero, is taken from the fallback.
    """
    stacked, counted = torch.stack(list(matrices)), torch.stack(list(valid))
    middle = stacked.masked_fill(~counted[:, None, :], torch.nan).nanquantile(0.5, dim=0).nan_to_num(0.0)
    return columns_of_counts(middle, fallback)


def sent_matrix(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return a received matrix with entries clamped to 0..1 and columns normalised, and its non-empty columns."""
    shares = matrix.clamp(0, 1)
    return columns_of_counts(shares, torch.zeros_like(shares)), shares.sum(0) > 0


def sent_counts(counts: Tensor, samples: int) -> Tensor:
    """Return received counts, clamped so that none is negative and their sum is at most the number of samples."""
    counts = counts.clamp(0, samples)
    return counts * min(1.0, samples / max(float(counts.sum()), 1e-12))


def expected_counts(probabilities: Tensor, coarse: Tensor, matrix: Tensor) -> Tensor:
    """Return the counts of the E-step (J, K): each sample counts for the classes by its posterior `p_k M[j, k]`.

    Counts of several sites add up. `columns_of_counts` is the M-step.
    """
    seen = coarse >= 0
    joint = probabilities[seen] * matrix[coarse[seen]]
    joint = joint / joint.sum(-1, keepdim=True).clamp(min=torch.finfo(joint.dtype).tiny)
    return torch.zeros_like(matrix).index_add_(0, coarse[seen], joint.to(matrix.dtype))


def matrix_of_logits(logits: Tensor) -> Tensor:
    """Return the learnable matrix: a softmax over the coarse names in each column."""
    return torch.softmax(logits, 0)


def logits_of_matrix(matrix: Tensor) -> Tensor:
    """Return the free parameters of a matrix."""
    return (matrix + SMALLEST).log()


def frobenius(first: Tensor, second: Tensor) -> float:
    """Return the Frobenius norm of the difference of two matrices."""
    return float(torch.linalg.matrix_norm(first.float() - second.float()))
