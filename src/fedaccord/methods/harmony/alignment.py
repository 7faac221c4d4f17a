"""The alignment loss of FedHarmony (docs/methods.md 7.3): squared distance of a site's correlations from its teacher.

A correlation is a statistic of all training samples. Running moments approximate it, and the gradient flows through the
current batch only.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedaccord.labels.correlation import phi
from fedaccord.labels.views import NOT_ANNOTATED


class Blocks:
    """Blocks of tags as one padded table, (blocks, width), so that all blocks are one batched product.

    If several sites train as one program, tables have a first axis of sites.
    """

    def __init__(self, block: Tensor) -> None:
        groups = [(block == number).nonzero().flatten() for number in block.unique().tolist()]
        groups = [group for group in groups if len(group) > 1]  # a single tag has no pair
        width = max((len(group) for group in groups), default=0)
        self.index = torch.zeros(len(groups), width, dtype=torch.int64)
        self.filled = torch.zeros(len(groups), width, dtype=torch.bool)
        for row, group in enumerate(groups):
            self.index[row, : len(group)], self.filled[row, : len(group)] = group, True
        self.pairs = self.filled[:, :, None] & self.filled[:, None, :] & ~torch.eye(width, dtype=torch.bool)

    def inside(self, matrix: Tensor) -> Tensor:
        """Return the blocks of a matrix: (C, C) -> (blocks, width, width)."""
        return matrix[self.index[:, :, None], self.index[:, None, :]]


def block_columns(values: Tensor, index: Tensor) -> Tensor:
    """Return the columns of each block: (..., B, C) -> (..., blocks, B, width)."""
    if index.dim() == 2:
        return values[..., index].transpose(-3, -2)
    flat = index.flatten(-2)[..., None, :].expand(*values.shape[:-1], -1)
    return values.gather(-1, flat).unflatten(-1, index.shape[-2:]).transpose(-3, -2)


class RunningPhi:
    """Phi correlations of scores in each block, from running moments that every batch updates."""

    def __init__(self, index: Tensor, scores: Tensor, annotated: Tensor, beta: float) -> None:
        self.index, self.beta = index, beta
        self.complete = bool(block_columns(annotated, index).all())  # no annotation is missing, so no mask is needed
        self.mean, self.product, self.seen = self._moments(scores, annotated)

    def update(self, scores: Tensor, annotated: Tensor) -> tuple[Tensor, Tensor]:
        """Update the moments with a batch; return the correlations, with gradients, and which pairs have a row."""
        mean, product, seen = self._moments(scores, annotated)
        rate = torch.where(seen, torch.where(self.seen, self.beta, 1.0), 0.0)  # pairs without a row do not change
        mean, product = torch.lerp(self.mean, mean, rate), torch.lerp(self.product, product, rate)
        self.mean, self.product, self.seen = mean.detach(), product.detach(), self.seen | seen
        return phi(mean, mean.mT, product), self.seen

    def _moments(self, scores: Tensor, annotated: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the mean of each pair's first tag, the mean of the product, and which pairs have a row."""
        f = block_columns(scores, self.index)
        if self.complete:
            product = f.mT @ f / f.shape[-2]
            mean = f.mean(-2)[..., None].expand_as(product)
            return mean, product, torch.ones_like(product, dtype=torch.bool)
        m = block_columns(annotated.to(scores.dtype), self.index)
        f = f * m
        rows = m.mT @ m
        divisor = rows.clamp(min=1)
        return f.mT @ m / divisor, f.mT @ f / divisor, rows > 0


@dataclass
class Alignment:
    """The teacher of a site and the running correlations that are aligned with it; or those of several sites, stacked.

    Every tensor of several sites has a first axis of sites.
    """

    teacher: Tensor  # (..., blocks, width, width)
    pairs: Tensor  # bool, like the teacher: informative pairs inside blocks
    entropy: Tensor  # of each tag, (..., 1, C); zero for unknown tags
    running: RunningPhi
    seconds: float = 0.0  # time spent on the alignment

    @classmethod
    def stacked(cls, parts: Sequence[Alignment]) -> Alignment:
        """Return the alignments of several sites as one, padded to equal sizes; padding is not a pair."""
        running = copy.copy(parts[0].running)
        running.complete = all(part.running.complete and part.pairs.shape == parts[0].pairs.shape for part in parts)
        for name in ("index", "mean", "product", "seen"):
            setattr(running, name, _padded([getattr(part.running, name) for part in parts]))
        teacher, pairs = (_padded([getattr(part, name) for part in parts]) for name in ("teacher", "pairs"))
        return cls(teacher, pairs, torch.stack([part.entropy for part in parts]), running)

    def keep_first(self, sites: int) -> None:
        """Drop all but the first `sites` sites of a stack, which still train."""
        if sites < len(self.pairs):
            self.teacher, self.pairs, self.entropy = self.teacher[:sites], self.pairs[:sites], self.entropy[:sites]
            for name in ("index", "mean", "product", "seen"):
                setattr(self.running, name, getattr(self.running, name)[:sites])


def _padded(tensors: Sequence[Tensor]) -> Tensor:
    """Return tensors stacked along a new first axis, padded with zeros to the largest size of every other axis."""
    sizes = [max(lengths) for lengths in zip(*(tensor.shape for tensor in tensors), strict=True)]
    stack = tensors[0].new_zeros(len(tensors), *sizes)
    for place, tensor in zip(stack, tensors, strict=True):
        place[tuple(slice(length) for length in tensor.shape)] = tensor
    return stack


def alignment_loss(student: Tensor, teacher: Tensor, pairs: Tensor, per_block: bool) -> Tensor:
    """Return the sum over blocks of the mean squared difference, or one mean over all pairs: (...,)."""
    squared = torch.where(pairs, (student - teacher).square(), 0.0)
    if per_block:
        return (squared.sum((-2, -1)) / pairs.sum((-2, -1)).clamp(min=1)).sum(-1)
    return squared.sum((-3, -2, -1)) / pairs.sum((-3, -2, -1)).clamp(min=1)


def tag_entropy(target: Tensor) -> Tensor:
    """Return the entropy of each tag's smoothed frequency in nats, (C,), from annotations 1, 0 and -1 (missing)."""
    share = ((target == 1).sum(0) + 1) / ((target != NOT_ANNOTATED).sum(0) + 2)
    return torch.special.entr(share) + torch.special.entr(1 - share)
