"""Which parameters travel between server and site: the `sharing` slot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from fedaccord.messages.checks import TensorSpec
from fedaccord.models.layout import Layout

MODEL = "model"  # prefix of the model's tensors in a message


@dataclass(frozen=True)
class Sharing:
    """Shares the named parts of a model, with or without its batch-norm buffers; the rest stays at the site."""

    parts: frozenset[str] = frozenset({"encoder", "head"})
    buffers: bool = True

    def names(self, layout: Layout) -> tuple[str, ...]:
        """Return the names of the tensors that travel, in layout order, counters last."""
        floats = [s.name for s in layout.slots if s.part in self.parts and (s.trainable or self.buffers)]
        counters = [name for name in layout.counters if name.partition(".")[0] in self.parts and self.buffers]
        return (*floats, *counters)

    def outgoing(self, layout: Layout, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return what a site is sent of the server's model."""
        return {f"{MODEL}/{name}": tensors[name] for name in self.names(layout)}

    def expected(self, layout: Layout, tensors: Mapping[str, Tensor]) -> dict[str, TensorSpec]:
        """Return what a site's reply must hold of the model."""
        return {f"{MODEL}/{name}": TensorSpec.of(tensors[name]) for name in self.names(layout)}


SHARE_ALL = Sharing()
SHARE_NOTHING = Sharing(parts=frozenset())
