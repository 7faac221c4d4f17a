"""Head rows weighed by how many samples of each label a site has: what the site tells, and what it counts for."""

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

LABEL_COUNTS = "label counts"  # of a site's training samples, float32


@dataclass(frozen=True)
class SendLabelCounts(Objective):
    """No loss: tells the server how many of the samples that train are of each label, of a set its equal shares."""

    own_rows: bool  # of the labels that the site knows alone

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
    """Weighs a site, for each head row, by how many of its samples are of that label, which the site has to tell."""

    own_rows: bool  # a site tells the counts of the labels it knows alone

    def extras(self, server: Server, card: SiteCard) -> dict[str, TensorSpec]:
        """Return what a reply must hold."""
        labels = int(card.informs.sum()) if self.own_rows else len(card.informs)
        return {LABEL_COUNTS: TensorSpec((labels,), torch.float32)}

    def __call__(self, server: Server, replies: Replies) -> Replies:
        """Return the replies with the counts as weights of the rows; together they are no more than its samples."""
        counts = torch.zeros(replies.informs.shape, dtype=torch.float64)
        for row, message, known in zip(counts, replies.messages, replies.informs, strict=True):
            told = message.tensors[LABEL_COUNTS].double().clamp(min=0)
            row[known] = told if self.own_rows else told[known]
        claimed = counts.sum(1).clamp(min=torch.finfo(torch.float64).tiny)
        return replace(replies, row_weights=counts * (replies.weights / claimed).clamp(max=1)[:, None])
