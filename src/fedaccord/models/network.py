"""A network in named parts, so that methods can share one part and keep another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor, nn

from fedaccord.errors import ConfigError


class Network(nn.Module):
    """A classifier made of an encoder, an optional personal layer and a linear head: head(personal(encoder(x)))."""

    encoder: nn.Module
    personal: nn.Module | None
    head: nn.Linear

    def __init__(self, encoder: nn.Module, head: nn.Linear, personal: nn.Module | None = None) -> None:
        super().__init__()
        self.encoder = encoder
        # Registered even when absent, so that its place in the order of parameters is always before the head.
        self.register_module("personal", personal)
        self.head = head

    def features(self, x: Tensor) -> Tensor:
        """Return the encoder's output, of shape (batch, features)."""
        return self.encoder(x)

    @property
    def features_width(self) -> int:
        """The number of features that the encoder gives."""
        return self.personal.in_features if isinstance(self.personal, nn.Linear) else self.head.in_features

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits, of shape (batch, classes)."""
        features = self.features(x)
        if self.personal is not None:
            features = self.personal(features)
        return self.head(features)

    def with_personal_layer(self) -> Network:
        """Return a new network of the same encoder and head with a personal layer between; this one is unchanged."""
        network = Network(self.encoder, self.head, self.personal)
        network.training = self.training  # not .train(): the shared parts keep the modes they are in
        return insert_personal_layer(network)


class UnitLength(nn.Module):
    """The last step of an encoder whose features have length one."""

    def forward(self, x: Tensor) -> Tensor:
        """Return each row divided by its length."""
        return nn.functional.normalize(x, dim=-1)


def lay_out(network: Network) -> None:
    """Put weights of convolutions in the order in which a CPU is fastest; names and values are the same.

    Server, sites and predictions all do, since the order decides the last bits of a result.
    """
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def insert_personal_layer(network: Network) -> Network:
    """Put a p x p layer between encoder and head, in place, and return the network.

    The layer is the identity, without bias, so the function is unchanged at the start (methods.md 5.2). A personal
    layer that is there already stays.
    """
    if network.personal is None:
        width, weight = network.head.in_features, network.head.weight
        # skip_init, because drawing weights to overwrite them would move the caller's random stream.
        layer = nn.utils.skip_init(nn.Linear, width, width, bias=False, device=weight.device, dtype=weight.dtype)
        nn.init.eye_(layer.weight)
        network.personal = layer
    return network


@torch.no_grad()
def draw_head_rows(network: Network, seeds: Sequence[int]) -> None:
    """Draw each row of the head, bias and weights, from a seed of its own, in place; as nn.Linear does by default."""
    head = network.head
    reach = 1 / math.sqrt(head.in_features)
    for row, seed in enumerate(seeds):
        drawn = torch.empty(head.in_features + 1).uniform_(-reach, reach, generator=torch.Generator().manual_seed(seed))
        head.weight[row] = drawn[1:]
        if head.bias is not None:
            head.bias[row] = drawn[0]


def as_network(module: nn.Module) -> Network:
    """Return a module with `.encoder` and `.head` as a Network that shares them; ConfigError says what is missing.

    A `.personal` module, where there is one, is taken over as well.
    """
    if isinstance(module, Network):
        return module
    kind = type(module).__name__
    encoder, personal, head = (getattr(module, part, None) for part in ("encoder", "personal", "head"))
    absent = [f"no {name}" for name, part in (("encoder", encoder), ("head", head)) if not isinstance(part, nn.Module)]
    if not isinstance(encoder, nn.Module) or not isinstance(head, nn.Module):
        raise ConfigError(
            f"the model {kind} has {' and '.join(absent)}: "
            "it needs the attributes 'encoder' (a torch module) and 'head' (an nn.Linear from features to classes)"
        )
    if not isinstance(head, nn.Linear):
        raise ConfigError(
            f"the head of the model {kind} is a {type(head).__name__}, "
            "but must be an nn.Linear from features to classes"
        )
    network = Network(encoder, head, personal if isinstance(personal, nn.Module) else None)
    network.training = module.training
    _check_nothing_left_out(module, network)
    return network


def _check_nothing_left_out(module: nn.Module, network: Network) -> None:
    # Whatever is outside the parts would neither be trained nor shared, and nobody would notice.
    kept = {id(tensor) for tensor in chain(network.parameters(), network.buffers())}
    named: chain[tuple[str, Tensor]] = chain(module.named_parameters(), module.named_buffers())
    outside = [name for name, tensor in named if id(tensor) not in kept]
    if outside:
        raise ConfigError(
            f"the model {type(module).__name__} has '{outside[0]}' outside its encoder and its head: "
            "move it into one of them"
        )
