"""The server's side of FedCurv (Shoham et al. 2019): each site is told the others' curvature as two sums."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from fedaccord.messages.checks import TensorSpec
from fedaccord.messages.message import Message
from fedaccord.methods.fedcurv.site import CONSTANT, CURVATURE, FISHER, PULLED

if TYPE_CHECKING:
    from fedaccord.federation.server import Server, SiteCard

MODEL = "fisher model"  # prefix in the method's state: the model at which a site's Fisher information was taken


def tell_curvature(server: Server, card: SiteCard) -> Message:
    """Return the brief's part for a site: the sums over the other sites of the last round."""
    kept = server.state.method
    fisher, models = kept.select(FISHER), kept.select(MODEL)
    others = [site for site in sorted(fisher) if site != card.name]
    if not others or server.replies is not None:  # with replies at hand sites are asked to evaluate only
        return Message()
    sure = torch.stack([fisher[site] for site in others])
    at = torch.stack([models[site] for site in others])
    constant = float((sure.double() * at.double().square()).sum())
    return Message({CURVATURE: sure.sum(0), PULLED: (sure * at).sum(0)}, {CONSTANT: constant})


def fisher_spec(server: Server, card: SiteCard) -> dict[str, TensorSpec]:
    """Return what a reply holds beside the model."""
    return {FISHER: TensorSpec((int(server.layout.trainable_mask().sum()),), torch.float32)}


def keep_curvature(server: Server) -> None:
    """Keep, as a server step, the round's Fisher informations and the models they belong to, and no older ones."""
    if server.replies is None or not len(server.replies):
        return
    kept, moving = server.state.method.tensors, server.layout.trainable_mask()
    for name in [n for n in kept if n.startswith((f"{FISHER}/", f"{MODEL}/"))]:
        del kept[name]
    replies = server.replies
    for site, message, model in zip(replies.sites, replies.messages, replies.matrix, strict=True):
        kept[f"{FISHER}/{site}"] = message.tensors[FISHER].clamp(min=0)
        kept[f"{MODEL}/{site}"] = model[moving]
