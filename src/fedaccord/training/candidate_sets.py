"""The objective of a site with candidate sets."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedaccord.labels.views import View
from fedaccord.messages.message import Message
from fedaccord.training.candidate_losses import PartialLoss
from fedaccord.training.objectives import RowObjective, UpdateFrom
from fedaccord.training.work import Batch, LocalWork

CONFIDENCES = "confidences"
"""Name of the label weights of the training samples in a site's memory, (n, C); they are never sent."""


@dataclass(frozen=True)
class PartialLabels(RowObjective):
    """The batch mean of a loss on candidate sets, whose label weights are updated after each step.

    A site without sets (tags, coarse labels with probabilities) minimises the likelihood of its view.
    """

    partial: PartialLoss
    update_from: UpdateFrom = "step"

    def start(self, work: LocalWork) -> None:
        """Read the annotations as sets and load the label weights of the last round."""
        target = work.site.train.target
        view = work.view
        sets = view.candidate_shares(target) if self.partial.takes_shares else view.candidate_sets(target)
        work.scratch["sets"] = sets
        if sets is None:
            return
        stored = work.memory.tensors.get(CONFIDENCES)
        if stored is None:
            stored = self.partial.initial_weights(sets > 0, view.possible_labels().to(sets.device))
        # A copy, because a round that fails must leave the old memory unchanged.
        work.scratch["weights"] = weights = stored.to(sets.device, copy=True)
        if self.partial.update_weights is not None:
            work.memory.tensors[CONFIDENCES] = weights

    def confidences(self, memory: Message) -> Tensor | None:
        """Return the label weights of the training samples in the site's memory, (n, C)."""
        return memory.tensors.get(CONFIDENCES)

    def row_losses(self, view: View, logits: Tensor, batch: Batch) -> Tensor:
        """Return the loss of each row; without sets, the negative log-likelihood under the view."""
        if "sets" not in batch.row_state:
            return view.nll(logits, batch.target)
        return self.partial.loss(view.adjusted(logits), batch.row_state["sets"], batch.row_state["weights"])

    def row_state(self, work: LocalWork) -> dict[str, Tensor]:
        """Return the sets and label weights, (n, C) each; nothing for a site without sets."""
        names = () if work.scratch["sets"] is None else ("sets", "weights")
        return {name: work.scratch[name] for name in names}

    def updates_from(self) -> UpdateFrom:
        """Return the logits that the label weights are updated from."""
        return "nothing" if self.partial.update_weights is None else self.update_from

    def updated_rows(self, view: View, logits: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return the new label weights of the batch, (..., B, C)."""
        if self.partial.update_weights is None or "sets" not in batch.row_state:
            return {}
        return {"weights": self.partial.update_weights(view.adjusted(logits), batch.row_state["sets"]).float()}
