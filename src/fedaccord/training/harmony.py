"""What a site with tags minimises in FedHarmony, and what it tells of how its tags go together (methods.md 3.2, 3.3).

The likelihood of the site's annotations plus `lambda` times the distance of the tags' correlations from what the other
sites agree on. A correlation is a statistic of the whole training part: running moments stand for it, and the gradient
flows through the batch.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedaccord.labels.correlation import PairSums, noisy_sums, pair_sums, phi, phi_of_sums, tag_sums
from fedaccord.labels.prior import PRIOR, relative_offset
from fedaccord.labels.views import NOT_ANNOTATED
from fedaccord.messages.message import Message
from fedaccord.models.predicting import predict_logits
from fedaccord.training.objectives import Objective
from fedaccord.training.work import Batch, LocalWork

CORRELATION, PAIRS = "correlation", "correlation pairs"  # of a site, in its replies
TEACHER, TAUGHT, BLOCKS = "teacher", "teacher pairs", "tag blocks"  # what the others agree on, in briefs and memories
COUNTS, FREQUENCIES = "tag counts", "tag frequencies"
ALIGNMENT_SHARE = "alignment_share"  # of a site's training time


class Blocks:
    """Tags in blocks as one padded table, (blocks, widest), so that all blocks are one batched product."""

    def __init__(self, block: Tensor) -> None:
        groups = [(block == number).nonzero().flatten() for number in block.unique().tolist()]
        groups = [group for group in groups if len(group) > 1]  # a single tag has no pair
        width = max((len(group) for group in groups), default=0)
        self.index = torch.zeros(len(groups), width, dtype=torch.int64)
        self.there = torch.zeros(len(groups), width, dtype=torch.bool)
        for row, group in enumerate(groups):
            self.index[row, : len(group)], self.there[row, : len(group)] = group, True
        self.pairs = self.there[:, :, None] & self.there[:, None, :] & ~torch.eye(width, dtype=torch.bool)

    def inside(self, matrix: Tensor) -> Tensor:
        """Return the blocks of a matrix (C, C): (blocks, widest, widest)."""
        return matrix[self.index[:, :, None], self.index[:, None, :]]

    def columns(self, values: Tensor) -> Tensor:
        """Return the columns of rows (B, C) block by block: (blocks, B, widest)."""
        return values[:, self.index].transpose(0, 1)


class RunningPhi:
    """Correlations of scores block by block, from moments over the training part that follow each batch."""

    def __init__(self, blocks: Blocks, scores: Tensor, counted: Tensor, beta: float) -> None:
        self.blocks, self.beta, self.whole = blocks, beta, bool(counted.all())
        self.mean, self.both, self.seen = self._moments(scores, counted)

    def follow(self, scores: Tensor, counted: Tensor) -> tuple[Tensor, Tensor]:
        """Take in a batch; returns the correlations, with a gradient through the batch, and which are known."""
        mean, both, seen = self._moments(scores, counted)
        share = torch.where(seen, torch.where(self.seen, self.beta, 1.0), 0.0)  # what is not in the batch stays
        mean, both = torch.lerp(self.mean, mean, share), torch.lerp(self.both, both, share)
        self.mean, self.both, self.seen = mean.detach(), both.detach(), self.seen | seen
        return phi(mean, mean.transpose(1, 2), both), self.seen

    def _moments(self, scores: Tensor, counted: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the mean of each pair's first tag, the mean of the product, and which pairs have a row."""
        f = self.blocks.columns(scores)
        if self.whole:
            both = f.transpose(1, 2) @ f / len(scores)
            mean = f.mean(1)[:, :, None].expand_as(both)
            return mean, both, torch.ones_like(both, dtype=torch.bool)
        m = self.blocks.columns(counted.to(scores.dtype))
        f = f * m
        rows = m.transpose(1, 2) @ m
        there = rows.clamp(min=1)
        return f.transpose(1, 2) @ m / there, f.transpose(1, 2) @ f / there, rows > 0


def alignment(student: Tensor, teacher: Tensor, pairs: Tensor, per_block: bool) -> Tensor:
    """Return the mean squared difference over the pairs of each block, added up; or over all pairs together."""
    squared = torch.where(pairs, (student - teacher).square(), 0.0)
    if per_block:
        return (squared.sum((1, 2)) / pairs.sum((1, 2)).clamp(min=1)).sum()
    return squared.sum() / pairs.sum().clamp(min=1)


def tag_entropy(target: Tensor) -> Tensor:
    """Return the entropy of each tag in nats, (C,), of its frequency among annotations of 1, 0 and -1, smoothed."""
    share = ((target == 1).sum(0) + 1) / ((target != NOT_ANNOTATED).sum(0) + 2)
    return torch.special.entr(share) + torch.special.entr(1 - share)


@dataclass(frozen=True)
class Harmony(Objective):
    """The view's likelihood with the tags' correlations drawn to those of the other sites.

    `strength` weighs the alignment against the loss of one tag: as the likelihood adds up the losses of a sample's
    tags, it is multiplied by their number. With `by_entropy` it is against the loss of a model that knows the tags'
    frequencies only: tags that hardly ever occur cost little, and what is rare must not be drowned by its alignment.
    """

    strength: float = 1.0
    beta: float = 0.5
    per_block: bool = True
    sends: bool = True  # the trained model's correlations go with it
    noise: float = 0.0
    by_entropy: bool = False
    prior: bool = False  # the site's own tag frequencies are added when it predicts, not when it trains

    def start(self, work: LocalWork) -> None:
        """Take up the teacher, where there is one, and the moments of the training part."""
        work.scratch["harmony"] = None
        work.scratch["seconds"], work.scratch["began"] = 0.0, time.perf_counter()
        if self.prior:
            _use_prior(work)
        told = work.brief if TEACHER in work.brief.tensors else work.memory
        if TEACHER not in told.tensors or not self.strength:
            return
        known, counted = _known(work), _counted(work)
        ids = told.tensors.get(BLOCKS)
        blocks = Blocks(torch.zeros(len(known), dtype=torch.int64) if ids is None else ids)
        pairs = blocks.inside(told.tensors[TAUGHT]) & blocks.pairs
        if not bool(pairs.any()):
            return
        began, device = time.perf_counter(), work.site.train.x.device
        work.scratch["entropy"] = tag_entropy(work.site.train.target[:, known]).to(device)
        work.scratch["harmony"] = (
            known, counted, blocks.inside(told.tensors[TEACHER].float()).to(device), pairs.to(device),
            RunningPhi(blocks, _scores(work)[:, known], counted, self.beta),
        )  # fmt: skip
        work.scratch["seconds"] = time.perf_counter() - began

    def loss(self, work: LocalWork, batch: Batch) -> Tensor:
        """Return the batch mean of the likelihood plus the alignment."""
        logits = work.model(batch.x)
        loss = work.view.mean_nll(logits, batch.target)
        if work.scratch["harmony"] is None:
            return loss
        began = time.perf_counter()
        known, counted, teacher, pairs, running = work.scratch["harmony"]
        annotated = counted[batch.rows]
        weight = annotated * work.scratch["entropy"] if self.by_entropy else annotated
        scale = self.strength * float(weight.sum()) / len(annotated)
        # Its gradient is taken here and handed on at the logits, so that its cost can be told apart.
        at = logits.detach().requires_grad_()
        scores = torch.sigmoid(work.view.adjusted(at))[:, known]
        student, seen = running.follow(scores, annotated)
        term = scale * alignment(student, teacher, pairs & seen, self.per_block)
        (slope,) = torch.autograd.grad(term, at)
        work.scratch["seconds"] += time.perf_counter() - began
        handed = (logits * slope).sum()
        return loss + handed - handed.detach() + term.detach()

    def finish(self, work: LocalWork, reply: Message) -> None:
        """Send the trained model's correlations, and what the alignment cost, if there was any."""
        began = time.perf_counter()
        if self.sends:
            reply.tensors |= correlations(work, self.noise)
        if work.scratch["harmony"] is None:
            return
        spent = work.scratch["seconds"] + time.perf_counter() - began
        reply.numbers[ALIGNMENT_SHARE] = spent / max(time.perf_counter() - work.scratch["began"], 1e-9)


@dataclass(frozen=True)
class Correlating:
    """A task: tell how the tags' scores by the received model go together."""

    noise: float = 0.0

    def __call__(self, work: LocalWork) -> Message:
        """Answer with the site's correlations."""
        return Message(correlations(work, self.noise))


@dataclass(frozen=True)
class CountingTags:
    """A task: tell how often tags are annotated, occur, and occur together."""

    noise: float = 0.0

    def __call__(self, work: LocalWork) -> Message:
        """Answer with three matrices over the tags the site knows."""
        sums = tag_sums(work.site.train.target[:, _known(work)].cpu())
        if self.noise:
            sums = noisy_sums(sums, self.noise, np.random.default_rng())
        return Message({COUNTS: torch.stack([sums.rows, sums.first, sums.both]).float()})


def remember_teacher(work: LocalWork) -> Message:
    """Keep, as a task, what the other sites agree on, told once and not in every round; forget what it was before."""
    for name in (TEACHER, TAUGHT, BLOCKS, FREQUENCIES):
        work.memory.tensors.pop(name, None)  # with no other site left, there is no new one
        if name in work.brief.tensors:
            work.memory.tensors[name] = work.brief.tensors[name].clone()
    return Message()


def correlations(work: LocalWork, noise: float) -> dict[str, Tensor]:
    """Return phi of the scores of the tags that a site knows, and the pairs it says something of.

    Noise comes from the machine and not from the run's seed, which others know and could take it out by.
    """
    known = _known(work)
    sums: PairSums = pair_sums(_scores(work)[:, known].cpu(), _counted(work).cpu())
    if noise:
        sums = noisy_sums(sums, noise, np.random.default_rng())
    found, pairs = phi_of_sums(sums)
    return {CORRELATION: found.float(), PAIRS: pairs}


def _known(work: LocalWork) -> Tensor:
    return work.site.view.informs().nonzero().flatten()


def _counted(work: LocalWork) -> Tensor:
    """Return which of the known tags are annotated in each row: bool (n, known)."""
    return work.site.train.target[:, _known(work)] != NOT_ANNOTATED


def _scores(work: LocalWork) -> Tensor:
    return torch.sigmoid(work.view.adjusted(predict_logits(work.model, work.site.train.x)))


def _use_prior(work: LocalWork) -> None:
    """Train without the site's frequencies, and keep for its predictions by how much they differ from everybody's."""
    work.view = work.view.with_offset(None)
    everybody = work.memory.tensors.get(FREQUENCIES)
    if everybody is not None:
        whole = torch.zeros(len(work.view.space))
        target = work.site.train.target[:, _known(work)].cpu()
        whole[_known(work)] = relative_offset(target, everybody)
        work.memory.tensors[PRIOR] = whole
