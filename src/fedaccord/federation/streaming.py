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

from fedaccord.aggregation.mean import per_label
from fedaccord.aggregation.replies import Replies
from fedaccord.aggregation.streaming import RunningMean
from fedaccord.federation.cohort_mean import COHORT_SAMPLES, REPRESENTATIVE
from fedaccord.messages.message import Message, SiteId

if TYPE_CHECKING:
    from fedaccord.federation.server import Server

_PART_BYTES = 2**26  # of replies that are held at a time, where the engine does not say how many
_FEWEST = 16  # but never fewer sites are asked at a time: workers would wait for each other


@dataclass
class StreamedReplies:
    """What a round's replies came to: who replied with which numbers, and the mean."""

    mean: RunningMean
    numbers: dict[SiteId, Message] = field(default_factory=dict)  # replies without their tensors
    counters: dict[str, Tensor] = field(default_factory=dict)  # of the first reply

    def replies(self, server: Server) -> Replies | None:
        """Return the account of the replies; None when there is none."""
        return server.reply_table(self.numbers) if self.numbers else None


def train(server: Server, briefs: dict[SiteId, Message]) -> StreamedReplies:
    """Have the sites train, and fold their admitted replies in the order of their names."""
    fold = StreamedReplies(RunningMean(server.layout, server.state.model, server.recipe.aggregator is per_label))
    for part in _parts(server, briefs):
        for site, reply in server.ask_each("train", part, as_views=True):
            speaker = reply.words.get(REPRESENTATIVE) if server.averages_cohorts else None
            if speaker is None:
                if not server.is_admitted(site, reply):
                    continue
                weight = reply.numbers.get(COHORT_SAMPLES) if server.averages_cohorts else None
                server.flat(site, reply, fold.mean.place())
                fold.mean.add(weight or reply.numbers["samples"], server.cards[site].informs)
                fold.counters = fold.counters or server.counters_of(reply)
            elif speaker not in fold.numbers:
                server.drop(site, "train", "", f"its model is in the reply of site '{speaker}', which was not admitted")
                continue
            fold.numbers[site] = Message(numbers=reply.numbers, words=reply.words)
    return fold


def _parts(server: Server, briefs: dict[SiteId, Message]) -> Iterator[dict[SiteId, Message]]:
    # Under a deadline all are asked at once: a slow site must not take the time of those after it.
    usual = max(_FEWEST, _PART_BYTES // (4 * max(1, server.layout.size)))
    size = len(briefs) if server.deadline is not None else getattr(server.engine, "part", usual)
    left = iter(sorted(briefs))
    while names := list(islice(left, max(1, size))):
        yield {site: briefs[site] for site in names}
