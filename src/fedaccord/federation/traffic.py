"""How many bytes passed between the server and each site, whatever the engine: a message counts as it is encoded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fedaccord.messages.message import Failure, Message, SiteId, encoded_size

Bytes = dict[SiteId, tuple[int, int]]
"""By site: bytes sent to it, bytes received from it."""


class Traffic:
    """Counts the bytes of a round; a reply that never came counts nothing."""

    def __init__(self) -> None:
        self._bytes: Bytes = {}

    def count(self, site: SiteId, brief: Message, reply: Message | Failure) -> None:
        """Count one question to a site, and its answer."""
        back = encoded_size(reply) if isinstance(reply, Message) else 0
        before = self._bytes.get(site, (0, 0))
        self._bytes[site] = (before[0] + encoded_size(brief), before[1] + back)

    def take(self) -> Bytes:
        """Return what was counted since the last time, in the order of site names."""
        counted, self._bytes = dict(sorted(self._bytes.items())), {}
        return counted


def sum_by_site(parts: Iterable[Mapping[SiteId, Iterable[int]]]) -> Bytes:
    """Return the sums by site."""
    total: Bytes = {}
    for part in parts:
        for site, (sent, received) in part.items():
            before = total.get(site, (0, 0))
            total[site] = (before[0] + sent, before[1] + received)
    return total
