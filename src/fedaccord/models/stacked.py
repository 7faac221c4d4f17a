"""Many copies of one network evaluated together: every parameter has a leading axis of copies.

Dense networks become batched matrix products. Other networks without buffers use `torch.vmap`, which is imported on
first use because importing it takes longer than a short run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

import torch
from torch import Tensor, nn

from fedaccord.models.network import Network

Stacked = Mapping[str, Tensor]  # parameters by name, each (copies, ...)
StackedForward = Callable[[Stacked, Tensor, Tensor | None], Tensor]
"""A function of stacked parameters and inputs (copies, batch, ...) that returns logits (copies, batch, classes).

The last argument, if not None, scales the encoder's output.
"""
_Layer = Callable[[Stacked, Tensor], Tensor]

_ELEMENTWISE = (
    nn.Identity,
    nn.ReLU,
    nn.LeakyReLU,
    nn.ELU,
    nn.GELU,
    nn.SiLU,
    nn.Tanh,
    nn.Sigmoid,
    nn.Softplus,
    nn.Hardtanh,
)


def stacked_forward(network: nn.Module) -> StackedForward | None:
    """Return the forward function for many copies of a network, or None if they cannot be stacked.

    Networks with buffers (such as batch-norm statistics), frozen parameters or random layers cannot be stacked.
    """
    frozen = any(not parameter.requires_grad for parameter in network.parameters())
    if frozen or any(True for _ in network.buffers()) or _is_random(network):
        return None
    return dense_forward(network) or _mapped(network)


def dense_forward(network: nn.Module) -> StackedForward | None:
    """Return the stacked forward function of a network of linear and elementwise layers; None for other networks."""
    if not isinstance(network, Network):
        return None
    below = _layers("encoder", network.encoder)
    personal, head = _layers("personal", network.personal), _layers("head", network.head)
    if below is None or personal is None or head is None:
        return None
    above = personal + head

    def forward(parameters: Stacked, x: Tensor, scale: Tensor | None = None) -> Tensor:
        for layer in below:
            x = layer(parameters, x)
        x = x if scale is None else x * scale
        for layer in above:
            x = layer(parameters, x)
        return x

    return forward


def _layers(name: str, module: nn.Module | None) -> list[_Layer] | None:
    if module is None or isinstance(module, nn.Identity):
        return []
    if type(module) is nn.Linear:
        return [_linear(name, module.bias is not None)]
    if type(module) is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1):
        return [lambda _, x: x.flatten(2)]
    if type(module) in _ELEMENTWISE:
        return [lambda _, x: module(x)]
    if type(module) is not nn.Sequential:
        return None
    layers: list[_Layer] = []
    for key, part in module.named_children():
        inner = _layers(f"{name}.{key}", part)
        if inner is None:
            return None
        layers += inner
    return layers


def _linear(name: str, with_bias: bool) -> _Layer:
    weight, bias = f"{name}.weight", f"{name}.bias"
    # W x^T, not x W^T, so that the gradient has the memory layout of W and the SGD step is several times faster.
    if with_bias:
        return lambda parameters, x: torch.baddbmm(parameters[bias].unsqueeze(2), parameters[weight], x.mT).mT
    return lambda parameters, x: torch.bmm(parameters[weight], x.mT).mT


def _is_random(network: nn.Module) -> bool:
    dropout = nn.modules.dropout._DropoutNd
    return any(isinstance(module, dropout | nn.RReLU | nn.MultiheadAttention) for module in network.modules())


def _mapped(network: nn.Module) -> StackedForward:
    scaled = _Scaled(network)

    def forward(parameters: Stacked, x: Tensor, scale: Tensor | None = None) -> Tensor:
        from torch.func import functional_call, vmap

        prefixed = {f"network.{name}": parameter for name, parameter in parameters.items()}
        inputs = (x,) if scale is None else (x, scale)
        return vmap(lambda p, *each: functional_call(scaled, p, each))(prefixed, *inputs)

    return forward


class _Scaled(nn.Module):
    """A network whose encoder output can be scaled."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor, scale: Tensor | None = None) -> Tensor:
        if scale is None:
            return self.network(x)
        network = cast(Network, self.network)
        return network.classify(network.features(x) * scale)
