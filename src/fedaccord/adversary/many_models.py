"""Many models of one architecture at once: the sites' replies as one batch of networks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedaccord.models.layout import Layout
from fedaccord.models.network import Network


@dataclass(frozen=True)
class Layer:
    """A linear layer, or one for each site: weight (..., outputs, inputs), bias (..., outputs)."""

    weight: Tensor
    bias: Tensor | None

    def apply(self, x: Tensor) -> Tensor:
        """Return `x W^T + b`."""
        z = x @ self.weight.mT
        if self.bias is None:
            return z
        return z.add_(self.bias if self.bias.dim() == 1 else self.bias[:, None])

    def __mul__(self, other: Layer) -> Tensor:
        """Return the inner product of each site's values: (sites,)."""
        product = (self.weight * other.weight).sum((-2, -1))
        if self.bias is not None and other.bias is not None:
            product = product + (self.bias * other.bias).sum(-1)
        return product

    def mixed(self, share: Tensor, other: Layer, others_share: Tensor) -> Layer:
        """Return `share * self + others_share * other`, each share by site."""
        weight = share[:, None, None] * self.weight + others_share[:, None, None] * other.weight
        if self.bias is None or other.bias is None:
            return Layer(weight, None)
        return Layer(weight, share[:, None] * self.bias + others_share[:, None] * other.bias)


class Models:
    """One flat vector (parameters,), or one for each site (sites, parameters), ready to be used as networks."""

    def __init__(self, network: Network, models: Tensor) -> None:
        self.network, self.models, self.layout = network, models, Layout.of(network)
        # Places, not a mask: how many a mask marks is a value, and would have to be read back from a GPU.
        self.trained = self.layout.trainable_mask().nonzero().flatten().to(models.device)
        names = linear_chain(network)
        self.layers = (
            None if names is None else [Layer(self._named(w), self._named(b) if b else None) for w, b in names]
        )

    def logits(self, x: Tensor) -> Tensor:
        """Return each model's logits: of its own inputs (sites, n, inputs), or of the same (n, inputs) for all."""
        if self.layers is not None:
            for number, layer in enumerate(self.layers):
                x = layer.apply(x.clamp(min=0) if number else x)
            return x
        over = (None if self.models.dim() == 1 else 0, 0 if x.dim() == 3 else None)
        return torch.func.vmap(self.logits_of, in_dims=over)(self.models, x)

    def logits_of(self, model: Tensor, x: Tensor) -> Tensor:
        """Return the logits of one model, whatever its architecture; batch norm uses the statistics it carries."""
        fixed = model.detach()  # batch norm cannot be differentiated by its statistics
        named = {
            slot.name: (model if slot.trainable else fixed)[slot.start : slot.stop].view(slot.shape)
            for slot in self.layout.slots
        }
        return torch.func.functional_call(self.network.eval(), named, (x,))

    def _named(self, name: str) -> Tensor:
        slot = next(slot for slot in self.layout.slots if slot.name == name)
        return self.models[..., slot.start : slot.stop].unflatten(-1, slot.shape)


def linear_chain(network: Network) -> list[tuple[str, str | None]] | None:
    """Return the names of weights and biases of linear layers with ReLU between, in order; None for other networks."""
    parts = list(network.encoder) if isinstance(network.encoder, nn.Sequential) else [network.encoder]
    names: list[tuple[str, str | None]] = []
    rectified = True  # whether what comes next may be linear
    for number, part in enumerate(parts):
        if isinstance(part, nn.Flatten | nn.Identity) and not names:
            continue
        if isinstance(part, nn.Linear) and rectified:
            place = f"encoder.{number}" if isinstance(network.encoder, nn.Sequential) else "encoder"
            names.append((f"{place}.weight", None if part.bias is None else f"{place}.bias"))
            rectified = False
        elif isinstance(part, nn.ReLU) and not rectified:
            rectified = True
        else:
            return None
    if not rectified or network.personal is not None:
        return None
    return [*names, ("head.weight", None if network.head.bias is None else "head.bias")]
