"""What a site with candidate sets minimises, and what it comes to believe of each sample's label."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedaccord.labels.views import View
from fedaccord.messages.message import Message
from fedaccord.training.candidate_losses import PartialLoss
from fedaccord.training.objectives import RowObjective, UpdateFrom
from fedaccord.training.work import Batch, LocalWork

CONFIDENCES = "confidences"
"""Where a site's memory keeps the weights of its samples' labels, (samples, labels); they are never sent."""


@dataclass(frozen=True)
class PartialLabels(RowObjective):
    """The batch mean of a loss on candidate sets, with its weights renewed after each step for the batch's samples.

    A site whose annotations are no sets (tags, coarse labels with probabilities) trains on its view's likelihood.
    """

    partial: PartialLoss
    update_from: UpdateFrom = "step"  # the model after the step, or "forward": the logits the loss was computed from

    def start(self, work: LocalWork) -> None:
        """Read the annotations as sets and take up the weights where the last round left them."""
        target = work.site.train.target
        view = work.view
        sets = view.candidate_shares(target) if self.partial.takes_shares else view.candidate_sets(target)
        work.scratch["sets"] = sets
        if sets is None:
            return
        kept = work.memory.tensors.get(CONFIDENCES)
        if kept is None:
            kept = self.partial.begin(sets > 0, view.possible_labels().to(sets.device))
        # A copy: what the site kept before this round must stay as it is until the round has succeeded.
        work.scratch["weights"] = weights = kept.to(sets.device, copy=True)
        if self.partial.renew is not None:
            work.memory.tensors[CONFIDENCES] = weights

    def confidences(self, memory: Message) -> Tensor | None:
        """Return the weights that the site has kept of its samples' labels."""
        return memory.tensors.get(CONFIDENCES)

    def loss(self, work: LocalWork, batch: Batch) -> Tensor:
        """Return the batch mean."""
        batch = _with_kept(batch, self.row_state(work))
        logits = work.model(batch.x)
        work.scratch["forward"] = logits.detach()
        return self.row_losses(work.view, logits, batch).mean()

    def row_losses(self, view: View, logits: Tensor, batch: Batch) -> Tensor:
        """Return the loss of each row; without sets, the view's likelihood."""
        if "sets" not in batch.row_state:
            return view.nll(logits, batch.target)
        return self.partial.loss(view.adjusted(logits), batch.row_state["sets"], batch.row_state["weights"])

    def row_state(self, work: LocalWork) -> dict[str, Tensor]:
        """Return the site's sets and weights; nothing where its annotations are no sets."""
        names = () if work.scratch["sets"] is None else ("sets", "weights")
        return {name: work.scratch[name] for name in names}

    def updates_from(self) -> UpdateFrom:
        """Say by which logits the weights are renewed."""
        return "nothing" if self.partial.renew is None else self.update_from

    def updated_rows(self, view: View, logits: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return the new weights of the batch's samples."""
        if self.partial.renew is None or "sets" not in batch.row_state:
            return {}
        return {"weights": self.partial.renew(view.adjusted(logits), batch.row_state["sets"]).float()}

    @torch.no_grad()
    def after_step(self, work: LocalWork, batch: Batch) -> None:
        """Renew the weights of the batch's samples."""
        if work.scratch["sets"] is None or self.partial.renew is None:
            return
        logits = work.scratch["forward"]
        if self.update_from == "step":
            # In evaluation mode: a second look must not move batch-norm statistics or draw another dropout.
            work.model.eval()
            logits = work.model(batch.x)
            work.model.train()
        new = self.updated_rows(work.view, logits, _with_kept(batch, self.row_state(work)))
        work.scratch["weights"].index_copy_(0, batch.rows, new["weights"])


def _with_kept(batch: Batch, kept: dict[str, Tensor]) -> Batch:
    return batch._replace(row_state={name: tensor.index_select(0, batch.rows) for name, tensor in kept.items()})
