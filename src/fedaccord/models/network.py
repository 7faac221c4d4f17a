"""A network of named parts, so that methods can share some parts and keep others local, and its predictions."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import cast

import torch
from torch import Tensor, nn

from fedaccord.errors import ConfigError
from fedaccord.models.layout import named_tensors
from fedaccord.seeds import derive

CHUNK = 1024  # samples per batch: large enough to be fast, small enough for the activations of a ResNet
OWN_HEAD = "own head"  # prefix of the head's tensors in messages and in a site's memory
OWN_ENCODER = "encoder below own heads"  # prefix in messages of an encoder that differs from the global model's


class Network(nn.Module):
    """A classifier made of an encoder, an optional personal layer and a linear head: head(personal(encoder(x)))."""

    encoder: nn.Module
    personal: nn.Module | None
    head: nn.Linear

    def __init__(self, encoder: nn.Module, head: nn.Linear, personal: nn.Module | None = None) -> None:
        super().__init__()
        self.encoder = encoder
        # Registered even if it is None, so that its parameters always come before those of the head.
        self.register_module("personal", personal)
        self.head = head

    def features(self, x: Tensor) -> Tensor:
        """Return the encoder's output, of shape (batch, features)."""
        return self.encoder(x)

    @property
    def features_width(self) -> int:
        """The number of features that the encoder returns."""
        return self.personal.in_features if isinstance(self.personal, nn.Linear) else self.head.in_features

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits, of shape (batch, classes)."""
        return self.classify(self.features(x))

    def classify(self, features: Tensor) -> Tensor:
        """Return the logits for features of the encoder."""
        return self.head(features if self.personal is None else self.personal(features))


class UnitLength(nn.Module):
    """Normalises features to unit norm."""

    def forward(self, x: Tensor) -> Tensor:
        """Return each row divided by its norm."""
        return nn.functional.normalize(x, dim=-1)


def use_channels_last(network: Network) -> None:
    """Use the channels-last memory format, which is the fastest on a CPU.

    Server, sites and predictions must all use it, because the format affects rounding.
    """
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def insert_personal_layer(network: Network) -> Network:
    """Insert a p x p layer between encoder and head, in place, and return the network.

    The layer is initialised to the identity and has no bias, so the network computes the same function at first. An
    existing personal layer is not replaced.
    """
    if network.personal is None:
        width, weight = network.head.in_features, network.head.weight
        # skip_init, because initialising weights would advance the caller's random generator.
        layer = nn.utils.skip_init(nn.Linear, width, width, bias=False, device=weight.device, dtype=weight.dtype)
        nn.init.eye_(layer.weight)
        network.personal = layer
    return network


@torch.no_grad()
def init_head_rows(network: Network, seeds: Sequence[int]) -> None:
    """Initialise each row of the head, bias and weights, from its own seed, with the distribution of nn.Linear."""
    head = network.head
    bound = 1 / math.sqrt(head.in_features)
    for row, seed in enumerate(seeds):
        generator = torch.Generator().manual_seed(seed)
        values = torch.empty(head.in_features + 1).uniform_(-bound, bound, generator=generator)
        head.weight[row] = values[1:]
        if head.bias is not None:
            head.bias[row] = values[0]


def as_network(module: nn.Module) -> Network:
    """Return a Network that shares the `.encoder`, `.head` and optional `.personal` of a module.

    Raise ConfigError if one of the first two is missing.
    """
    if isinstance(module, Network):
        return module
    kind = type(module).__name__
    encoder, personal, head = (getattr(module, part, None) for part in ("encoder", "personal", "head"))
    absent = [f"no {name}" for name, part in (("encoder", encoder), ("head", head)) if not isinstance(part, nn.Module)]
    wanted = "'encoder' (a torch module) and 'head' (an nn.Linear from features to classes)"
    if absent:
        raise ConfigError(f"the model {kind} has {' and '.join(absent)}: it needs the attributes {wanted}")
    if not isinstance(head, nn.Linear):
        found = f"the head of the model {kind} is a {type(head).__name__}"
        raise ConfigError(f"{found}, but must be an nn.Linear from features to classes")
    network = Network(cast(nn.Module, encoder), head, personal if isinstance(personal, nn.Module) else None)
    network.training = module.training
    # Tensors outside the parts would silently be neither trained nor shared.
    inside = {id(tensor) for tensor in chain(network.parameters(), network.buffers())}
    named: chain[tuple[str, Tensor]] = chain(module.named_parameters(), module.named_buffers())
    outside = next((name for name, tensor in named if id(tensor) not in inside), None)
    if outside is not None:
        problem = f"the model {kind} has '{outside}' outside its encoder and its head"
        raise ConfigError(f"{problem}: move it into one of them")
    return network


def predict_logits(model: nn.Module, x: Tensor) -> Tensor:
    """Return the logits of all samples, computed in evaluation mode; the model's mode does not change."""
    return _predict(model, model, x)


def predict_features(network: Network, x: Tensor) -> Tensor:
    """Return the encoder's features of all samples, like `predict_logits`."""
    return _predict(network, network.features, x)


@torch.no_grad()
def _predict(model: nn.Module, forward: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    was_training = model.training
    model.eval()
    try:
        parts = [forward(chunk) for chunk in x.split(CHUNK)] if len(x) else []
    finally:
        model.train(was_training)
    return torch.cat(parts) if parts else torch.zeros(0, 0)


def first_head(names: int, width: int, seed: int) -> dict[str, Tensor]:
    """Return an initial head with the distribution of nn.Linear, equal at all sites with the same number of names."""
    generator = torch.Generator().manual_seed(derive(seed, "own head", names))
    bound = 1 / math.sqrt(width)
    weight, bias = ((2 * torch.rand(s, generator=generator) - 1) * bound for s in ((names, width), (names,)))
    return {"weight": weight, "bias": bias}


def with_own_head(network: nn.Module, head: Mapping[str, Tensor], encoder_values: Mapping[str, Tensor]) -> Network:
    """Return a network with a site-specific head on the same encoder, or on a copy with `encoder_values` if given."""
    encoder = cast(Network, network).encoder
    if encoder_values:
        encoder = copy.deepcopy(encoder)
        tensors = named_tensors(encoder)
        with torch.no_grad():
            for name, values in encoder_values.items():
                tensors[name].copy_(values)
    linear = nn.utils.skip_init(nn.Linear, head["weight"].shape[1], len(head["weight"]), bias="bias" in head)
    linear.load_state_dict(dict(head))
    result = Network(encoder, linear.to(next(encoder.parameters(), head["weight"]).device))
    result.training = network.training
    return result
