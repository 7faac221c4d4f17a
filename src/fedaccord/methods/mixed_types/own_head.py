"""Heads for the sites' own coarse names on the shared encoder: FedRep and FedTrans (docs/methods.md 6.7 and 6.8)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedaccord.aggregation.robust import median
from fedaccord.federation.pooled_correspondence import uses_median
from fedaccord.labels.space import LabelSpace
from fedaccord.labels.views import NOT_ANNOTATED, Exact, View
from fedaccord.messages.checks import TensorSpec
from fedaccord.messages.message import Message
from fedaccord.methods.mixed_types.augment import weakly_augmented
from fedaccord.methods.mixed_types.settings import MixedSiteSettings
from fedaccord.methods.mixed_types.supervised import BEFORE_TUNING
from fedaccord.models.network import OWN_ENCODER, OWN_HEAD, Network, first_head, with_own_head
from fedaccord.training.objectives import Objective
from fedaccord.training.work import Batch, LocalWork

if TYPE_CHECKING:
    from fedaccord.federation.server import Server, SiteCard


# At a site


@dataclass(frozen=True)
class OwnHead(Objective):
    """Cross-entropy of the site's coarse names, through the shared encoder and a head that is not part of the model."""

    settings: MixedSiteSettings
    shared: bool = False  # heads for the same names are averaged (FedTrans); otherwise they stay at the site (FedRep)

    def start(self, work: LocalWork) -> None:
        """Load the head from the brief or from memory; the initial head is the same at all sites with these names."""
        head = work.brief.select(OWN_HEAD) or work.memory.select(OWN_HEAD)
        if not head:
            width = cast(Network, work.model).head.in_features
            head = first_head(len(work.view.answers), width, work.seed)
        device = work.received[0].device
        work.extra_parameters = [head[name].detach().clone().to(device).requires_grad_() for name in ("weight", "bias")]

    def loss(self, work: LocalWork, batch: Batch) -> Tensor:
        """Return the batch mean."""
        weight, bias = work.extra_parameters
        features = cast(Network, work.model).features(weakly_augmented(batch.x, self.settings, work.random))
        return F.cross_entropy(F.linear(features, weight, bias), batch.target, ignore_index=NOT_ANNOTATED)

    def evaluation_model(self, work: LocalWork, view: View) -> tuple[nn.Module, View] | None:
        """Return the network with the site's head and a view of its names; None if it has no head yet."""
        head = work.brief.select(OWN_HEAD) or work.memory.select(OWN_HEAD)
        if not head:
            return None
        return with_own_head(work.model, head, work.brief.select(OWN_ENCODER)), Exact(LabelSpace(view.answers))

    def finish(self, work: LocalWork, reply: Message) -> None:
        """Store the head, and send it if heads are shared."""
        tensors = [parameter.detach().clone() for parameter in work.extra_parameters]
        head = dict(zip(("weight", "bias"), tensors, strict=True))
        work.memory.put(OWN_HEAD, head)
        if self.shared:
            reply.put(OWN_HEAD, head)


# At the server, if heads are shared


def head_spec(server: Server, card: SiteCard) -> dict[str, TensorSpec]:
    """Return the tensors of a reply in addition to the model: the head of the site's names."""
    names, width = card.answers or len(server.space), server.network.head.in_features
    return {
        f"{OWN_HEAD}/weight": TensorSpec((names, width), torch.float32),
        f"{OWN_HEAD}/bias": TensorSpec((names,), torch.float32),
    }


def average_heads(server: Server) -> None:
    """Average the heads of sites with the same names by the weights of their replies: a server step.

    If the models are aggregated by a robust rule, the head is the median.
    """
    if server.replies is None:
        return
    for names in sorted({server.cards[site].names for site in server.replies.sites}):
        rows = [i for i, site in enumerate(server.replies.sites) if server.cards[site].names == names]
        robust = uses_median(server, server.cards[server.replies.sites[rows[0]]], len(rows))
        shares = (server.replies.weights[rows] / server.replies.weights[rows].sum()).float()
        for part in ("weight", "bias"):
            sent = torch.stack([server.replies.messages[i].tensors[f"{OWN_HEAD}/{part}"] for i in rows])
            combined = median(sent) if robust else torch.einsum("s,s...->...", shares, sent)
            server.state.method.tensors[f"{OWN_HEAD}/{names}/{part}"] = combined


def head_brief(server: Server, card: SiteCard) -> Message:
    """Return the head of the site's names, and after fine-tuning the encoder that it belongs to."""
    brief, state = Message(), server.state.method
    brief.put(OWN_HEAD, state.select(f"{OWN_HEAD}/{card.names}"))
    if BEFORE_TUNING in state.tensors:
        before, cut = server.layout.named(state.tensors[BEFORE_TUNING]), len("encoder.")
        brief.put(OWN_ENCODER, {s.name[cut:]: before[s.name] for s in server.layout.slots_of("encoder")})
    return brief
