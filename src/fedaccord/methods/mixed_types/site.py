"""What a site with coarse labels minimises in FedMT and SemiFL (docs/methods.md 6.2).

    loss = R_p + lambda2 * (L_fix + lambda1 * L_mix)

`R_p` is minus the log-likelihood of the coarse label through `M`; `L_fix` holds strongly changed confident
samples to their pseudo-labels; `L_mix` mixes them with any others (Mixup). Where `R_p` is taken over all samples,
`lambda2` is multiplied by the confident share of a batch: few pseudo-labels must not outweigh all coarse labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedaccord.errors import ConfigError, FedAccordError
from fedaccord.labels.estimation import (
    CORRESPONDENCE,
    confident,
    estimate_by_counts,
    expected_counts,
    frobenius,
    logits_of_matrix,
    matrix_of_logits,
    uniform_matrix,
)
from fedaccord.labels.views import View
from fedaccord.messages.message import Message
from fedaccord.methods.mixed_types.augment import Augmentation
from fedaccord.models.predicting import predict_logits
from fedaccord.seeds import derive
from fedaccord.training.local import has_batch_norm
from fedaccord.training.objectives import Reduction, RowObjective
from fedaccord.training.work import FIGURES, Batch, LocalWork

FREE = "correspondence logits"  # in a site's memory: the learnable matrix's free parameters
HINT = 'use method.correspondence = "estimated"'
CONFIDENT = "confident"
COUNTS = "counts"
EXCHANGE, EXCHANGES = "exchange", "exchanges"  # in a question about counts: which of how many in this round
SCORES = "class probabilities"  # in a site's memory between the exchanges of a round, with the round's number


def mix_loss(logits: Tensor, first: Tensor, second: Tensor, share: float) -> Tensor:
    """Return Mixup's loss: `lam CE(f, first) + (1 - lam) CE(f, second)`."""
    log_p = torch.log_softmax(logits, -1)
    return share * F.nll_loss(log_p, first) + (1 - share) * F.nll_loss(log_p, second)


def client_loss(projected: Tensor, fixed: Tensor, mixed: Tensor, lambda1: float, lambda2: float) -> Tensor:
    """Return `R_p + lambda2 (L_fix + lambda1 L_mix)`."""
    return projected + lambda2 * (fixed + lambda1 * mixed)


@dataclass(frozen=True)
class MixedTypes(RowObjective):
    """FedMT's loss at a site; without `projected` it is SemiFL's, which does not look at the coarse labels."""

    augments: ClassVar[bool] = True
    reduction: ClassVar[Reduction] = "sum"

    source: str = "declared"  # of M: the view, "counts": estimated here, "brief": told by the server, "learnable"
    projected: bool = True
    project_on: str = "confident"  # or "all" samples
    posterior: bool = False  # pseudo-labels from `p_k M[coarse label, k]` instead of `p_k`
    threshold: float = 0.95
    lambda1: float = 1.0
    lambda2: float = 1.0
    mixup: float = 0.75
    smoothing: float = 0.0
    sends_matrix: bool = False
    augmentation: Augmentation = field(default_factory=Augmentation)

    def start(self, work: LocalWork) -> None:
        """Make pseudo-labels with the received model, choose the confident samples, and see to the matrix."""
        data = work.site.train
        logits = predict_logits(work.model, data.x)
        self._see_to_matrix(work, logits)
        view = work.view
        chances = view.posterior(logits, data.target) if self.posterior else torch.softmax(view.adjusted(logits), -1)
        pseudo, sure = confident(chances, self.threshold)
        every = torch.arange(len(data), device=sure.device) if work.rows is None else work.rows
        chosen = every[sure[every]]
        if len(chosen) == 1 and has_batch_norm(work.model):
            chosen = chosen[:0]  # a batch of one sample has no variance
        work.memory.numbers[f"{FIGURES}/{CONFIDENT}"] = len(chosen) / max(1, len(every))
        scratch = work.scratch
        scratch["pseudo"], scratch["sure"], scratch["confident"] = pseudo, sure, len(chosen)
        if len(chosen) and self.lambda2:
            drawn = torch.randint(len(every), (len(chosen),), generator=work.random)
            seed = derive(work.seed, "mix", work.site.name, work.round)
            scratch["mix"] = Partners(every[drawn.to(every.device)], torch.Generator().manual_seed(seed))
        work.rows = every if self.project_on == "all" else chosen

    def loss(self, work: LocalWork, batch: Batch) -> Tensor:
        """Return the loss of a batch; samples that are not confident have the projected term alone."""
        weak = [self.augmentation.weak(batch.x, work.random)] if self.projected else []
        changed = self._changed(work, batch)
        strong = [] if changed is None else [changed.strong, *([changed.blend] if self.lambda1 else [])]
        logits = iter(logits_of_parts(work.model, weak + strong))
        zero = batch.x.new_zeros(())
        projected = self._projection(work).mean_nll(next(logits), batch.target) if self.projected else zero
        if changed is None:
            return projected
        fixed = F.cross_entropy(work.view.adjusted(next(logits)), changed.pseudo)
        if not self.lambda1:
            return client_loss(projected, fixed, zero, self.lambda1, self.lambda2 * changed.weight)
        mixed = mix_loss(work.view.adjusted(next(logits)), changed.pseudo, changed.partners, changed.share)
        return client_loss(projected, fixed, mixed, self.lambda1, self.lambda2 * changed.weight)

    def _changed(self, work: LocalWork, batch: Batch) -> _Changed | None:
        """Draw what the confident samples of a batch are changed to; None where nothing is made of them."""
        scratch, rows = work.scratch, batch.rows
        if not self.lambda2:
            return None
        sure = scratch["sure"].index_select(0, rows).nonzero()[:, 0]
        x = batch.x if len(sure) == len(rows) else batch.x.index_select(0, sure)
        if len(x) <= int(has_batch_norm(work.model)):
            return None
        pseudo, weight = scratch["pseudo"].index_select(0, rows.index_select(0, sure)), len(x) / len(rows)
        strong = self.augmentation.strong(x, work.random)
        if not self.lambda1:
            return _Changed(strong, pseudo, x[:0], pseudo[:0], 1.0, weight)
        partners = scratch["mix"].take(len(x))
        share = float(_beta(self.mixup, work.random))
        others = self.augmentation.weak(work.site.train.x.index_select(0, partners), work.random)
        blend = others.lerp_(self.augmentation.weak(x, work.random), share)
        return _Changed(strong, pseudo, blend, scratch["pseudo"].index_select(0, partners), share, weight)

    # The form in which many sites train as one program

    @property
    def uses_labels(self) -> bool:
        """Whether coarse labels are learned from."""
        return self.projected

    def site_view(self, view: View, brief: Message, memory: Message) -> View:
        """Return the view with the correspondence that the site was sent or has found, instead of the declared one."""
        if self.source == "declared" or not view.has_own_names:
            return view
        return view.with_matrix(brief.tensors.get(CORRESPONDENCE, memory.tensors.get(CORRESPONDENCE)))

    def is_batchable(self) -> bool:
        """Say that they may, unless a matrix is learned beside the model."""
        return self.source != "learnable"

    def augment(self, work: LocalWork, batch: Batch) -> Batch:
        """Return all that a step looks at as rows of one batch, with the share that each term has in each row."""
        own = work.scratch["pseudo"].index_select(0, batch.rows)
        parts: list[Batch] = []
        if self.projected:
            weak = self.augmentation.weak(batch.x, work.random)
            parts.append(_rows(batch, weak, own, own, (1 / len(weak), 0.0, 0.0)))
        changed = self._changed(work, batch)
        if changed is not None:
            sure = batch._replace(target=batch.target[work.scratch["sure"].index_select(0, batch.rows)])
            lambda2 = self.lambda2 * changed.weight
            fixed = (0.0, lambda2 / len(changed.strong), 0.0)
            parts.append(_rows(sure, changed.strong, changed.pseudo, changed.pseudo, fixed))
            if len(changed.blend):
                each = lambda2 * self.lambda1 / len(changed.blend)
                mixed = (0.0, each * changed.share, each * (1 - changed.share))
                parts.append(_rows(sure, changed.blend, changed.pseudo, changed.partners, mixed))
        names = parts[0].row_state
        kept = {name: torch.cat([part.row_state[name] for part in parts]) for name in names}
        x, target = torch.cat([part.x for part in parts]), torch.cat([part.target for part in parts])
        return Batch(batch.rows.new_zeros(len(x)), x, target, kept)

    def row_losses(self, view: View, logits: Tensor, batch: Batch) -> Tensor:
        """Return `share_0 R_p + share_1 CE(first) + share_2 CE(second)` of each row."""
        z, shares = view.adjusted(logits), batch.row_state["shares"]
        log_p = torch.log_softmax(z, -1)
        first, second = (-log_p.gather(-1, batch.row_state[name][..., None])[..., 0] for name in ("first", "second"))
        projected = view.nll(logits, batch.target) * shares[..., 0] if self.projected else 0.0
        return projected + shares[..., 1] * first + shares[..., 2] * second

    def finish(self, work: LocalWork, reply: Message) -> None:
        """Tell how many samples were confident; keep the learnable matrix, and send it where it is averaged."""
        reply.numbers[CONFIDENT] = work.scratch["confident"]
        if self.source == "learnable" and work.view.has_own_names:
            work.memory.tensors[FREE] = work.extra_parameters[0].detach().clone()
            self._keep(work, matrix_of_logits(work.extra_parameters[0]).detach())
        if self.sends_matrix and work.view.has_own_names:
            reply.tensors[CORRESPONDENCE] = work.memory.tensors[CORRESPONDENCE]

    def _projection(self, work: LocalWork) -> View:
        """Return the view through which coarse labels are likely, with the matrix as it is learned."""
        view = work.view
        if self.source == "learnable" and view.has_own_names:
            return view.with_matrix(matrix_of_logits(work.extra_parameters[0])).with_offset(view.offset)
        return view

    def _see_to_matrix(self, work: LocalWork, logits: Tensor) -> None:
        """Put the round's matrix into the view and into what the site keeps."""
        view, told = work.view, work.brief.tensors.get(CORRESPONDENCE)
        if not view.has_own_names:
            return
        if self.source == "declared":
            if self.projected and not view.is_known:
                raise ConfigError(f"site '{work.site.name}' does not know what its coarse names stand for; {HINT}")
            return
        device = logits.device
        last = work.memory.tensors.get(CORRESPONDENCE, uniform_matrix(len(view.answers), len(view.space)))
        if self.source == "learnable":
            if told is not None:
                free = logits_of_matrix(told)
            elif FREE in work.memory.tensors:
                free = work.memory.tensors[FREE]
            else:
                free = 0.01 * torch.randn(last.shape, generator=work.random)
            work.extra_parameters = [free.detach().clone().to(device).requires_grad_()]
            matrix, found = matrix_of_logits(free), False  # kept when it has been trained
        elif self.source == "brief":
            matrix, found = (last, False) if told is None else (told, True)
        else:
            chances, target = torch.softmax(logits, -1), work.site.train.target
            matrix, filled = estimate_by_counts(chances, target, self.threshold, last.to(device), self.smoothing)
            found = bool(filled.any())
        if found or CORRESPONDENCE in work.memory.tensors:
            self._keep(work, matrix.cpu())
        work.view = view.with_matrix(matrix.to(device)).with_offset(view.offset)

    def _keep(self, work: LocalWork, matrix: Tensor) -> None:
        """Remember the matrix, how far it moved and, where the truth is declared, how far it is from that."""
        figures, matrix = work.memory.numbers, matrix.cpu()
        before = work.memory.tensors.get(CORRESPONDENCE)
        if before is not None:
            figures[f"{FIGURES}/matrix_change"] = frobenius(matrix, before)
        declared = work.site.view
        if declared.has_own_names and declared.is_known:
            figures[f"{FIGURES}/matrix_error"] = frobenius(matrix, declared.matrix)
        work.memory.tensors[CORRESPONDENCE] = matrix


@dataclass
class Partners:
    """The samples that others are mixed with, handed out without end: all of them in an order, then in a new one."""

    pool: Tensor
    generator: torch.Generator

    def __post_init__(self) -> None:
        self._left = self.pool[:0]

    def take(self, count: int) -> Tensor:
        """Return the next so many."""
        while len(self._left) < count:
            order = torch.randperm(len(self.pool), generator=self.generator)
            self._left = torch.cat([self._left, self.pool[order.to(self.pool.device)]])
        taken, self._left = self._left[:count], self._left[count:]
        return taken


class _Changed(NamedTuple):
    """What a batch's confident samples become."""

    strong: Tensor
    pseudo: Tensor
    blend: Tensor  # with partners; none where nothing is mixed
    partners: Tensor  # their pseudo-labels
    share: float
    weight: float  # the confident share of the batch


def logits_of_parts(model: nn.Module, parts: list[Tensor]) -> Sequence[Tensor]:
    """Return the logits of several batches, from one pass where no layer looks at a batch as a whole."""
    if len(parts) < 2 or has_batch_norm(model):
        return [model(part) for part in parts]
    return model(torch.cat(parts)).split([len(part) for part in parts])


def _rows(batch: Batch, x: Tensor, first: Tensor, second: Tensor, shares: tuple[float, float, float]) -> Batch:
    count = len(x)
    kept = {"first": first[:count], "second": second[:count], "shares": x.new_tensor(shares).expand(count, -1)}
    return Batch(batch.rows[:count], x, batch.target[:count], kept)


@dataclass(frozen=True)
class Counting:
    """A site's answer to the server's question about its coarse names: one J x K matrix, and no sample.

    With a matrix in the brief it holds the E-step's counts under that matrix, otherwise variant E's own estimate with
    zeros in the columns that no confident sample fills. Of several exchanges in a round the first brings the model; its
    scores are kept until the last.
    """

    threshold: float = 0.95
    smoothing: float = 0.0

    def __call__(self, work: LocalWork) -> Message:
        """Answer with the model as it was sent in this round."""
        view, target = work.view, work.site.train.target
        chances = _scores(work)
        told = work.brief.tensors.get(CORRESPONDENCE)
        if told is not None:
            answer = expected_counts(chances, target, told.to(chances.device))
        else:
            empty = torch.zeros(len(view.answers), len(view.space), device=chances.device)
            answer, _ = estimate_by_counts(chances, target, self.threshold, empty, self.smoothing)
        return Message({COUNTS: answer.cpu()})


def _scores(work: LocalWork) -> Tensor:
    """Return P(class | sample) by the round's model, kept from the first exchange of a round to the last."""
    memory, numbers = work.memory, work.brief.numbers
    if not numbers.get(EXCHANGE, 0):
        scores = torch.softmax(predict_logits(work.model, work.site.train.x), -1)
    elif memory.numbers.get(SCORES) == work.round:
        scores = memory.tensors[SCORES].to(work.site.train.x.device)
    else:
        raise FedAccordError(f"site '{work.site.name}' was asked to count without the model of round {work.round}")
    if numbers.get(EXCHANGE, 0) + 1 < numbers.get(EXCHANGES, 1):
        memory.tensors[SCORES], memory.numbers[SCORES] = scores.cpu(), work.round
    else:
        memory.tensors.pop(SCORES, None)
        memory.numbers.pop(SCORES, None)
    return scores


def _beta(a: float, random: torch.Generator) -> Tensor:
    """Draw from Beta(a, a) by two gamma draws; torch.distributions would cost half a second of start-up."""
    two = torch._standard_gamma(torch.full((2,), a), generator=random)
    return two[0] / two.sum().clamp(min=1e-12)
