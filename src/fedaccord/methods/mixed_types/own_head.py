"""A head of the site's own, for its own coarse names, on the shared encoder: what FedRep and FedTrans train."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedaccord.labels.views import NOT_ANNOTATED
from fedaccord.messages.message import Message
from fedaccord.methods.mixed_types.augment import Augmentation
from fedaccord.models.network import Network
from fedaccord.seeds import derive
from fedaccord.training.objectives import Objective, Sum
from fedaccord.training.work import Batch, LocalWork

OWN_HEAD = "own head"  # prefix in messages and in a site's memory
OWN_ENCODER = "encoder below own heads"  # prefix in messages, where it is not the common model's


@dataclass(frozen=True)
class OwnHead(Objective):
    """Cross-entropy of the site's own names, through the encoder and a head that is no part of the common model."""

    augmentation: Augmentation = field(default_factory=Augmentation)
    shared: bool = False  # the heads of one set of names are averaged (FedTrans); otherwise they stay (FedRep)

    def start(self, work: LocalWork) -> None:
        """Take the head from the brief or from memory; at first, one that is the same for all sites of such names."""
        there = work.brief.select(OWN_HEAD) or work.memory.select(OWN_HEAD)
        if not there:
            width = cast(Network, work.model).head.in_features
            there = first_head(len(work.view.answers), width, work.seed)
        device = work.received[0].device
        work.own = [there[name].detach().clone().to(device).requires_grad_() for name in ("weight", "bias")]

    def loss(self, work: LocalWork, batch: Batch) -> Tensor:
        """Return the batch mean."""
        weight, bias = work.own
        features = cast(Network, work.model).features(self.augmentation.weak(batch.x, work.random))
        return F.cross_entropy(F.linear(features, weight, bias), batch.target, ignore_index=NOT_ANNOTATED)

    def finish(self, work: LocalWork, reply: Message) -> None:
        """Keep the head, and send it where it is shared."""
        head = {name: own.detach().clone() for name, own in zip(("weight", "bias"), work.own, strict=True)}
        work.memory.put(OWN_HEAD, head)
        if self.shared:
            reply.put(OWN_HEAD, head)


def has_own_heads(objective: Objective) -> bool:
    """Say whether sites that train so have heads of their own, which decide what they are judged in."""
    return isinstance(objective, OwnHead) or (isinstance(objective, Sum) and any(map(has_own_heads, objective.terms)))


def first_head(names: int, width: int, seed: int) -> dict[str, Tensor]:
    """Return a head drawn as torch draws a linear layer's, the same at every site for the same number of names."""
    generator = torch.Generator().manual_seed(derive(seed, "own head", names))
    bound = 1 / math.sqrt(width)
    weight, bias = ((2 * torch.rand(s, generator=generator) - 1) * bound for s in ((names, width), (names,)))
    return {"weight": weight, "bias": bias}


def with_own_head(network: nn.Module, head: Mapping[str, Tensor], encoder_values: Mapping[str, Tensor]) -> Network:
    """Return a network with a site's own head on the same encoder, or on one of these values where there are some."""
    encoder = cast(Network, network).encoder
    if encoder_values:
        encoder = copy.deepcopy(encoder)
        there = dict(encoder.named_parameters()) | dict(encoder.named_buffers())
        with torch.no_grad():
            for name, values in encoder_values.items():
                there[name].copy_(values)
    linear = nn.utils.skip_init(nn.Linear, head["weight"].shape[1], len(head["weight"]))
    linear.load_state_dict(dict(head))
    result = Network(encoder, linear.to(next(encoder.parameters(), head["weight"]).device))
    result.training = network.training
    return result
