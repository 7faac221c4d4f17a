"""A site's correspondence matrix in a round: declared, estimated here, received or learned (docs/methods.md 6.3)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedaccord.errors import ConfigError
from fedaccord.labels.estimation import (
    CORRESPONDENCE,
    estimate_by_counts,
    frobenius,
    logits_of_matrix,
    matrix_of_logits,
    uniform_matrix,
)
from fedaccord.training.work import FIGURES, LocalWork

LEARNED_LOGITS = "correspondence logits"  # in a site's memory: the parameters of the learnable matrix


@dataclass(frozen=True)
class SiteMatrix:
    """Sets the round's matrix in a site's view and memory."""

    source: str  # "declared", "counts", "brief" or "learnable"
    required: bool  # a declared matrix must be complete
    threshold: float
    smoothing: float

    def start(self, work: LocalWork, logits: Tensor) -> None:
        """Set the matrix of the round; raise ConfigError if it should be declared and is not."""
        view = work.view
        if not view.has_own_names:
            return
        if self.source == "declared":
            if self.required and not view.is_known:
                raise ConfigError(
                    f"site '{work.site.name}' does not know what its coarse names stand for; "
                    'use method.correspondence = "estimated"'
                )
            return
        last = work.memory.tensors.get(CORRESPONDENCE, uniform_matrix(len(view.answers), len(view.space)))
        matrix, is_new = self._of_round(work, logits, last)
        if is_new or CORRESPONDENCE in work.memory.tensors:
            remember_matrix(work, matrix.cpu())
        work.view = view.with_matrix(matrix.to(logits.device)).with_offset(view.offset)

    def _of_round(self, work: LocalWork, logits: Tensor, last: Tensor) -> tuple[Tensor, bool]:
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
        matrix, filled = estimate_by_counts(probabilities, target, self.threshold, last.to(device), self.smoothing)
        return matrix, bool(filled.any())


def remember_matrix(work: LocalWork, matrix: Tensor) -> None:
    """Store the matrix in memory; record its change and, if the truth is declared, its error."""
    figures, matrix = work.memory.numbers, matrix.cpu()
    before = work.memory.tensors.get(CORRESPONDENCE)
    if before is not None:
        figures[f"{FIGURES}/matrix_change"] = frobenius(matrix, before)
    declared = work.site.view
    if declared.has_own_names and declared.is_known:
        figures[f"{FIGURES}/matrix_error"] = frobenius(matrix, declared.matrix)
    work.memory.tensors[CORRESPONDENCE] = matrix
