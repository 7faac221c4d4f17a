"""A head of the site's own, for its own coarse names, on the shared encoder: what FedRep and FedTrans train."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

import torch.nn.functional as F
from torch import Tensor, nn

from fedaccord.labels.space import LabelSpace
from fedaccord.labels.views import NOT_ANNOTATED, Exact, View
from fedaccord.messages.message import Message
from fedaccord.methods.mixed_types.augment import Augmentation
from fedaccord.models.network import Network
from fedaccord.models.own_head import OWN_ENCODER, OWN_HEAD, first_head, with_own_head
from fedaccord.training.objectives import Objective
from fedaccord.training.work import Batch, LocalWork


@dataclass(frozen=True)
class OwnHead(Objective):
    """Cross-entropy of the site's own names, through the encoder and a head that is no part of the common model."""

    augmentation: Augmentation = field(default_factory=Augmentation)
    shared: bool = False  # the heads of one set of names are averaged (FedTrans); otherwise they stay (FedRep)

    def start(self, work: LocalWork) -> None:
        """Take the head from the brief or from memory; at first, one that is the same for all sites of such names."""
        there = work.brief.select(OWN_HEAD) or work.memory.select(OWN_HEAD)
        if not there:
            width = cast(Network, work.model).head.in_features
            there = first_head(len(work.view.answers), width, work.seed)
        device = work.received[0].device
        work.extra_parameters = [
            there[name].detach().clone().to(device).requires_grad_() for name in ("weight", "bias")
        ]

    def loss(self, work: LocalWork, batch: Batch) -> Tensor:
        """Return the batch mean."""
        weight, bias = work.extra_parameters
        features = cast(Network, work.model).features(self.augmentation.weak(batch.x, work.random))
        return F.cross_entropy(F.linear(features, weight, bias), batch.target, ignore_index=NOT_ANNOTATED)

    def evaluation_model(self, work: LocalWork, view: View) -> tuple[nn.Module, View] | None:
        """Return the network with the site's own head, once it has one, and a view of its own names."""
        head = work.brief.select(OWN_HEAD) or work.memory.select(OWN_HEAD)
        if not head:
            return None
        return with_own_head(work.model, head, work.brief.select(OWN_ENCODER)), Exact(LabelSpace(view.answers))

    def finish(self, work: LocalWork, reply: Message) -> None:
        """Keep the head, and send it where it is shared."""
        head = {name: own.detach().clone() for name, own in zip(("weight", "bias"), work.extra_parameters, strict=True)}
        work.memory.put(OWN_HEAD, head)
        if self.shared:
            reply.put(OWN_HEAD, head)
