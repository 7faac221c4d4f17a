"""Briefs for questions that a server step asks besides training."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from fedaccord.messages.message import Message, SiteId

if TYPE_CHECKING:
    from fedaccord.federation.server import Server


def model_briefs(server: Server, sites: Iterable[SiteId]) -> dict[SiteId, Message]:
    """Return a brief for each site that contains the shared model only."""
    sharing, layout, tensors = server.recipe.sharing, server.layout, server.tensors
    return {site: Message(sharing.outgoing(layout, tensors, server.cards[site].informs)) for site in sites}
