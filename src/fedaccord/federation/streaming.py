"""A round's training whose replies are folded into the model as they come, a few at a time, and forgotten.

For recipes whose rule is a mean and whose server does nothing else with the replies; the others see all of them at
once. How many replies an engine holds at a time is its own matter (`part`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from torch import Tensor

from fedaccord.aggregation.mean import mean, per_label
from fedaccord.aggregation.replies import Replies
from fedaccord.aggregation.streaming import RunningMean
from fedaccord.messages.message import Message, SiteId

if TYPE_CHECKING:
    from fedaccord.federation.server import Server

_PART_BYTES = 2**26  # of replies that are held at a time, where the engine does not say how many
_FEWEST = 16  # but never fewer sites are asked at a time: workers would wait for each other


def can_stream(server: Server) -> bool:
    """Say whether the recipe needs no more of a reply than its place in a mean."""
    recipe = server.recipe
    others = recipe.refine or recipe.attack or recipe.defence or recipe.weigh or recipe.extras
    return recipe.aggregator in (mean, per_label) and not others


@dataclass
class Fold:
    """What a round's replies came to: who replied with which numbers, and the mean."""

    mean: RunningMean
    numbers: dict[SiteId, Message] = field(default_factory=dict)  # replies without their tensors
    counters: dict[str, Tensor] = field(default_factory=dict)  # of the first reply

    def replies(self, server: Server) -> Replies | None:
        """Return the account of the replies; None when there is none."""
        return server.account(self.numbers) if self.numbers else None


def train(server: Server, briefs: dict[SiteId, Message]) -> Fold:
    """Have the sites train, and fold their admitted replies in the order of their names."""
    fold = Fold(RunningMean(server.layout, server.state.model, server.recipe.aggregator is per_label))
    for part in _parts(server, briefs):
        for site, reply in server.ask_each("train", part, lent=True):
            if not server.is_admitted(site, reply):
                continue
            server.flat(site, reply, fold.mean.place())
            fold.mean.add(reply.numbers["samples"], server.cards[site].informs)
            if not fold.numbers:
                fold.counters = server.counters_of(reply)
            fold.numbers[site] = Message(numbers=reply.numbers, words=reply.words)
    return fold


def _parts(server: Server, briefs: dict[SiteId, Message]) -> Iterator[dict[SiteId, Message]]:
    # Under a deadline all are asked at once: a slow site must not take the time of those after it.
    usual = max(_FEWEST, _PART_BYTES // (4 * max(1, server.layout.size)))
    size = len(briefs) if server.deadline is not None else getattr(server.engine, "part", usual)
    left = iter(sorted(briefs))
    while names := list(islice(left, max(1, size))):
        yield {site: briefs[site] for site in names}
