"""Many copies of one network as one program: every parameter has a first axis of copies.

Dense networks become batched matrix products. Any other network without state of its own goes through `torch.vmap`,
which is imported when it is first needed, since that takes longer than a short run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

Stacked = Mapping[str, Tensor]  # parameters by name, each (copies, ...)
StackedForward = Callable[[Stacked, Tensor], Tensor]
"""From stacked parameters and inputs (copies, batch, ...) to logits (copies, batch, classes)."""

_ELEMENTWISE = (
    nn.Identity, nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Softplus, nn.Hardtanh,
)  # fmt: skip


def stacked_forward(network: nn.Module) -> StackedForward | None:
    """Return the network's function for many copies at once; None where copies cannot be kept apart.

    Buffers, such as batch-norm statistics, frozen parameters and random layers are what keeps a network from it.
    """
    frozen = any(not parameter.requires_grad for parameter in network.parameters())
    if frozen or any(True for _ in network.buffers()) or _is_random(network):
        return None
    return dense_forward(network) or _mapped(network)


def dense_forward(network: nn.Module) -> StackedForward | None:
    """Return the function of a network made of linear and elementwise layers alone; None for any other."""
    layers = _layers("", network)
    if layers is None:
        return None

    def forward(parameters: Stacked, x: Tensor) -> Tensor:
        for layer in layers:
            x = layer(parameters, x)
        return x

    return forward


def _layers(name: str, module: nn.Module | None) -> list[StackedForward] | None:
    if module is None or isinstance(module, nn.Identity):
        return []
    if type(module) is nn.Linear:
        return [_linear(name, module.bias is not None)]
    if type(module) is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1):
        return [lambda _, x: x.flatten(2)]
    if type(module) in _ELEMENTWISE:
        return [lambda _, x: module(x)]
    parts = _in_a_row(module)
    if parts is None:
        return None
    layers: list[StackedForward] = []
    for key, part in parts.items():
        inner = _layers(f"{name}.{key}" if name else key, part)
        if inner is None:
            return None
        layers += inner
    return layers


def _in_a_row(module: nn.Module) -> dict[str, nn.Module | None] | None:
    """Return the parts of a module that does nothing but call them one after the other."""
    from fedaccord.models.network import Network

    if type(module) is nn.Sequential:
        return dict(module.named_children())
    if type(module) is Network:
        return {"encoder": module.encoder, "personal": module.personal, "head": module.head}
    return None


def _linear(name: str, with_bias: bool) -> StackedForward:
    weight, bias = f"{name}.weight", f"{name}.bias"
    # W x^T, not x W^T: the gradient then has the layout of W, and the step that adds it is several times faster.
    if with_bias:
        return lambda parameters, x: torch.baddbmm(parameters[bias].unsqueeze(2), parameters[weight], x.mT).mT
    return lambda parameters, x: torch.bmm(parameters[weight], x.mT).mT


def _is_random(network: nn.Module) -> bool:
    dropout = nn.modules.dropout._DropoutNd
    return any(isinstance(module, dropout | nn.RReLU | nn.MultiheadAttention) for module in network.modules())


def _mapped(network: nn.Module) -> StackedForward:
    def forward(parameters: Stacked, x: Tensor) -> Tensor:
        from torch.func import functional_call, vmap

        return vmap(lambda own, samples: functional_call(network, own, (samples,)))(dict(parameters), x)

    return forward
