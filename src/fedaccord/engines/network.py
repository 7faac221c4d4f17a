"""A simulated edge network around any engine: what each site's computer and link would take is charged, nothing waits.

    site's time for a question = latency + brief / down-link + samples / speed + latency + reply / up-link

Sites work beside each other, so a question takes as long as its slowest site. The server's own work, joining and
evaluating are free: the first is done on another kind of machine, and the others are not part of training.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedaccord.engines.engine import Engine
from fedaccord.messages.checks import is_finite
from fedaccord.messages.message import Failure, Message, SiteId, encoded_size
from fedaccord.messages.names import COMPUTED

_FREE = {"join", "evaluate"}
_PART = 64
_BITS = 8 / 1e6  # megabits in a byte


@dataclass(frozen=True)
class Link:
    """What a site has: a computer and a connection."""

    speed: float  # samples whose gradients it takes in a second
    up: float  # megabits in a second
    down: float
    latency: float  # seconds, each way

    def seconds(self, sent: int, computed: float, received: int) -> float:
        """Return the time for a question of so many bytes, the work, and an answer of so many bytes."""
        on_the_way = sent * _BITS / self.down + received * _BITS / self.up
        return 2 * self.latency + on_the_way + computed / self.speed


class SimulatedNetwork:
    """An engine that asks another one and counts the seconds that the sites' links and computers would have taken."""

    def __init__(self, engine: Engine, links: Mapping[SiteId, Link]) -> None:
        self._engine, self.links = engine, dict(links)
        # By round and task, then by site: an ask may come in parts, and parts run beside each other.
        self._charged: dict[tuple[float, str], dict[SiteId, float]] = {}

    @property
    def part(self) -> int:
        """How many replies the engine holds at a time."""
        return int(getattr(self._engine, "part", _PART))

    def sites(self) -> list[SiteId]:
        """Return the names of all sites, sorted."""
        return self._engine.sites()

    def ask(
        self, task: str, briefs: Mapping[SiteId, Message], deadline: float | None = None
    ) -> dict[SiteId, Message | Failure]:
        """Have the sites do a task, and charge them for it."""
        replies = self._engine.ask(task, briefs, deadline)
        if task not in _FREE:
            for site, brief in briefs.items():
                self._charge(task, site, brief, replies[site])
        return replies

    def take(self) -> float:
        """Return the seconds that passed since the last time: those of the slowest site of each question."""
        charged, self._charged = self._charged, {}
        return sum(max(by_site.values()) for by_site in charged.values())

    def memories(self) -> dict[SiteId, Message]:
        """Return what the sites keep between rounds."""
        return self._engine.memories()

    def restore(self, memories: Mapping[SiteId, Message]) -> None:
        """Put back what `memories` returned."""
        self._engine.restore(memories)

    def checkpointed(self, memories: Mapping[SiteId, Message]) -> None:
        """Take note that a checkpoint holds what `memories` returned."""
        self._engine.checkpointed(memories)

    def close(self) -> None:
        """Give back processes and memory."""
        self._engine.close()

    def _charge(self, task: str, site: SiteId, brief: Message, reply: Message | Failure) -> None:
        if site not in self.links:
            return  # the pool of a study is no place on the network
        answer = Message() if isinstance(reply, Failure) else reply
        received = 0 if isinstance(reply, Failure) else encoded_size(reply)
        by_site = self._charged.setdefault((brief.numbers.get("round", 0), task), {})
        told = answer.numbers.get(COMPUTED, 0)
        computed = max(0.0, float(told)) if is_finite(told) else 0.0  # replies are not checked yet
        spent = self.links[site].seconds(encoded_size(brief), computed, received)
        by_site[site] = by_site.get(site, 0.0) + spent
