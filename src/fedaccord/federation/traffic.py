"""Bytes sent between the server and each site, counted on encoded messages, independent of the engine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fedaccord.messages.message import Failure, Message, SiteId, encoded_size

Bytes = dict[SiteId, tuple[int, int]]
"""By site: bytes sent to it and bytes received from it."""


class Traffic:
    """Counts the bytes of a round; a missing reply counts zero."""

    def __init__(self) -> None:
        self._bytes: Bytes = {}

    def count(self, site: SiteId, brief: Message, reply: Message | Failure) -> None:
        """Count a brief and its reply."""
        size = encoded_size(reply) if isinstance(reply, Message) else 0
        sent, received = self._bytes.get(site, (0, 0))
        self._bytes[site] = (sent + encoded_size(brief), received + size)

    def take(self) -> Bytes:
        """Return the bytes counted since the last call, in the order of site names."""
        counted, self._bytes = dict(sorted(self._bytes.items())), {}
        return counted


def sum_by_site(parts: Iterable[Mapping[SiteId, Iterable[int]]]) -> Bytes:
    """Return the sums of sent and received bytes per site."""
    total: Bytes = {}
    for part in parts:
        for site, (sent, received) in part.items():
            before = total.get(site, (0, 0))
            total[site] = (before[0] + sent, before[1] + received)
    return total
