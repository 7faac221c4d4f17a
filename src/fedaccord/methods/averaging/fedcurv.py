"""FedCurv (Shoham et al. 2019; docs/methods.md 3.6): FedAvg with a Fisher-weighted pull to the other sites' models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from fedaccord.federation.recipe import Exchange, Recipe
from fedaccord.labels.views import View
from fedaccord.messages.checks import TensorSpec
from fedaccord.messages.message import Message
from fedaccord.methods.averaging.settings import FedCurvSettings
from fedaccord.methods.common_model import share_model, with_aggregation
from fedaccord.training.objectives import Objective, Sum, ViewLikelihood
from fedaccord.training.work import Batch, LocalWork

if TYPE_CHECKING:
    from fedaccord.federation.server import Server, SiteCard

MODEL = "fisher model"  # prefix in the method's state: the model at which a site's Fisher information was computed
FISHER = "fisher"  # in a reply: F_k, flat in the order of the parameters
CURVATURE, PULLED, CONSTANT = "others' fisher", "others' fisher times model", "others' constant"  # A, B and c
CHUNK = 64  # samples whose gradients are in memory at a time


def fedcurv(settings: FedCurvSettings) -> Recipe:
    """Return the recipe of FedCurv."""
    objective = Sum((ViewLikelihood(), Curvature(settings)))
    recipe = Recipe(
        settings,
        None,
        objective,
        sharing=share_model(settings),
        exchange=Exchange(curvature_brief, fisher_spec),
        refine=(store_curvature,),
    )
    return with_aggregation(recipe, settings)


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


def curvature_penalty(flat: Tensor, curvature: Tensor, pulled: Tensor, constant: float) -> Tensor:
    """Return `w^2 . A - 2 w . B + c`."""
    return (flat.square() * curvature).sum() - 2 * (flat * pulled).sum() + constant


@dataclass(frozen=True)
class Curvature(Objective):
    """The penalty of FedCurv; computes the site's diagonal Fisher information after training."""

    settings: FedCurvSettings

    def loss(self, work: LocalWork, batch: Batch) -> Tensor:
        """Return the penalty, which does not depend on the batch; zero in the first round."""
        sent = work.brief.tensors
        if CURVATURE not in sent:
            return work.parameters[0].sum() * 0.0
        flat = torch.cat([p.reshape(-1) for p in work.parameters])
        curvature, pulled = (sent[name].to(flat.device) for name in (CURVATURE, PULLED))
        return self.settings.curvature * curvature_penalty(flat, curvature, pulled, float(work.brief.numbers[CONSTANT]))

    def finish(self, work: LocalWork, reply: Message) -> None:
        """Add the Fisher information of the trained model to the reply."""
        data = work.site.train
        rows = torch.arange(len(data), device=data.x.device) if work.rows is None else work.rows
        rows = rows[torch.randperm(len(rows))[: self.settings.fisher_samples].sort().values.to(rows.device)]
        reply.tensors[FISHER] = diagonal_fisher(work.model, work.view, data.x[rows], data.target[rows]).cpu()


def diagonal_fisher(model: nn.Module, view: View, x: Tensor, target: Tensor) -> Tensor:
    """Return the mean over samples of the squared gradient, (trainable parameters,)."""
    trainable = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    rest = {name: p.detach() for name, p in model.named_parameters() if not p.requires_grad}
    rest |= dict(model.named_buffers())

    def loss(values: dict[str, Tensor], one: Tensor, annotation: Tensor) -> Tensor:
        logits = torch.func.functional_call(model, {**values, **rest}, (one[None],))
        return view.nll(logits, annotation[None]).sum()

    gradients = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0), randomness="different")
    was_training = model.training
    model.eval()
    try:
        sums = [torch.zeros_like(p) for p in trainable.values()]
        for part, annotations in zip(x.split(CHUNK), target.split(CHUNK), strict=True):
            for total, gradient in zip(sums, gradients(trainable, part, annotations).values(), strict=True):
                total += gradient.square().sum(0)
    finally:
        model.train(was_training)
    return torch.cat([total.reshape(-1) for total in sums]) / max(1, len(x))
