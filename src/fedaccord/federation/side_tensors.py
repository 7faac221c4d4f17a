"""Values for every parameter that travel beside the model under a name of their own: controls, momentum, gradients."""

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
    """Takes such values into messages and out of them, as far as a site shares the model; buffers have none."""

    model: Sharing  # how the model travels
    name: str  # prefix of the tensors' names

    @property
    def sharing(self) -> Sharing:
        """How the values travel."""
        return replace(self.model, buffers=False, prefix=self.name)

    # At a site

    def read(self, work: LocalWork, message: Message) -> list[Tensor]:
        """Return the values in a message in the order of the parameters that train; zero where there are none."""
        zeros = {name: torch.zeros_like(p) for name, p in zip(trained_names(work), work.parameters, strict=True)}
        there = self.sharing.incoming(Layout.of(work.model), message.tensors, zeros, _known(work))
        return [there.get(name, zero).to(zero.device) for name, zero in zeros.items()]

    def write(self, work: LocalWork, values: list[Tensor]) -> dict[str, Tensor]:
        """Return values in the order of the parameters as tensors of a message."""
        named = dict(zip(trained_names(work), values, strict=True))
        return self.sharing.outgoing(Layout.of(work.model), named, _known(work))

    # At the server

    def outgoing(self, server: Server, card: SiteCard, vector: Tensor) -> dict[str, Tensor]:
        """Return what a site is sent of a flat vector."""
        return self.sharing.outgoing(server.layout, server.layout.named(vector), card.informs)

    def expected(self, server: Server, card: SiteCard) -> dict[str, TensorSpec]:
        """Return what a site's reply must hold."""
        return self.sharing.expected(server.layout, server.tensors, card.informs)

    def replies(self, server: Server, replies: Replies, previous: Tensor, started: Tensor | None = None) -> Replies:
        """Return the replies with these values in the place of the model, as hostile sites send them.

        `previous` is what they were before; a site that has no value stands there.
        """
        rows = previous.repeat(len(replies), 1)
        for row, message, informs in zip(rows, replies.messages, replies.informs, strict=True):
            self._paste(server, row, message.tensors, informs)
        found = replace(replies, matrix=rows, previous=previous, started=started)
        return found if server.attack is None else server.attack.forge(server, found)

    def flat(self, server: Server, card: SiteCard, answer: Message) -> Tensor:
        """Return what one answer holds as a flat vector; zero where it holds nothing."""
        row = torch.zeros(server.layout.size)
        self._paste(server, row, answer.tensors, card.informs)
        return row

    def _paste(self, server: Server, row: Tensor, sent: Mapping[str, Tensor], informs: Tensor) -> None:
        places = server.layout.named(row)
        for name, values in self.sharing.incoming(server.layout, sent, places, informs).items():
            places[name].copy_(values)


def trained_names(work: LocalWork) -> list[str]:
    """Return the names of the parameters that train, in their order."""
    return [name for name, parameter in work.model.named_parameters() if parameter.requires_grad]


def _known(work: LocalWork) -> Tensor:
    return work.site.view.informs()  # as the server has it: what a site knows, whatever its softmax
