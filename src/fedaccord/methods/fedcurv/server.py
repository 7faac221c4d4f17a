"""The server's side of FedCurv: it sends each site the sums of the other sites' curvature."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from fedaccord.messages.checks import TensorSpec
from fedaccord.messages.message import Message
from fedaccord.methods.fedcurv.site import CONSTANT, CURVATURE, FISHER, PULLED

if TYPE_CHECKING:
    from fedaccord.federation.server import Server, SiteCard

MODEL = "fisher model"  # prefix in the method's state: the model at which a site's Fisher information was computed


def curvature_brief(server: Server, card: SiteCard) -> Message:
    """Return the sums A, B and c over the other sites that replied in the last round."""
    state = server.state.method
    fisher, models = state.select(FISHER), state.select(MODEL)
    others = [site for site in sorted(fisher) if site != card.name]
    if not others or server.replies is not None:  # with replies present, sites are asked to evaluate only
        return Message()
    information = torch.stack([fisher[site] for site in others])
    at = torch.stack([models[site] for site in others])
    constant = float((information.double() * at.double().square()).sum())
    return Message({CURVATURE: information.sum(0), PULLED: (information * at).sum(0)}, {CONSTANT: constant})


def fisher_spec(server: Server, card: SiteCard) -> dict[str, TensorSpec]:
    """Return the tensors of a reply in addition to the model: the diagonal Fisher information."""
    return {FISHER: TensorSpec((int(server.layout.trainable_mask().sum()),), torch.float32)}


def store_curvature(server: Server) -> None:
    """Replace the stored Fisher information and models by those of this round's replies."""
    if server.replies is None or not len(server.replies):
        return
    stored, trainable = server.state.method.tensors, server.layout.trainable_mask()
    for name in [n for n in stored if n.startswith((f"{FISHER}/", f"{MODEL}/"))]:
        del stored[name]
    replies = server.replies
    for site, message, model in zip(replies.sites, replies.messages, replies.matrix, strict=True):
        stored[f"{FISHER}/{site}"] = message.tensors[FISHER].clamp(min=0)
        stored[f"{MODEL}/{site}"] = model[trainable]
