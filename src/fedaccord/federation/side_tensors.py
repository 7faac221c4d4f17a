"""Side tensors: values per parameter that are sent with the model, e.g. controls, momentum or gradients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedaccord.aggregation.replies import Replies
from fedaccord.federation.sharing import Sharing
from fedaccord.messages.checks import TensorSpec
from fedaccord.messages.message import Message
from fedaccord.models.layout import Layout
from fedaccord.training.work import LocalWork

if TYPE_CHECKING:
    from fedaccord.federation.server import Server, SiteCard


@dataclass(frozen=True)
class SideTensors:
    """Reads and writes side tensors in messages, for the parameters that a site shares; buffers have none."""

    model: Sharing  # the shared parts of the model
    name: str  # prefix of tensor names

    @property
    def sharing(self) -> Sharing:
        """The sharing of these tensors."""
        return replace(self.model, buffers=False, prefix=self.name)

    # At a site

    def read(self, work: LocalWork, message: Message) -> list[Tensor]:
        """Return the values of the trainable parameters, in their order; zero if the message does not contain them."""
        zeros = {name: torch.zeros_like(p) for name, p in zip(trained_names(work), work.parameters, strict=True)}
        values = self.sharing.incoming(Layout.of(work.model), message.tensors, zeros, _known(work))
        return [values.get(name, zero).to(zero.device) for name, zero in zeros.items()]

    def write(self, work: LocalWork, values: list[Tensor]) -> dict[str, Tensor]:
        """Return the tensors of a message, from values in the order of the trainable parameters."""
        named = dict(zip(trained_names(work), values, strict=True))
        return self.sharing.outgoing(Layout.of(work.model), named, _known(work))

    # At the server

    def outgoing(self, server: Server, card: SiteCard, vector: Tensor) -> dict[str, Tensor]:
        """Return the tensors of a flat vector that a site receives."""
        return self.sharing.outgoing(server.layout, server.layout.named(vector), card.informs)

    def expected(self, server: Server, card: SiteCard) -> dict[str, TensorSpec]:
        """Return the specs of these tensors in a site's reply."""
        return self.sharing.expected(server.layout, server.tensors, card.informs)

    def replies(self, server: Server, replies: Replies, previous: Tensor, started: Tensor | None = None) -> Replies:
        """Return the replies with these values instead of the model, after an attack.

        `previous`, (parameters,), are the values before the round; they replace values that a site did not send.
        """
        rows = previous.repeat(len(replies), 1)
        for row, message, informs in zip(rows, replies.messages, replies.informs, strict=True):
            self._paste(server, row, message.tensors, informs)
        result = replace(replies, matrix=rows, previous=previous, started=started)
        return result if server.attack is None else server.attack.forge(server, result)

    def flat(self, server: Server, card: SiteCard, answer: Message) -> Tensor:
        """Return the values of one reply as a flat vector; zero where it contains none."""
        row = torch.zeros(server.layout.size)
        self._paste(server, row, answer.tensors, card.informs)
        return row

    def _paste(self, server: Server, row: Tensor, sent: Mapping[str, Tensor], informs: Tensor) -> None:
        slots = server.layout.named(row)
        for name, values in self.sharing.incoming(server.layout, sent, slots, informs).items():
            slots[name].copy_(values)


def trained_names(work: LocalWork) -> list[str]:
    """Return the names of the trainable parameters, in their order."""
    return [name for name, parameter in work.model.named_parameters() if parameter.requires_grad]


def _known(work: LocalWork) -> Tensor:
    return work.site.view.informs()  # of the declared view, as at the server
