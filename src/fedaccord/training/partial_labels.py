"""What a site with candidate sets minimises, and what it comes to believe of each sample's label."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedaccord.labels.sets import candidate_sets, known_labels
from fedaccord.labels.views import Candidates
from fedaccord.training.objectives import Objective
from fedaccord.training.partial_losses import PartialLoss
from fedaccord.training.work import Batch, LocalWork

CONFIDENCES = "confidences"
"""Where a site's memory keeps the weights of its samples' labels, (samples, labels); they are never sent."""


@dataclass(frozen=True)
class PartialLabels(Objective):
    """The batch mean of a loss on candidate sets, with its weights renewed after each step for the batch's samples.

    A site whose annotations are no sets (tags, coarse labels with probabilities) trains on its view's likelihood.
    """

    partial: PartialLoss
    renewed_from: str = "step"  # by the model after the step, or "forward": by the logits the loss was computed from

    def start(self, work: LocalWork) -> None:
        """Read the annotations as sets and take up the weights where the last round left them."""
        target = work.site.train.target
        sets = candidate_sets(work.view, target)
        if sets is None and self.partial.takes_shares and isinstance(work.view, Candidates):
            sets = target * known_labels(work.view).to(target.device)  # a hostile site's mixed sets
        work.scratch["sets"] = sets
        if sets is None:
            return
        kept = work.memory.tensors.get(CONFIDENCES)
        if kept is None:
            kept = self.partial.begin(sets > 0, known_labels(work.view).to(sets.device))
        # A copy: what the site kept before this round must stay as it is until the round has succeeded.
        work.scratch["weights"] = weights = kept.to(sets.device, copy=True)
        if self.partial.renew is not None:
            work.memory.tensors[CONFIDENCES] = weights

    def loss(self, work: LocalWork, batch: Batch) -> Tensor:
        """Return the batch mean."""
        logits = work.model(batch.x)
        sets = work.scratch["sets"]
        if sets is None:
            return work.view.mean_nll(logits, batch.target)
        z = work.view.adjusted(logits)
        work.scratch["forward"] = z.detach()
        rows = batch.rows
        return self.partial.loss(z, sets.index_select(0, rows), work.scratch["weights"].index_select(0, rows)).mean()

    @torch.no_grad()
    def stepped(self, work: LocalWork, batch: Batch) -> None:
        """Renew the weights of the batch's samples."""
        sets, renew = work.scratch["sets"], self.partial.renew
        if sets is None or renew is None:
            return
        z = work.scratch["forward"]
        if self.renewed_from == "step":
            # In evaluation mode: a second look must not move batch-norm statistics or draw another dropout.
            work.model.eval()
            z = work.view.adjusted(work.model(batch.x))
            work.model.train()
        work.scratch["weights"].index_copy_(0, batch.rows, renew(z, sets.index_select(0, batch.rows)).float())
