"""The progress of one ask: jobs that are not yet assigned, and replies that have arrived."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from fedaccord.engines import shared_block as wire
from fedaccord.engines.engine import Cohorts
from fedaccord.messages.message import Failure, Message, SiteId


class ReplyInBlock(NamedTuple):
    """A reply that is still in the reply block of its worker."""

    block: wire.SharedBlock
    packed: list[Any]

    def message(self, as_views: bool = False) -> Message:
        """Return the message, with its tensors copied or as views of the block."""
        return wire.unpack(self.block, self.packed, as_views)


class Ask:
    """One task for several sites."""

    def __init__(
        self, task: str, briefs: dict[SiteId, Message], deadline: float | None, cohorts: Cohorts | None = None
    ) -> None:
        self.task, self.briefs, self.deadline = task, briefs, deadline
        # With a deadline each site is a separate job, so that a slow site delays no other.
        group = None if deadline is not None else cohorts
        self.pending = deque(group(task, list(briefs)) if group else [[site] for site in briefs])
        self.unanswered = set(briefs)  # sites that have neither replied nor failed
        self.written: wire.Written = {}
        self.memories: dict[SiteId, Message] = {}  # new memories of the sites that replied
        self._order = deque(briefs)  # sites whose replies have not been yielded
        self._replies: dict[SiteId, Message | Failure | ReplyInBlock] = {}  # arrived, but not yielded
        self._started = time.monotonic()

    def seconds_left(self) -> float:
        """Return the seconds until the deadline; infinite without one."""
        return float("inf") if self.deadline is None else self._started + self.deadline - time.monotonic()

    def in_order(self, as_views: bool = False) -> Iterator[tuple[SiteId, Message | Failure]]:
        """Yield the replies that have arrived, in the order of site names, up to the first missing one."""
        while self._order and self._order[0] in self._replies:
            site = self._order.popleft()
            reply = self._replies.pop(site)
            yield site, reply.message(as_views) if isinstance(reply, ReplyInBlock) else reply

    def copy_out_of(self, blocks: Sequence[wire.SharedBlock]) -> None:
        """Copy all replies out of these blocks, so that the blocks can be overwritten or closed."""
        for site, reply in self._replies.items():
            if isinstance(reply, ReplyInBlock) and reply.block in blocks:
                self._replies[site] = reply.message()

    def answer(self, site: SiteId, reply: Message | ReplyInBlock, memory: Message) -> None:
        """Store the reply and the new memory of a site."""
        self.unanswered.discard(site)
        self._replies[site], self.memories[site] = reply, memory

    def fail(self, site: SiteId, reason: str, trace: str = "") -> None:
        """Store that a site failed."""
        self.unanswered.discard(site)
        self._replies[site] = Failure(site, self.task, reason, trace)

    def time_out(self) -> None:
        """Fail all sites that have not answered."""
        for site in list(self.unanswered):
            self.fail(site, f"no reply within {self.deadline:g} s")
