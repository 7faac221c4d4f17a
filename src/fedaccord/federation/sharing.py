"""The parts of a model that are sent between server and site: the `sharing` slot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedaccord.federation.state import RunState, SiteCard
from fedaccord.messages.checks import TensorSpec
from fedaccord.messages.message import Message, SiteId
from fedaccord.models.layout import Layout

MODEL = "model"  # prefix of the model's tensors in a message
Owners = Literal["trained", "declared", "all"]
"""The sites that inform a label: those with it in their training softmax, in their declared view, or all sites."""


@dataclass(frozen=True)
class Sharing:
    """Shares some parts of a model; the others remain at the site.

    With `own_rows`, a site receives and sends the head rows of the labels it knows only. The shape of a message then
    reveals nothing about other labels.
    """

    parts: frozenset[str] = frozenset({"encoder", "head"})
    buffers: bool = True  # share batch-norm buffers
    own_rows: bool = False
    prefix: str = MODEL  # of tensor names in a message
    owners: Owners = "trained"  # sites that inform a label; its head row is sent by and averaged over them

    def names(self, layout: Layout) -> tuple[str, ...]:
        """Return the names of the shared tensors in layout order, counters last."""
        floats = [s.name for s in layout.slots if s.part in self.parts and (s.trainable or self.buffers)]
        counters = [name for name in layout.counters if name.partition(".")[0] in self.parts and self.buffers]
        return (*floats, *counters)

    def outgoing(self, layout: Layout, tensors: Mapping[str, Tensor], known: Tensor) -> dict[str, Tensor]:
        """Return the shared tensors for a site that knows the labels `known`, bool (labels,)."""
        return {f"{self.prefix}/{name}": self._cut(name, tensors[name], known) for name in self.names(layout)}

    def incoming(
        self, layout: Layout, sent: Mapping[str, Tensor], whole: Mapping[str, Tensor], known: Tensor
    ) -> dict[str, Tensor]:
        """Return the full tensors of a message; head rows that it does not contain are those of `whole`."""
        parts = {name: sent.get(f"{self.prefix}/{name}") for name in self.names(layout)}
        return {n: self._paste(n, part, whole[n], known) for n, part in parts.items() if part is not None}

    def expected(self, layout: Layout, tensors: Mapping[str, Tensor], known: Tensor) -> dict[str, TensorSpec]:
        """Return the specs of the model's tensors in a site's reply."""
        return {name: TensorSpec.of(tensor) for name, tensor in self.outgoing(layout, tensors, known).items()}

    def _cut(self, name: str, tensor: Tensor, known: Tensor) -> Tensor:
        return tensor[known.to(tensor.device)] if self._by_rows(name) else tensor

    def _paste(self, name: str, part: Tensor, whole: Tensor, known: Tensor) -> Tensor:
        if not self._by_rows(name):
            return part
        pasted = whole.detach().clone()
        pasted[known.to(whole.device)] = part.to(whole.device)
        return pasted

    def _by_rows(self, name: str) -> bool:
        return self.own_rows and name.startswith("head.")


SHARE_ALL = Sharing()
SHARE_NOTHING = Sharing(parts=frozenset())


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
