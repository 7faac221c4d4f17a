"""SphereFed (Dong et al. 2022; docs/methods.md 7.7): features of unit length and a frozen orthonormal head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from fedaccord.errors import ConfigError
from fedaccord.federation.recipe import Recipe, require_tags
from fedaccord.labels.views import NOT_ANNOTATED
from fedaccord.messages.checks import TensorSpec
from fedaccord.messages.message import Message
from fedaccord.methods.common_model import share_model, with_aggregation
from fedaccord.methods.tags.settings import SphereFedSettings
from fedaccord.models.network import CHUNK, Network, UnitLength
from fedaccord.seeds import derive
from fedaccord.training.objectives import Objective
from fedaccord.training.work import Batch, LocalWork

if TYPE_CHECKING:
    from fedaccord.federation.server import Server

TASK = "feature moments"
SCALE = 4.0
MOMENTS, PRODUCTS = "feature moments", "feature tag products"  # H^T H and H^T Y


def spherefed(settings: SphereFedSettings) -> Recipe:
    """Return the recipe of SphereFed."""
    recipe = Recipe(
        settings,
        None,
        SphereFit(),
        sharing=share_model(settings),
        ready=(require_tags, refuse_unfit_network),
        prepare=(freeze_head,),
        refine=(ClosedFormHead(settings),),
        tasks={TASK: feature_moments},
    )
    return with_aggregation(recipe, settings)


def refuse_unfit_network(server: Server) -> None:
    """Raise ConfigError if the features are not of unit length or fewer than the tags."""
    network, tags = server.network, len(server.space)
    if not any(isinstance(module, UnitLength) for module in network.encoder.modules()):
        raise ConfigError('the method needs features of length one: use model.name = "sphere-mlp"')
    if network.head.in_features < tags:
        raise ConfigError(
            f"the method needs at least as many features as tags, and the model has "
            f"{network.head.in_features} for {tags}; widen the last layer of model.hidden"
        )


def freeze_head(server: Server) -> None:
    """Initialise the head with orthonormal rows before the first round."""
    if server.state.round:
        return
    head = server.network.head
    generator = torch.Generator().manual_seed(derive(server.seed, "orthonormal head"))
    rows = torch.linalg.qr(torch.randn(head.in_features, head.out_features, generator=generator)).Q.T
    _set_head(server, rows)


@dataclass(frozen=True)
class ClosedFormHead:
    """Solve for the head after the last round: `W^T = (sum H^T H + r I)^-1 sum H^T Y`."""

    settings: SphereFedSettings

    def __call__(self, server: Server) -> None:
        """Ask all sites that may train for their moments, and solve."""
        if server.state.round + 1 < self.settings.rounds:
            return
        width, tags = server.network.head.in_features, len(server.space)
        spec = {MOMENTS: TensorSpec((width, width), torch.float32), PRODUCTS: TensorSpec((width, tags), torch.float32)}
        answers = server.ask(TASK, server.model_briefs(server.trainers()), spec)
        if not answers:
            return
        moments = torch.stack([a.tensors[MOMENTS] for a in answers.values()]).double().sum(0)
        products = torch.stack([a.tensors[PRODUCTS] for a in answers.values()]).double().sum(0)
        solved = torch.linalg.solve(moments + self.settings.ridge * torch.eye(width, dtype=torch.float64), products)
        _set_head(server, solved.T.float())


def _set_head(server: Server, rows: Tensor) -> None:
    model = server.state.model.clone()
    named = server.layout.named(model)
    named["head.weight"].copy_(SCALE * rows)
    if "head.bias" in named:
        named["head.bias"].fill_(-SCALE / 2)
    server.state.model = model


class SphereFit(Objective):
    """Squared error of the frozen head's fit on annotated tags."""

    def start(self, work: LocalWork) -> None:
        """Exclude the head from the trained parameters."""
        head = {id(p) for p in cast(Network, work.model).head.parameters()}
        trained = [i for i, p in enumerate(work.parameters) if id(p) not in head]
        work.received = [work.received[i] for i in trained]
        work.parameters = [work.parameters[i] for i in trained]

    def loss(self, work: LocalWork, batch: Batch) -> Tensor:
        """Return the sum over annotated tags, averaged over the batch."""
        network = cast(Network, work.model)
        head = [p.detach() for p in network.head.parameters()]
        fit = F.linear(network.features(batch.x), *head) / SCALE + 0.5
        annotated = batch.target != NOT_ANNOTATED
        return torch.where(annotated, (fit - batch.target.to(fit.dtype)).square(), 0.0).sum(-1).mean()


@torch.no_grad()
def feature_moments(work: LocalWork) -> Message:
    """Return `H^T H` and `H^T Y` of the features; missing annotations are replaced by the model's fit."""
    network, data = cast(Network, work.model).eval(), work.site.train
    width, tags = network.head.in_features, data.target.shape[1]
    moments, products = torch.zeros(width, width), torch.zeros(width, tags)
    for x, target in zip(data.x.split(CHUNK), data.target.split(CHUNK), strict=True):
        features = network.features(x)
        fit = network.head(features) / SCALE + 0.5
        y = torch.where(target == NOT_ANNOTATED, fit, target.to(fit.dtype))
        moments += (features.T @ features).cpu()
        products += (features.T @ y).cpu()
    return Message({MOMENTS: moments, PRODUCTS: products})
