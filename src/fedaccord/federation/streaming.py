"""Rounds in which the server only needs the mean of the replies.

Replies are added to a running mean and freed one by one; the engine sets the number of replies in memory (`part`).
Worker processes of the embedded engine may also reply with the mean of a cohort, because transferring every model is a
large part of the cost of a small site. The first site of the cohort then represents all of them: its reply contains
their mean model and their number of samples. The other replies name it and contain numbers only. A remote site never
replies for another one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from fedaccord.aggregation.mean import RunningMean, mean, per_label
from fedaccord.aggregation.replies import Replies, normalised
from fedaccord.federation.recipe import Recipe
from fedaccord.messages.checks import all_finite
from fedaccord.messages.message import Failure, Message, SiteId

if TYPE_CHECKING:
    from fedaccord.federation.server import Server

_PART_BYTES = 2**26  # of replies in memory at a time, if the engine has no limit
_FEWEST_SITES = 16  # trained at a time, so that workers do not wait for each other
REPRESENTATIVE = "speaker"
"""Word in a reply: the site whose reply contains the mean that includes this site."""
CohortMeans = Literal["never", "same labels", "always"]
COHORT_SAMPLES = "behind"
"""Number in a representative's reply: the samples of all sites in its mean."""


@dataclass
class StreamedReplies:
    """The mean of a round's replies, and the replies without their tensors."""

    mean: RunningMean
    numbers: dict[SiteId, Message] = field(default_factory=dict)
    counters: dict[str, Tensor] = field(default_factory=dict)  # of the first reply in the mean

    def replies(self, server: Server) -> Replies | None:
        """Return the table of the replies; None without replies."""
        return server.reply_table(self.numbers) if self.numbers else None


def train(server: Server, briefs: dict[SiteId, Message]) -> StreamedReplies:
    """Train the sites and average their valid replies in the order of site names."""
    waiting: list[tuple[SiteId, bool, dict[str, Tensor]]] = []  # replies whose length was not compared yet

    def used(rows: Tensor) -> Tensor:
        """Return which models of the waiting replies are used; a cohort's mean has no length to compare."""
        single = torch.tensor([not is_mean for _, is_mean, _ in waiting])
        mask = torch.ones(len(rows), dtype=torch.bool)
        models = rows if bool(single.all()) else rows[single]  # a copy only if there are means
        mask[single] = server.norms.judge([site for site, is_mean, _ in waiting if not is_mean], models)
        if models is not rows:
            rows[single] = models  # some may have been shortened
        for (site, _, counters), is_used in zip(waiting, mask.tolist(), strict=True):
            if is_used:
                streamed.counters = streamed.counters or counters
            else:
                del streamed.numbers[site]
        waiting.clear()
        return mask

    per_label_mean = server.recipe.aggregator is per_label
    streamed = StreamedReplies(RunningMean(server.layout, server.state.model, per_label_mean, used))
    for part in _parts(server, briefs):
        for site, reply in server.ask_each("train", part, as_views=True):
            representative = reply.words.get(REPRESENTATIVE) if server.averages_cohorts else None
            if representative is not None and representative not in streamed.numbers:
                reason = f"its model is part of the reply of site '{representative}', which was dropped"
                server.drop(site, "train", "", reason)
            elif representative is not None:
                streamed.numbers[site] = Message(numbers=reply.numbers, words=reply.words)
            elif server.is_admitted(site, reply):
                streamed.numbers[site] = Message(numbers=reply.numbers, words=reply.words)
                samples = reply.numbers.get(COHORT_SAMPLES) if server.averages_cohorts else None
                waiting.append((site, samples is not None, server.counters_of(reply)))
                server.flat(site, reply, streamed.mean.place())
                streamed.mean.add(samples or reply.numbers["samples"], server.cards[site].informs)
    streamed.mean.sift()
    return streamed


def _parts(server: Server, briefs: dict[SiteId, Message]) -> Iterator[dict[SiteId, Message]]:
    # With a deadline, all sites start at once, so that a slow site does not use up the time of later ones.
    default = max(_FEWEST_SITES, _PART_BYTES // (4 * max(1, server.layout.size)))
    size = len(briefs) if server.deadline is not None else getattr(server.engine, "part", default)
    sites = iter(sorted(briefs))
    while names := list(islice(sites, max(1, size))):
        yield {site: briefs[site] for site in names}


def needs_only_mean(recipe: Recipe) -> bool:
    """Return whether the server of a recipe only needs the mean of the replies."""
    refines = any(getattr(step, "reads_replies", True) for step in recipe.refine)
    reads_replies = refines or recipe.admit or recipe.exchange.expected
    return recipe.aggregator in (mean, per_label) and not reads_replies


def cohort_means(recipe: Recipe) -> CohortMeans:
    """Return which sites may send one mean; a mean per label needs sites that inform the same labels."""
    if not needs_only_mean(recipe) or recipe.sharing.own_rows:
        return "never"
    return "always" if recipe.aggregator is mean else "same labels"


@torch.no_grad()
def stacked_mean(stack: Sequence[Tensor], weights: Sequence[float]) -> list[Tensor] | None:
    """Return the weighted means of stacked tensors, (sites, ...) each; None if any value is not finite."""
    shares = normalised(torch.tensor(weights, dtype=torch.float64))
    means = [(shares.to(tensor) @ tensor.flatten(1)).view(tensor.shape[1:]) for tensor in stack]
    # All weights are positive, so a value that is not finite makes the mean not finite.
    return means if all(map(all_finite, means)) else None


def without_representative(reply: Message | Failure, tensors: dict[str, Tensor]) -> Message | Failure:
    """Return a reply as if each site had sent its own model, with the shapes of `tensors`."""
    if isinstance(reply, Failure) or not (REPRESENTATIVE in reply.words or COHORT_SAMPLES in reply.numbers):
        return reply
    numbers = {name: value for name, value in reply.numbers.items() if name != COHORT_SAMPLES}
    words = {name: value for name, value in reply.words.items() if name != REPRESENTATIVE}
    return Message(tensors, numbers, words)
