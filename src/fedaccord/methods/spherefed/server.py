"""The server's side of SphereFed: a frozen orthonormal head, and a least-squares head after the last round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedaccord.errors import ConfigError
from fedaccord.federation.briefs import model_briefs
from fedaccord.messages.checks import TensorSpec
from fedaccord.methods.spherefed.site import MOMENTS, PRODUCTS, SCALE
from fedaccord.models.network import UnitLength
from fedaccord.seeds import derive

if TYPE_CHECKING:
    from fedaccord.federation.server import Server

TASK = "feature moments"


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

    rounds: int
    ridge: float

    def __call__(self, server: Server) -> None:
        """Ask all sites that may train for their moments, and solve."""
        if server.state.round + 1 < self.rounds:
            return
        width, tags = server.network.head.in_features, len(server.space)
        spec = {MOMENTS: TensorSpec((width, width), torch.float32), PRODUCTS: TensorSpec((width, tags), torch.float32)}
        answers = server.ask(TASK, model_briefs(server, server.trainers()), spec)
        if not answers:
            return
        moments = torch.stack([a.tensors[MOMENTS] for a in answers.values()]).double().sum(0)
        products = torch.stack([a.tensors[PRODUCTS] for a in answers.values()]).double().sum(0)
        solved = torch.linalg.solve(moments + self.ridge * torch.eye(width, dtype=torch.float64), products)
        _set_head(server, solved.T.float())


def _set_head(server: Server, rows: Tensor) -> None:
    model = server.state.model.clone()
    named = server.layout.named(model)
    named["head.weight"].copy_(SCALE * rows)
    if "head.bias" in named:
        named["head.bias"].fill_(-SCALE / 2)
    server.state.model = model
