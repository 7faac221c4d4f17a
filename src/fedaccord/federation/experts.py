"""The experts that answer for one site: the shared model, the same with an own head, and a model trained alone.

They are fitted at the site after the last round, remain in its memory and are never sent.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fedaccord.labels.views import View
from fedaccord.messages.message import Message
from fedaccord.models.layout import load_tensors
from fedaccord.models.mixture import Mixture
from fedaccord.models.network import with_own_head

PREFIX = "experts"  # of the experts' tensors in a site's memory and file
NAMES = ("shared", "own head", "alone")
USUAL_WEIGHTS = (0.4, 0.4, 0.2)  # the two that learn from all sites count most
KEEPS_SHARED = "keep the shared model"
"""The word of a brief after which the server trains its model on, so that sites keep the one they received."""
_WEIGHTS, _HEAD, _ALONE, _SHARED = "weights", "head", "alone", "shared"
_WAY, _ROWS = "experts.way", "experts.rows"


@dataclass(frozen=True)
class Experts:
    """The experts of a site beside the shared model, and the weights of all three in the order of `NAMES`."""

    weights: Tensor  # (3,)
    head: Mapping[str, Tensor]  # on the shared encoder
    alone: Mapping[str, Tensor]  # all tensors of a network
    shared: Mapping[str, Tensor] = field(default_factory=dict)  # of the shared model, if the global one is another
    way: str = ""  # how the model alone was trained: "plain" or "regularised"
    rows: int = 0  # rows kept apart that the weights were chosen by; 0: the usual weights

    def store(self, memory: Message) -> None:
        """Write the experts to a site's memory."""
        memory.put(f"{PREFIX}/{_HEAD}", dict(self.head))
        memory.put(f"{PREFIX}/{_ALONE}", dict(self.alone))
        memory.put(f"{PREFIX}/{_SHARED}", dict(self.shared))
        memory.tensors[f"{PREFIX}/{_WEIGHTS}"] = self.weights
        memory.words[_WAY], memory.numbers[_ROWS] = self.way, self.rows

    def describe(self) -> dict[str, object]:
        """Return the weights and how they were found, for the summary of a run."""
        weights = {name: round(weight, 4) for name, weight in zip(NAMES, self.weights.tolist(), strict=True)}
        return {"weights": weights, "alone": self.way, "rows": self.rows}

    def answering(self, received: nn.Module, view: View) -> Mixture:
        """Return the mixture of the experts, for the logits of a view; the site received the global model."""
        shared = _with_tensors(received, self.shared) if self.shared else received
        networks = [shared, with_own_head(shared, self.head, {}), self.trained_alone(received)]
        return Mixture(networks, self.weights, view.offset, view.one_label).train(received.training)

    def trained_alone(self, received: nn.Module) -> nn.Module:
        """Return the network that the site trained alone; it has the form of the received one."""
        return _with_tensors(received, self.alone)


def stored_experts(message: Message) -> Experts | None:
    """Return the experts in a site's memory or file; None if it has none."""
    found = message.select(PREFIX)
    if _WEIGHTS not in found:
        return None
    head, alone, shared = (message.select(f"{PREFIX}/{part}") for part in (_HEAD, _ALONE, _SHARED))
    way, rows = message.words.get(_WAY, ""), int(message.numbers.get(_ROWS, 0))
    return Experts(found[_WEIGHTS], head, alone, shared, way, rows)


def usual_weights() -> Tensor:
    """Return the weights of experts that cannot be told apart."""
    return torch.tensor(USUAL_WEIGHTS)


def _with_tensors(network: nn.Module, tensors: Mapping[str, Tensor]) -> nn.Module:
    """Return a copy of a network with other tensors."""
    other = copy.deepcopy(network)
    load_tensors(other, tensors)
    return other
