"""Weights of head rows by label counts, `label_weight = "per_label"` (docs/methods.md 4.1)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedaccord.aggregation.replies import Replies
from fedaccord.messages.checks import TensorSpec
from fedaccord.messages.message import Message
from fedaccord.training.objectives import Objective
from fedaccord.training.work import Batch, LocalWork

if TYPE_CHECKING:
    from fedaccord.federation.server import Server, SiteCard

LABEL_COUNTS = "label counts"  # in a reply: of the training samples, float32


@dataclass(frozen=True)
class SendLabelCounts(Objective):
    """A term without loss that sends the number of training samples of each label; a candidate counts as a fraction."""

    own_rows: bool  # send the counts of known labels only

    def loss(self, work: LocalWork, batch: Batch) -> Tensor:
        """Return zero."""
        return batch.x.new_zeros(())

    def finish(self, work: LocalWork, reply: Message) -> None:
        """Add the counts to the reply."""
        view, target = work.site.view, work.site.train.target
        if work.rows is not None:
            target = target[work.rows]
        counts = view.posterior(torch.zeros(len(target), len(view.space), device=target.device), target).sum(0)
        reply.tensors[LABEL_COUNTS] = counts[view.informs().to(counts.device)] if self.own_rows else counts


@dataclass(frozen=True)
class LabelCountWeights:
    """Weight a site's rows of the head by its label counts."""

    own_rows: bool  # counts cover the site's known labels only

    def extras(self, server: Server, card: SiteCard) -> dict[str, TensorSpec]:
        """Return the tensors of a reply in addition to the model."""
        labels = int(card.informs.sum()) if self.own_rows else len(card.informs)
        return {LABEL_COUNTS: TensorSpec((labels,), torch.float32)}

    def __call__(self, server: Server, replies: Replies) -> Replies:
        """Return the replies with counts as row weights; a site's counts sum to at most its sample count."""
        counts = torch.zeros(replies.informs.shape, dtype=torch.float64)
        for row, message, known in zip(counts, replies.messages, replies.informs, strict=True):
            sent = message.tensors[LABEL_COUNTS].double().clamp(min=0)
            row[known] = sent if self.own_rows else sent[known]
        claimed = counts.sum(1).clamp(min=torch.finfo(torch.float64).tiny)
        return replace(replies, row_weights=counts * (replies.weights / claimed).clamp(max=1)[:, None])
