"""The model in replies to `train`: its expected tensors, and its flat vector."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedaccord.federation.sharing import Sharing
from fedaccord.federation.state import RunState, SiteCard
from fedaccord.messages.checks import TensorSpec
from fedaccord.messages.message import Message, SiteId
from fedaccord.models.layout import Layout


class ReplyFormat:
    """The tensors of the model that sites send back.

    `shapes` contains meta tensors of a reply's model, if all sites send the same tensors.
    """

    def __init__(self, sharing: Sharing, layout: Layout, state: RunState) -> None:
        self.sharing, self.layout = sharing, layout
        self._specs: dict[SiteId, dict[str, TensorSpec]] = {}
        self.shapes: dict[str, Tensor] = {}
        if not sharing.own_rows:
            sent = sharing.outgoing(layout, state.tensors(layout), torch.zeros(0))
            self.shapes = {name: tensor.to("meta") for name, tensor in sent.items()}
        # Tensor names in the order of the flat vector, if every reply contains all of it.
        self._full_names = [f"{sharing.prefix}/{slot.name}" for slot in layout.slots]
        if sharing.own_rows or not {slot.name for slot in layout.slots} <= set(sharing.names(layout)):
            self._full_names = []

    def specs(self, card: SiteCard, state: RunState) -> Mapping[str, TensorSpec]:
        """Return the specs of a site's model; they are the same in every round."""
        key = card.name if self.sharing.own_rows else ""
        if key not in self._specs:
            self._specs[key] = self.sharing.expected(self.layout, state.tensors(self.layout), card.informs)
        return self._specs[key]

    def flatten(self, reply: Message, informs: Tensor, state: RunState, out: Tensor | None = None) -> Tensor:
        """Return the flat vector of a reply, (parameters,); values that the site did not send are those of `state`."""
        out = torch.empty(self.layout.size) if out is None else out
        if self._full_names:
            return torch.cat([reply.tensors[name].reshape(-1) for name in self._full_names], out=out)
        received = self.sharing.incoming(self.layout, reply.tensors, state.tensors(self.layout), informs)
        if len(received) < len(self.layout.slots) + len(self.layout.counters):
            out[:] = state.model
        for slot in self.layout.slots:
            if slot.name in received:
                out[slot.start : slot.stop] = received[slot.name].reshape(-1)
        return out
