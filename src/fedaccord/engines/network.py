"""A simulated edge network around any engine: it computes the seconds that sites would take, without waiting.

    seconds of a site for a task = latency + brief / downlink + samples / speed + latency + reply / uplink

Sites work in parallel, so a task takes as long as its slowest site. Computation on the server takes no simulated time,
because it runs on a different kind of machine. Joining and evaluation take none, because they are not part of training.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedaccord.engines.engine import Engine
from fedaccord.messages.checks import is_finite
from fedaccord.messages.message import Failure, Message, SiteId, encoded_size
from fedaccord.messages.names import COMPUTED

_FREE = {"join", "evaluate", "examine"}  # tasks that take no simulated time
_PART = 64
_BITS = 8 / 1e6  # megabits in a byte


@dataclass(frozen=True)
class Link:
    """The computer and the connection of a site."""

    speed: float  # gradients of single samples per second
    up: float  # megabits per second
    down: float
    latency: float  # seconds, each way

    def seconds(self, sent: int, computed: float, received: int) -> float:
        """Return the seconds for a brief of `sent` bytes, `computed` gradients and a reply of `received` bytes."""
        transfer = sent * _BITS / self.down + received * _BITS / self.up
        return 2 * self.latency + transfer + computed / self.speed


class SimulatedNetwork:
    """An engine that delegates to another one and counts simulated seconds."""

    def __init__(self, engine: Engine, links: Mapping[SiteId, Link]) -> None:
        self._engine, self.links = engine, dict(links)
        self.sites, self.close = engine.sites, engine.close
        self.memories, self.restore, self.checkpointed = engine.memories, engine.restore, engine.checkpointed
        self.part = int(getattr(engine, "part", _PART))  # replies that the engine holds at a time
        # Seconds by (round, task), then by site: a task may be asked in several parts, which run in parallel.
        self._charged: dict[tuple[float, str], dict[SiteId, float]] = {}

    def ask(
        self, task: str, briefs: Mapping[SiteId, Message], deadline: float | None = None
    ) -> dict[SiteId, Message | Failure]:
        """Run a task at sites, and add its simulated seconds."""
        replies = self._engine.ask(task, briefs, deadline)
        if task not in _FREE:
            for site, brief in briefs.items():
                self._charge(task, site, brief, replies[site])
        return replies

    def take_seconds(self) -> float:
        """Return the simulated seconds since the last call: the sum over tasks of the slowest site's seconds."""
        charged, self._charged = self._charged, {}
        return sum(max(by_site.values()) for by_site in charged.values())

    def _charge(self, task: str, site: SiteId, brief: Message, reply: Message | Failure) -> None:
        if site not in self.links:
            return  # pooled data have no site on the network
        received, claimed = 0, 0.0
        if isinstance(reply, Message):
            received, claimed = encoded_size(reply), reply.numbers.get(COMPUTED, 0)
        computed = max(0.0, float(claimed)) if is_finite(claimed) else 0.0  # the reply is not checked yet
        by_site = self._charged.setdefault((brief.numbers.get("round", 0), task), {})
        spent = self.links[site].seconds(encoded_size(brief), computed, received)
        by_site[site] = by_site.get(site, 0.0) + spent
