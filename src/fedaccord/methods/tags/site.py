"""The site's side of FedHarmony: likelihood and alignment loss, and the tasks that send correlations and counts.

The alignment loss (docs/methods.md 7.3) is the squared distance of the correlations from the teacher. A correlation
is a statistic of all training samples. Running moments approximate it, and the gradient flows through the current batch
only.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from fedaccord.labels.correlation import PairSums, pair_sums, phi, phi_of_sums, tag_sums
from fedaccord.labels.views import NOT_ANNOTATED, View
from fedaccord.labels.views.likelihoods import PRIOR, relative_offset
from fedaccord.messages.message import Message
from fedaccord.methods.tags.settings import FedHarmonySettings
from fedaccord.models.network import predict_logits
from fedaccord.training.objectives import RowObjective
from fedaccord.training.work import Batch, LocalWork

# Names of tasks, and of tensors in messages, memories and the method's state
CORRELATE, COUNT, TEACH = "correlate tags", "count tags", "learn correlations"  # tasks
CORRELATION, PAIRS = "correlation", "correlation pairs"  # a site's correlations, and which pairs are informative
TEACHER, TAUGHT = "teacher", "teacher pairs"  # the same of the consensus of the other sites
BLOCKS = "tag blocks"
COUNTS, FREQUENCIES = "tag counts", "tag frequencies"
ALIGNMENT_SHARE = "alignment_share"  # of a site's training time
ANNOTATED = "counted"  # in a batch: which tags are annotated in its rows


@dataclass(frozen=True)
class Harmony(RowObjective):
    """The view's likelihood plus the alignment of the tags' correlations with the teacher.

    `strength` is relative to the loss of one tag: the likelihood sums over a sample's tags, so the alignment is
    multiplied by their number. With `strength_against = "frequencies"` it is relative to the loss of a model that knows
    the tags' frequencies only, so that the alignment does not outweigh rare tags, whose loss is small.
    """

    settings: FedHarmonySettings = field(default_factory=FedHarmonySettings)
    sends: bool = True  # send the correlations of the trained model

    @property
    def reads_model(self) -> bool:
        """Whether `finish` reads the trained model."""
        return self.sends

    def start(self, work: LocalWork) -> None:
        """Read the teacher, if there is one, and compute the moments with the received model."""
        work.scratch["harmony"], work.scratch["began"] = None, time.perf_counter()
        if self.settings.site_prior:
            _store_prior(work)
        source = work.brief if TEACHER in work.brief.tensors else work.memory
        if TEACHER not in source.tensors or not self.settings.strength:
            return
        known, ids = _known_tags(work), source.tensors.get(BLOCKS)
        blocks = Blocks(torch.zeros(len(known), dtype=torch.int64) if ids is None else ids)
        pairs = blocks.inside(source.tensors[TAUGHT]) & blocks.pairs
        if not bool(pairs.any()):
            return
        began, device = time.perf_counter(), work.site.train.x.device
        annotated = work.scratch["annotated"] = _annotated(work)
        entropy = torch.zeros(1, annotated.shape[1])
        entropy[0, known] = tag_entropy(work.site.train.target[:, known]).cpu()
        running = RunningPhi(known[blocks.index].to(device), _scores(work), annotated, self.settings.beta)
        teacher = blocks.inside(source.tensors[TEACHER].float())
        target = Alignment(teacher.to(device), pairs.to(device), entropy.to(device), running)
        target.seconds = time.perf_counter() - began
        work.scratch["harmony"] = target

    def loss(self, work: LocalWork, batch: Batch) -> Tensor:
        """Return the batch mean of the likelihood plus the alignment."""
        logits = work.model(batch.x)
        loss = work.view.mean_nll(logits, batch.target)
        target = work.scratch["harmony"]
        if target is None:
            return loss
        return loss + self._alignment(target, work.view, logits, work.scratch["annotated"][batch.rows])

    def row_losses(self, view: View, logits: Tensor, batch: Batch) -> Tensor:
        """Return the negative log-likelihood of each row."""
        return view.nll(logits, batch.target)

    def row_state(self, work: LocalWork) -> dict[str, Tensor]:
        """Return which tags are annotated in each row, if the site has a teacher."""
        return {} if work.scratch["harmony"] is None else {ANNOTATED: work.scratch["annotated"]}

    def stack_state(self, works: Sequence[LocalWork]) -> Alignment | None:
        """Return the stacked alignments of sites that train as one program; None without teachers."""
        if works[0].scratch["harmony"] is None:
            return None
        stack = Alignment.stacked([work.scratch["harmony"] for work in works])
        began = min(work.scratch["began"] for work in works)
        for work in works:  # timed per cohort
            stack.seconds += work.scratch["harmony"].seconds
            work.scratch["harmony"], work.scratch["began"] = stack, began
        return stack

    def stacked_size(self, work: LocalWork) -> int:
        """Return the number of values of a site's teacher."""
        return 0 if work.scratch["harmony"] is None else work.scratch["harmony"].pairs.numel()

    def batch_loss(self, joined: Alignment, view: View, logits: Tensor, batch: Batch, mask: Tensor | None) -> Tensor:
        """Return the alignment of each site: logits (sites, B, C) -> (sites,)."""
        joined.keep_first(len(logits))
        if mask is None:
            return self._alignment(joined, view, logits, batch.row_state[ANNOTATED])
        joined.running.complete = False
        return self._alignment(joined, view, logits, batch.row_state[ANNOTATED] & mask[..., None], mask.sum(-1))

    def _alignment(
        self, target: Alignment, view: View, logits: Tensor, annotated: Tensor, rows: Tensor | None = None
    ) -> Tensor:
        """Return the alignment, (...,), of logits (..., B, C); `rows` is the number of rows that are not padding."""
        began = time.perf_counter()
        by_entropy = self.settings.strength_against == "frequencies"
        weight = (annotated * target.entropy if by_entropy else annotated).sum((-2, -1))
        scale = self.settings.strength * weight / (annotated.shape[-2] if rows is None else rows)
        # Differentiate here and pass the gradient on at the logits, so that the time can be measured.
        at = logits.detach().requires_grad_()
        student, seen = target.running.update(torch.sigmoid(view.adjusted(at)), annotated)
        term = scale * alignment_loss(student, target.teacher, target.pairs & seen, self.settings.block_loss == "sum")
        (gradient,) = torch.autograd.grad(term.sum(), at)
        linear = (logits * gradient).sum((-2, -1))
        target.seconds += time.perf_counter() - began
        return linear - linear.detach() + term.detach()

    def finish(self, work: LocalWork, reply: Message) -> None:
        """Add the trained model's correlations and the alignment's share of the time to the reply."""
        began, target = time.perf_counter(), work.scratch["harmony"]
        if self.sends:
            reply.tensors |= send_correlations(work, self.settings.correlation_noise).tensors
        if target is None:
            return
        target.seconds += time.perf_counter() - began
        reply.numbers[ALIGNMENT_SHARE] = target.seconds / max(time.perf_counter() - work.scratch["began"], 1e-9)


def send_tag_counts(work: LocalWork, noise: float) -> Message:
    """Return how often known tags are annotated, occur, and occur together, (3, known, known): a task."""
    sums = tag_sums(work.site.train.target[:, _known_tags(work)].cpu())
    if noise:
        sums = noisy_sums(sums, noise, np.random.default_rng())
    return Message({COUNTS: torch.stack([sums.rows, sums.first, sums.both]).float()})


def remember_teacher(work: LocalWork) -> Message:
    """Replace the teacher, the blocks and the tags' frequencies in the site's memory by those in the brief: a task."""
    for name in (TEACHER, TAUGHT, BLOCKS, FREQUENCIES):
        work.memory.tensors.pop(name, None)  # without other sites there is no new one
        if name in work.brief.tensors:
            work.memory.tensors[name] = work.brief.tensors[name].clone()
    return Message()


def send_correlations(work: LocalWork, noise: float) -> Message:
    """Return phi of the scores of the known tags, and which pairs are informative: a task.

    Noise is not drawn from the run's seed: whoever knows that could subtract it.
    """
    known = _known_tags(work)
    sums = pair_sums(_scores(work)[:, known].cpu(), _annotated(work)[:, known].cpu())
    if noise:
        sums = noisy_sums(sums, noise, np.random.default_rng())
    matrix, pairs = phi_of_sums(sums)
    return Message({CORRELATION: matrix.float(), PAIRS: pairs})


def _known_tags(work: LocalWork) -> Tensor:
    return work.site.view.informs().nonzero().flatten()


def _annotated(work: LocalWork) -> Tensor:
    """Return which known tags are annotated in each row: bool (n, C)."""
    target = work.site.train.target
    return (target != NOT_ANNOTATED) & work.site.view.informs().to(target.device)


def _scores(work: LocalWork) -> Tensor:
    return torch.sigmoid(work.view.adjusted(predict_logits(work.model, work.site.train.x)))


def _store_prior(work: LocalWork) -> None:
    """Train without a prior; store the site's log-odds of tags relative to the federation's for its predictions."""
    work.view = work.view.with_offset(None)
    frequencies = work.memory.tensors.get(FREQUENCIES)
    if frequencies is not None:
        offset = torch.zeros(len(work.view.space))
        target = work.site.train.target[:, _known_tags(work)].cpu()
        offset[_known_tags(work)] = relative_offset(target, frequencies)
        work.memory.tensors[PRIOR] = offset


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


def noisy_sums(sums: PairSums, noise: float, rng: np.random.Generator) -> PairSums:
    """Return sums with Gaussian noise of `noise` times their sensitivity to one row (the Gaussian mechanism).

    A row adds at most 1 to each number, so the sensitivity is the square root of their count. This holds for labels and
    for scores of a fixed model, not for a model trained on these rows. Phi of the noisy sums is post-processing.
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
