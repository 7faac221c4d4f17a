"""The objective of a site in FedHarmony, and the correlations of its tags (docs/methods.md 7.1, 7.3).

The likelihood of the site's annotations plus `lambda` times the distance of the tags' correlations from what the other
sites agree on. A correlation is a statistic of the whole training part: running moments stand for it, and the gradient
flows through the batch.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedaccord.labels.correlation import PairSums, noisy_sums, pair_sums, phi, phi_of_sums, tag_sums
from fedaccord.labels.prior import PRIOR, relative_offset
from fedaccord.labels.views import NOT_ANNOTATED, View
from fedaccord.messages.message import Message
from fedaccord.models.predicting import predict_logits
from fedaccord.training.objectives import RowObjective
from fedaccord.training.work import Batch, LocalWork

CORRELATION, PAIRS = "correlation", "correlation pairs"  # of a site, in its replies
TEACHER, TAUGHT, BLOCKS = "teacher", "teacher pairs", "tag blocks"  # what the others agree on, in briefs and memories
COUNTS, FREQUENCIES = "tag counts", "tag frequencies"
COUNTED = "counted"  # what a batch keeps: which tags are annotated in its rows
ALIGNMENT_SHARE = "alignment_share"  # of a site's training time


class Blocks:
    """Tags in blocks as one padded table, (blocks, widest), so that all blocks are one batched product.

    Of sites that train as one program, every table has a first axis of sites.
    """

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


def columns(values: Tensor, index: Tensor) -> Tensor:
    """Return the columns of rows (..., B, C) block by block: (..., blocks, B, widest)."""
    if index.dim() == 2:
        return values[..., index].transpose(-3, -2)
    flat = index.flatten(-2)[..., None, :].expand(*values.shape[:-1], -1)
    return values.gather(-1, flat).unflatten(-1, index.shape[-2:]).transpose(-3, -2)


class RunningPhi:
    """Correlations of scores block by block, from moments over the training part that follow each batch."""

    def __init__(self, index: Tensor, scores: Tensor, counted: Tensor, beta: float) -> None:
        self.index, self.beta = index, beta
        self.whole = bool(columns(counted, index).all())  # nothing is missing, so nothing need be masked
        self.mean, self.both, self.seen = self._moments(scores, counted)

    def follow(self, scores: Tensor, counted: Tensor) -> tuple[Tensor, Tensor]:
        """Take in a batch; returns the correlations, with a gradient through the batch, and which are known."""
        mean, both, seen = self._moments(scores, counted)
        share = torch.where(seen, torch.where(self.seen, self.beta, 1.0), 0.0)  # what is not in the batch stays
        mean, both = torch.lerp(self.mean, mean, share), torch.lerp(self.both, both, share)
        self.mean, self.both, self.seen = mean.detach(), both.detach(), self.seen | seen
        return phi(mean, mean.mT, both), self.seen

    def _moments(self, scores: Tensor, counted: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the mean of each pair's first tag, the mean of the product, and which pairs have a row."""
        f = columns(scores, self.index)
        if self.whole:
            both = f.mT @ f / f.shape[-2]
            mean = f.mean(-2)[..., None].expand_as(both)
            return mean, both, torch.ones_like(both, dtype=torch.bool)
        m = columns(counted.to(scores.dtype), self.index)
        f = f * m
        rows = m.mT @ m
        there = rows.clamp(min=1)
        return f.mT @ m / there, f.mT @ f / there, rows > 0


@dataclass
class Lesson:
    """What a site's correlations are drawn to, and where they are: of one site, or of several in a stack."""

    teacher: Tensor  # (..., blocks, widest, widest)
    pairs: Tensor
    entropy: Tensor  # of the tags, (..., 1, C); zero where the site does not know one
    running: RunningPhi
    seconds: float = 0.0  # that the alignment took

    @classmethod
    def stacked(cls, lessons: Sequence[Lesson]) -> Lesson:
        """Return the lessons of several sites as one; places that a site does not have are no pairs."""
        running = copy.copy(lessons[0].running)
        running.whole = all(lesson.running.whole and lesson.pairs.shape == lessons[0].pairs.shape for lesson in lessons)
        for name in ("index", "mean", "both", "seen"):
            setattr(running, name, _padded([getattr(lesson.running, name) for lesson in lessons]))
        teacher, pairs = (_padded([getattr(lesson, name) for lesson in lessons]) for name in ("teacher", "pairs"))
        return cls(teacher, pairs, torch.stack([lesson.entropy for lesson in lessons]), running)

    def keep_first(self, sites: int) -> None:
        """Forget those of a stack that do not train any longer."""
        if sites < len(self.pairs):
            self.teacher, self.pairs, self.entropy = self.teacher[:sites], self.pairs[:sites], self.entropy[:sites]
            for name in ("index", "mean", "both", "seen"):
                setattr(self.running, name, getattr(self.running, name)[:sites])


def _padded(tensors: Sequence[Tensor]) -> Tensor:
    """Return tensors as one with a first axis, filled up with zeros to the largest size of each other axis."""
    sizes = [max(lengths) for lengths in zip(*(tensor.shape for tensor in tensors), strict=True)]
    whole = tensors[0].new_zeros(len(tensors), *sizes)
    for place, tensor in zip(whole, tensors, strict=True):
        place[tuple(slice(length) for length in tensor.shape)] = tensor
    return whole


def alignment(student: Tensor, teacher: Tensor, pairs: Tensor, per_block: bool) -> Tensor:
    """Return the mean squared difference over the pairs of each block, added up; or over all pairs together."""
    squared = torch.where(pairs, (student - teacher).square(), 0.0)
    if per_block:
        return (squared.sum((-2, -1)) / pairs.sum((-2, -1)).clamp(min=1)).sum(-1)
    return squared.sum((-3, -2, -1)) / pairs.sum((-3, -2, -1)).clamp(min=1)


def tag_entropy(target: Tensor) -> Tensor:
    """Return the entropy of each tag in nats, (C,), of its frequency among annotations of 1, 0 and -1, smoothed."""
    share = ((target == 1).sum(0) + 1) / ((target != NOT_ANNOTATED).sum(0) + 2)
    return torch.special.entr(share) + torch.special.entr(1 - share)


@dataclass(frozen=True)
class Harmony(RowObjective):
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

    @property
    def reads_model(self) -> bool:
        """Whether the trained model is looked at in the end."""
        return self.sends

    def start(self, work: LocalWork) -> None:
        """Take up the teacher, where there is one, and the moments of the training part."""
        work.scratch["harmony"], work.scratch["began"] = None, time.perf_counter()
        if self.prior:
            _use_prior(work)
        told = work.brief if TEACHER in work.brief.tensors else work.memory
        if TEACHER not in told.tensors or not self.strength:
            return
        known, ids = _known(work), told.tensors.get(BLOCKS)
        blocks = Blocks(torch.zeros(len(known), dtype=torch.int64) if ids is None else ids)
        pairs = blocks.inside(told.tensors[TAUGHT]) & blocks.pairs
        if not bool(pairs.any()):
            return
        began, device = time.perf_counter(), work.site.train.x.device
        counted = work.scratch["counted"] = _annotated(work)
        entropy = torch.zeros(1, counted.shape[1])
        entropy[0, known] = tag_entropy(work.site.train.target[:, known]).cpu()
        running = RunningPhi(known[blocks.index].to(device), _scores(work), counted, self.beta)
        teacher = blocks.inside(told.tensors[TEACHER].float())
        lesson = Lesson(teacher.to(device), pairs.to(device), entropy.to(device), running)
        lesson.seconds = time.perf_counter() - began
        work.scratch["harmony"] = lesson

    def loss(self, work: LocalWork, batch: Batch) -> Tensor:
        """Return the batch mean of the likelihood plus the alignment."""
        logits = work.model(batch.x)
        loss = work.view.mean_nll(logits, batch.target)
        lesson = work.scratch["harmony"]
        return loss if lesson is None else loss + self._aligned(lesson, work.view, logits, _counted_in(work, batch))

    def row_losses(self, view: View, logits: Tensor, batch: Batch) -> Tensor:
        """Return the likelihood of each row."""
        return view.nll(logits, batch.target)

    def row_state(self, work: LocalWork) -> dict[str, Tensor]:
        """Return which tags are annotated in the rows of a site that has a teacher."""
        return {} if work.scratch["harmony"] is None else {COUNTED: work.scratch["counted"]}

    def stack_state(self, works: Sequence[LocalWork]) -> Lesson | None:
        """Return what sites that train as one program are taught."""
        if works[0].scratch["harmony"] is None:
            return None
        whole = Lesson.stacked([work.scratch["harmony"] for work in works])
        began = min(work.scratch["began"] for work in works)
        for work in works:  # the time they take is that of all
            whole.seconds += work.scratch["harmony"].seconds
            work.scratch["harmony"], work.scratch["began"] = whole, began
        return whole

    def stacked_size(self, work: LocalWork) -> int:
        """Return how large a site's matrices are."""
        return 0 if work.scratch["harmony"] is None else work.scratch["harmony"].pairs.numel()

    def batch_loss(self, joined: Lesson, view: View, logits: Tensor, batch: Batch, own: Tensor | None) -> Tensor:
        """Return the alignment of each of several sites."""
        joined.keep_first(len(logits))
        if own is None:
            return self._aligned(joined, view, logits, batch.row_state[COUNTED])
        joined.running.whole = False
        return self._aligned(joined, view, logits, batch.row_state[COUNTED] & own[..., None], own.sum(-1))

    def _aligned(
        self, lesson: Lesson, view: View, logits: Tensor, counted: Tensor, rows: Tensor | None = None
    ) -> Tensor:
        """Return the alignment, (...,), of a batch with logits (..., B, C); `rows` says how many rows are real."""
        began = time.perf_counter()
        weight = (counted * lesson.entropy if self.by_entropy else counted).sum((-2, -1))
        scale = self.strength * weight / (counted.shape[-2] if rows is None else rows)
        # Its gradient is taken here and handed on at the logits, so that its cost can be told apart.
        at = logits.detach().requires_grad_()
        student, seen = lesson.running.follow(torch.sigmoid(view.adjusted(at)), counted)
        term = scale * alignment(student, lesson.teacher, lesson.pairs & seen, self.per_block)
        (slope,) = torch.autograd.grad(term.sum(), at)
        handed = (logits * slope).sum((-2, -1))
        lesson.seconds += time.perf_counter() - began
        return handed - handed.detach() + term.detach()

    def finish(self, work: LocalWork, reply: Message) -> None:
        """Send the trained model's correlations, and what the alignment cost, if there was any."""
        began, lesson = time.perf_counter(), work.scratch["harmony"]
        if self.sends:
            reply.tensors |= correlations(work, self.noise)
        if lesson is None:
            return
        lesson.seconds += time.perf_counter() - began
        reply.numbers[ALIGNMENT_SHARE] = lesson.seconds / max(time.perf_counter() - work.scratch["began"], 1e-9)


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
    sums: PairSums = pair_sums(_scores(work)[:, known].cpu(), _annotated(work)[:, known].cpu())
    if noise:
        sums = noisy_sums(sums, noise, np.random.default_rng())
    found, pairs = phi_of_sums(sums)
    return {CORRELATION: found.float(), PAIRS: pairs}


def _known(work: LocalWork) -> Tensor:
    return work.site.view.informs().nonzero().flatten()


def _annotated(work: LocalWork) -> Tensor:
    """Return which tags are annotated in each row, of those that the site knows: bool (n, C)."""
    target = work.site.train.target
    return (target != NOT_ANNOTATED) & work.site.view.informs().to(target.device)


def _counted_in(work: LocalWork, batch: Batch) -> Tensor:
    counted: Tensor = work.scratch["counted"]
    return counted[batch.rows]


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
