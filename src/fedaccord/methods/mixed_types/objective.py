"""The loss of FedMT and SemiFL at a site with coarse labels (docs/methods.md 6.2).

    loss = R + lambda2 * (L_fix + lambda1 * L_mix)

`R` is the negative log-likelihood of the coarse label through the correspondence `M`; `L_fix` is the cross-entropy of
strongly augmented confident samples with their pseudo-labels; `L_mix` mixes them with other samples (Mixup). If `R` is
taken over all samples, `lambda2` is multiplied by the confident share of a batch, so that a few pseudo-labels do not
outweigh all coarse labels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedaccord.errors import ConfigError
from fedaccord.evaluation.ranges import Range
from fedaccord.federation.pooled_correspondence import COUNTS, class_probabilities, expected_names, remember_matrix
from fedaccord.labels.correspondence import (
    CORRESPONDENCE,
    confident,
    estimate_by_counts,
    logits_of_matrix,
    matrix_of_logits,
    uniform_matrix,
)
from fedaccord.labels.views import View
from fedaccord.messages.message import Message
from fedaccord.methods.mixed_types.augment import (
    Partners,
    draw_share,
    mix_loss,
    strongly_augmented,
    weakly_augmented,
)
from fedaccord.methods.mixed_types.settings import FedMTSettings
from fedaccord.models.network import predict_logits
from fedaccord.seeds import derive
from fedaccord.training.local import has_batch_norm
from fedaccord.training.objectives import Reduction, RowObjective
from fedaccord.training.work import FIGURES, Batch, LocalWork

CONFIDENT = "confident"  # in a reply: the number of confident samples
LEARNED_LOGITS = "correspondence logits"  # in a site's memory: the parameters of the learnable matrix
Source = Literal["declared", "counts", "brief", "learnable"]
"""Where a site has its matrix from: its view, its own estimate, the server, or training."""


def client_loss(projected: Tensor, fixed: Tensor, mixed: Tensor, lambda1: float, lambda2: float) -> Tensor:
    """Return `R + lambda2 (L_fix + lambda1 L_mix)`."""
    return projected + lambda2 * (fixed + lambda1 * mixed)


@dataclass(frozen=True)
class MixedTypes(RowObjective):
    """FedMT's loss at a site; without a source of the matrix it is SemiFL's, which ignores the coarse labels."""

    augments: ClassVar[bool] = True
    reduction: ClassVar[Reduction] = "sum"

    settings: FedMTSettings
    source: Source | None

    @property
    def figures(self) -> Mapping[str, Range]:
        """The share of confident samples."""
        return {CONFIDENT: "share"}

    def start(self, work: LocalWork) -> None:
        """Compute pseudo-labels with the received model, select confident samples, and set the matrix."""
        data = work.site.train
        logits = predict_logits(work.model, data.x)
        self._set_matrix(work, logits)
        if self.settings.pseudo_label == "posterior":  # from `p_k M[coarse label, k]` instead of `p_k`
            probabilities = work.view.posterior(logits, data.target)
        else:
            probabilities = torch.softmax(work.view.adjusted(logits), -1)
        pseudo, sure = confident(probabilities, self.settings.threshold)
        rows = torch.arange(len(data), device=sure.device) if work.rows is None else work.rows
        chosen = rows[sure[rows]]
        if len(chosen) == 1 and has_batch_norm(work.model):
            chosen = chosen[:0]  # a batch of one sample has no variance
        work.memory.numbers[f"{FIGURES}/{CONFIDENT}"] = len(chosen) / max(1, len(rows))
        scratch = work.scratch
        scratch["pseudo"], scratch["sure"], scratch["confident"] = pseudo, sure, len(chosen)
        if len(chosen) and self.settings.lambda2:
            drawn = torch.randint(len(rows), (len(chosen),), generator=work.random)
            seed = derive(work.seed, "mix", work.site.name, work.round)
            scratch["mix"] = Partners(rows[drawn.to(rows.device)], torch.Generator().manual_seed(seed))
        work.rows = rows if self.settings.project_on == "all" else chosen

    def loss(self, work: LocalWork, batch: Batch) -> Tensor:
        """Return the loss of a batch; samples that are not confident only have the term `R`."""
        weak = [weakly_augmented(batch.x, self.settings, work.random)] if self.uses_labels else []
        augmented = self._augment_confident(work, batch)
        strong = [] if augmented is None else [augmented.strong, *([augmented.mixed] if self.settings.lambda1 else [])]
        logits = iter(logits_of_parts(work.model, weak + strong))
        zero = batch.x.new_zeros(())
        projected = self._projection(work).mean_nll(next(logits), batch.target) if self.uses_labels else zero
        if augmented is None:
            return projected
        lambda2 = self.settings.lambda2 * augmented.weight
        fixed = F.cross_entropy(work.view.adjusted(next(logits)), augmented.pseudo)
        if not self.settings.lambda1:
            return client_loss(projected, fixed, zero, self.settings.lambda1, lambda2)
        mixed = mix_loss(work.view.adjusted(next(logits)), augmented.pseudo, augmented.partners, augmented.share)
        return client_loss(projected, fixed, mixed, self.settings.lambda1, lambda2)

    def _augment_confident(self, work: LocalWork, batch: Batch) -> _Augmented | None:
        """Augment and mix the confident samples of a batch; None if they are not used."""
        scratch, rows = work.scratch, batch.rows
        if not self.settings.lambda2:
            return None
        sure = scratch["sure"].index_select(0, rows).nonzero()[:, 0]
        x = batch.x if len(sure) == len(rows) else batch.x.index_select(0, sure)
        if len(x) <= int(has_batch_norm(work.model)):
            return None
        pseudo, weight = scratch["pseudo"].index_select(0, rows.index_select(0, sure)), len(x) / len(rows)
        strong = strongly_augmented(x, self.settings, work.random)
        if not self.settings.lambda1:
            return _Augmented(strong, pseudo, x[:0], pseudo[:0], 1.0, weight)
        partners = scratch["mix"].take(len(x))
        share = draw_share(self.settings.mixup, work.random)
        others = weakly_augmented(work.site.train.x.index_select(0, partners), self.settings, work.random)
        mixed = others.lerp_(weakly_augmented(x, self.settings, work.random), share)
        return _Augmented(strong, pseudo, mixed, scratch["pseudo"].index_select(0, partners), share, weight)

    # Batched training of many sites

    @property
    def uses_labels(self) -> bool:
        """Whether the loss reads coarse labels."""
        return self.source is not None

    def site_view(self, view: View, brief: Message, memory: Message) -> View:
        """Return the view with the correspondence that the site received or estimated instead of the declared one."""
        if self.source in (None, "declared") or not view.has_own_names:
            return view
        return view.with_matrix(brief.tensors.get(CORRESPONDENCE, memory.tensors.get(CORRESPONDENCE)))

    def is_batchable(self) -> bool:
        """Batchable unless a matrix is trained with the model."""
        return self.source != "learnable"

    def augment(self, work: LocalWork, batch: Batch) -> Batch:
        """Return all inputs of a step as rows of one batch, with the weight of each term in each row."""
        own_pseudo = work.scratch["pseudo"].index_select(0, batch.rows)
        parts: list[Batch] = []
        if self.uses_labels:
            weak = weakly_augmented(batch.x, self.settings, work.random)
            parts.append(_weighted_rows(batch, weak, own_pseudo, own_pseudo, (1 / len(weak), 0.0, 0.0)))
        augmented = self._augment_confident(work, batch)
        if augmented is not None:
            sure = batch._replace(target=batch.target[work.scratch["sure"].index_select(0, batch.rows)])
            lambda2 = self.settings.lambda2 * augmented.weight
            fixed = (0.0, lambda2 / len(augmented.strong), 0.0)
            parts.append(_weighted_rows(sure, augmented.strong, augmented.pseudo, augmented.pseudo, fixed))
            if len(augmented.mixed):
                each = lambda2 * self.settings.lambda1 / len(augmented.mixed)
                weights = (0.0, each * augmented.share, each * (1 - augmented.share))
                parts.append(_weighted_rows(sure, augmented.mixed, augmented.pseudo, augmented.partners, weights))
        state = {name: torch.cat([part.row_state[name] for part in parts]) for name in parts[0].row_state}
        x, target = torch.cat([part.x for part in parts]), torch.cat([part.target for part in parts])
        return Batch(batch.rows.new_zeros(len(x)), x, target, state)

    def row_losses(self, view: View, logits: Tensor, batch: Batch) -> Tensor:
        """Return `share_0 R + share_1 CE(first) + share_2 CE(second)` of each row."""
        z, shares = view.adjusted(logits), batch.row_state["shares"]
        log_p = torch.log_softmax(z, -1)
        first, second = (-log_p.gather(-1, batch.row_state[name][..., None])[..., 0] for name in ("first", "second"))
        projected = view.nll(logits, batch.target) * shares[..., 0] if self.uses_labels else 0.0
        return projected + shares[..., 1] * first + shares[..., 2] * second

    def finish(self, work: LocalWork, reply: Message) -> None:
        """Send the number of confident samples; store the learned matrix, and send it if matrices are averaged."""
        reply.numbers[CONFIDENT] = work.scratch["confident"]
        if self.source == "learnable" and work.view.has_own_names:
            work.memory.tensors[LEARNED_LOGITS] = work.extra_parameters[0].detach().clone()
            remember_matrix(work, matrix_of_logits(work.extra_parameters[0]).detach())
        if self.settings.correspondence == "learnable-average" and work.view.has_own_names:
            reply.tensors[CORRESPONDENCE] = work.memory.tensors[CORRESPONDENCE]

    def _projection(self, work: LocalWork) -> View:
        """Return the view, with the current learnable matrix if there is one."""
        view = work.view
        if self.source == "learnable" and view.has_own_names:
            return view.with_matrix(matrix_of_logits(work.extra_parameters[0])).with_offset(view.offset)
        return view

    def _set_matrix(self, work: LocalWork, logits: Tensor) -> None:
        """Set the matrix of the round; raise ConfigError if it should be declared and is not."""
        view = work.view
        if self.source is None or not view.has_own_names:
            return
        if self.source == "declared":
            if not view.is_known:
                raise ConfigError(
                    f"site '{work.site.name}' does not know what its coarse names stand for; "
                    'use method.correspondence = "estimated"'
                )
            return
        last = work.memory.tensors.get(CORRESPONDENCE, uniform_matrix(len(view.answers), len(view.space)))
        matrix, is_new = self._matrix_of_round(work, logits, last)
        if is_new or CORRESPONDENCE in work.memory.tensors:
            remember_matrix(work, matrix.cpu())
        work.view = view.with_matrix(matrix.to(logits.device)).with_offset(view.offset)

    def _matrix_of_round(self, work: LocalWork, logits: Tensor, last: Tensor) -> tuple[Tensor, bool]:
        """Return the matrix, and whether it is a new one to remember."""
        received, device = work.brief.tensors.get(CORRESPONDENCE), logits.device
        if self.source == "learnable":
            if received is not None:
                free = logits_of_matrix(received)
            elif LEARNED_LOGITS in work.memory.tensors:
                free = work.memory.tensors[LEARNED_LOGITS]
            else:
                free = 0.01 * torch.randn(last.shape, generator=work.random)
            work.extra_parameters = [free.detach().clone().to(device).requires_grad_()]
            return matrix_of_logits(free), False  # remembered after training
        if self.source == "brief":
            return (last, False) if received is None else (received, True)
        probabilities, target = torch.softmax(logits, -1), work.site.train.target
        threshold, smoothing = self.settings.threshold, self.settings.smoothing
        matrix, filled = estimate_by_counts(probabilities, target, threshold, last.to(device), smoothing)
        return matrix, bool(filled.any())


class _Augmented(NamedTuple):
    """The confident samples of a batch, augmented and mixed."""

    strong: Tensor
    pseudo: Tensor
    mixed: Tensor  # with partners; empty without Mixup
    partners: Tensor  # pseudo-labels of the partners
    share: float  # of the samples in the mix
    weight: float  # the confident share of the batch


def logits_of_parts(model: nn.Module, parts: list[Tensor]) -> Sequence[Tensor]:
    """Return the logits of several batches, in one forward pass unless the model has batch norm."""
    if len(parts) < 2 or has_batch_norm(model):
        return [model(part) for part in parts]
    return model(torch.cat(parts)).split([len(part) for part in parts])


def _weighted_rows(batch: Batch, x: Tensor, first: Tensor, second: Tensor, shares: tuple[float, float, float]) -> Batch:
    n = len(x)
    state = {"first": first[:n], "second": second[:n], "shares": x.new_tensor(shares).expand(n, -1)}
    return Batch(batch.rows[:n], x, batch.target[:n], state)


def count_names(work: LocalWork, settings: FedMTSettings) -> Message:
    """Return one J x K matrix under the model that was sent in this round: a task.

    With a matrix in the brief it contains the E-step's counts under that matrix. Otherwise it is the site's estimate
    from confident samples, with zeros in empty columns. The model comes with the first exchange of a round; its scores
    are stored until the last one.
    """
    target, matrix = work.site.train.target, work.brief.tensors.get(CORRESPONDENCE)
    if matrix is not None:
        return expected_names(work, matrix, target)
    view, probabilities = work.view, class_probabilities(work)
    empty = torch.zeros(len(view.answers), len(view.space), device=probabilities.device)
    counts, _ = estimate_by_counts(probabilities, target, settings.threshold, empty, settings.smoothing)
    return Message({COUNTS: counts.cpu()})
