"""Which parameters travel between server and site: the `sharing` slot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from fedaccord.messages.checks import TensorSpec
from fedaccord.models.layout import Layout

MODEL = "model"  # prefix of the model's tensors in a message
Owners = Literal["trained", "declared", "all"]
"""Who informs a label: sites whose softmax runs over it in training, sites whose declared view knows it, or all."""


@dataclass(frozen=True)
class Sharing:
    """Shares the named parts of a model, with or without its batch-norm buffers; the rest stays at the site.

    With `own_rows` a site is sent, and sends, only the head rows of the labels it knows: the shape of a message then
    tells nothing of any other label.
    """

    parts: frozenset[str] = frozenset({"encoder", "head"})
    buffers: bool = True
    own_rows: bool = False
    prefix: str = MODEL  # of the tensors' names in a message
    owners: Owners = "trained"  # which sites inform a label, and so send and average its head row

    def names(self, layout: Layout) -> tuple[str, ...]:
        """Return the names of the tensors that travel, in layout order, counters last."""
        floats = [s.name for s in layout.slots if s.part in self.parts and (s.trainable or self.buffers)]
        counters = [name for name in layout.counters if name.partition(".")[0] in self.parts and self.buffers]
        return (*floats, *counters)

    def outgoing(self, layout: Layout, tensors: Mapping[str, Tensor], known: Tensor) -> dict[str, Tensor]:
        """Return what travels of a model between the server and a site that knows these labels, bool (labels,)."""
        return {f"{self.prefix}/{name}": self._cut(name, tensors[name], known) for name in self.names(layout)}

    def incoming(
        self, layout: Layout, sent: Mapping[str, Tensor], whole: Mapping[str, Tensor], known: Tensor
    ) -> dict[str, Tensor]:
        """Return the whole tensors that a message stands for; rows it does not hold are those of `whole`."""
        there = {name: sent.get(f"{self.prefix}/{name}") for name in self.names(layout)}
        return {n: self._paste(n, part, whole[n], known) for n, part in there.items() if part is not None}

    def expected(self, layout: Layout, tensors: Mapping[str, Tensor], known: Tensor) -> dict[str, TensorSpec]:
        """Return what a site's reply must hold of the model."""
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
