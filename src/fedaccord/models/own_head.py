"""A site-specific head, for label names that only one site uses, on the encoder of the global model."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor, nn

from fedaccord.models.layout import named_tensors
from fedaccord.models.network import Network
from fedaccord.seeds import derive

OWN_HEAD = "own head"  # prefix of the head's tensors in messages and in a site's memory
OWN_ENCODER = "encoder below own heads"  # prefix in messages of an encoder that differs from the global model's


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
    linear = nn.utils.skip_init(nn.Linear, head["weight"].shape[1], len(head["weight"]))
    linear.load_state_dict(dict(head))
    result = Network(encoder, linear.to(next(encoder.parameters(), head["weight"]).device))
    result.training = network.training
    return result
