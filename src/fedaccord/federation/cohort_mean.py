"""The models of sites that trained as one program, handed to the server as one mean instead of one by one.

Where the server needs no more of a reply than its place in a mean, carrying every model from a worker process to the
server is much of what a site of few samples costs. So the first site of a cohort speaks for all of them: its reply
holds their mean and how many samples stand behind it, the others' replies name it and hold their numbers. Only the
processes of the embedded engine do that: on a network nobody's word is taken for another's.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedaccord.aggregation.mean import mean, per_label
from fedaccord.aggregation.replies import normalised
from fedaccord.federation.recipe import Recipe
from fedaccord.messages.checks import all_finite
from fedaccord.messages.message import Failure, Message

REPRESENTATIVE = "speaker"
"""The word in a reply that names the site whose reply holds the mean this one is part of."""
COHORT_SAMPLES = "behind"
"""The number in a speaker's reply: the samples of all sites it speaks for."""


def needs_only_mean(recipe: Recipe) -> bool:
    """Say whether a recipe's server needs no more of a reply than its place in a mean."""
    others = recipe.refine or recipe.admit or recipe.exchange.expected
    return recipe.aggregator in (mean, per_label) and not others


def can_average(recipe: Recipe, informs: Sequence[Tensor] = ()) -> bool:
    """Say whether sites with these labels may have one speaker: in a mean by label they must inform the same."""
    alike = recipe.aggregator is mean or all(torch.equal(own, informs[0]) for own in informs)
    return needs_only_mean(recipe) and not recipe.sharing.own_rows and alike


@torch.no_grad()
def stacked_mean(stack: Sequence[Tensor], weights: Sequence[float]) -> list[Tensor] | None:
    """Return the means of stacked parameters over their first axis; None where a site's values are not finite."""
    shares = normalised(torch.tensor(weights, dtype=torch.float64))
    means = [(shares.to(whole) @ whole.flatten(1)).view(whole.shape[1:]) for whole in stack]
    # A value that is not finite cannot get lost in a mean whose weights are all above zero.
    return means if all(map(all_finite, means)) else None


def without_representative(reply: Message | Failure, tensors: dict[str, Tensor]) -> Message | Failure:
    """Return a reply with the tensors it would have if no site had spoken for another."""
    if isinstance(reply, Failure) or not (REPRESENTATIVE in reply.words or COHORT_SAMPLES in reply.numbers):
        return reply
    numbers = {name: value for name, value in reply.numbers.items() if name != COHORT_SAMPLES}
    words = {name: value for name, value in reply.words.items() if name != REPRESENTATIVE}
    return Message(tensors, numbers, words)
