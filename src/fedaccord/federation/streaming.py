"""Training rounds whose replies are added to a running mean and freed one by one.

For recipes that only need the mean of the replies. The number of replies in memory is set by the engine (`part`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from torch import Tensor

from fedaccord.aggregation.mean import RunningMean, per_label
from fedaccord.aggregation.replies import Replies
from fedaccord.federation.cohort_mean import COHORT_SAMPLES, REPRESENTATIVE
from fedaccord.messages.message import Message, SiteId

if TYPE_CHECKING:
    from fedaccord.federation.server import Server

_PART_BYTES = 2**26  # of replies in memory at a time, if the engine has no limit
_FEWEST_SITES = 16  # trained at a time, so that workers do not wait for each other


@dataclass
class StreamedReplies:
    """The mean of a round's replies, and the replies without their tensors."""

    mean: RunningMean
    numbers: dict[SiteId, Message] = field(default_factory=dict)
    counters: dict[str, Tensor] = field(default_factory=dict)  # of the first reply

    def replies(self, server: Server) -> Replies | None:
        """Return the table of the replies; None without replies."""
        return server.reply_table(self.numbers) if self.numbers else None


def train(server: Server, briefs: dict[SiteId, Message]) -> StreamedReplies:
    """Train the sites and average their valid replies in the order of site names."""
    streamed = StreamedReplies(RunningMean(server.layout, server.state.model, server.recipe.aggregator is per_label))
    for part in _parts(server, briefs):
        for site, reply in server.ask_each("train", part, as_views=True):
            representative = reply.words.get(REPRESENTATIVE) if server.averages_cohorts else None
            if representative is None:
                if not server.is_admitted(site, reply):
                    continue
                weight = reply.numbers.get(COHORT_SAMPLES) if server.averages_cohorts else None
                server.flat(site, reply, streamed.mean.place())
                streamed.mean.add(weight or reply.numbers["samples"], server.cards[site].informs)
                streamed.counters = streamed.counters or server.counters_of(reply)
            elif representative not in streamed.numbers:
                reason = f"its model is part of the reply of site '{representative}', which was dropped"
                server.drop(site, "train", "", reason)
                continue
            streamed.numbers[site] = Message(numbers=reply.numbers, words=reply.words)
    return streamed


def _parts(server: Server, briefs: dict[SiteId, Message]) -> Iterator[dict[SiteId, Message]]:
    # With a deadline, all sites start at once, so that a slow site does not use up the time of later ones.
    default = max(_FEWEST_SITES, _PART_BYTES // (4 * max(1, server.layout.size)))
    size = len(briefs) if server.deadline is not None else getattr(server.engine, "part", default)
    sites = iter(sorted(briefs))
    while names := list(islice(sites, max(1, size))):
        yield {site: briefs[site] for site in names}
