"""Batches of models with one architecture, such as the sites' replies."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedaccord.models.layout import Layout
from fedaccord.models.network import Network


@dataclass(frozen=True)
class Layer:
    """A linear layer, or one per site: weight (..., outputs, inputs), bias (..., outputs)."""

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

    def mixed(self, scale: Tensor, other: Layer, other_scale: Tensor) -> Layer:
        """Return `scale * self + other_scale * other`, with scales (sites,)."""
        weight = scale[:, None, None] * self.weight + other_scale[:, None, None] * other.weight
        if self.bias is None or other.bias is None:
            return Layer(weight, None)
        return Layer(weight, scale[:, None] * self.bias + other_scale[:, None] * other.bias)


class Models:
    """One flat vector (parameters,), or one per site (sites, parameters), that can be evaluated as networks."""

    def __init__(self, network: Network, models: Tensor) -> None:
        self.network, self.models, self.layout = network, models, Layout.of(network)
        # Indices, because the size of a masked selection would have to be read back from a GPU.
        self.trained = self.layout.trainable_mask().nonzero().flatten().to(models.device)
        names = linear_chain(network)
        self.layers = (
            None if names is None else [Layer(self._named(w), self._named(b) if b else None) for w, b in names]
        )

    def logits(self, x: Tensor) -> Tensor:
        """Return the logits of each model for inputs per site (sites, n, inputs), or common ones (n, inputs)."""
        if self.layers is not None:
            for number, layer in enumerate(self.layers):
                x = layer.apply(x.clamp(min=0) if number else x)
            return x
        over = (None if self.models.dim() == 1 else 0, 0 if x.dim() == 3 else None)
        return torch.func.vmap(self.logits_of, in_dims=over)(self.models, x)

    def logits_of(self, model: Tensor, x: Tensor) -> Tensor:
        """Return the logits of one model of any architecture; batch norm uses the model's running statistics."""
        fixed = model.detach()  # running statistics have no gradient
        named = {
            slot.name: (model if slot.trainable else fixed)[slot.start : slot.stop].view(slot.shape)
            for slot in self.layout.slots
        }
        return torch.func.functional_call(self.network.eval(), named, (x,))

    def _named(self, name: str) -> Tensor:
        slot = next(slot for slot in self.layout.slots if slot.name == name)
        return self.models[..., slot.start : slot.stop].unflatten(-1, slot.shape)


def linear_chain(network: Network) -> list[tuple[str, str | None]] | None:
    """Return the names of the weights and biases of linear layers with ReLU between; None for other networks."""
    parts = list(network.encoder) if isinstance(network.encoder, nn.Sequential) else [network.encoder]
    names: list[tuple[str, str | None]] = []
    rectified = True  # whether the next layer may be linear
    for number, part in enumerate(parts):
        if isinstance(part, nn.Flatten | nn.Identity) and not names:
            continue
        if isinstance(part, nn.Linear) and rectified:
            prefix = f"encoder.{number}" if isinstance(network.encoder, nn.Sequential) else "encoder"
            names.append((f"{prefix}.weight", None if part.bias is None else f"{prefix}.bias"))
            rectified = False
        elif isinstance(part, nn.ReLU) and not rectified:
            rectified = True
        else:
            return None
    if not rectified or network.personal is not None:
        return None
    return [*names, ("head.weight", None if network.head.bias is None else "head.bias")]
