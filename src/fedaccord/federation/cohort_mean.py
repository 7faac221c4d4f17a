"""The mean model of a cohort, sent to the server instead of one model per site.

If the server only needs the mean of the replies, transferring every model from a worker process is a large part of the
cost of a small site. The first site of a cohort then represents all of them: its reply contains their mean model and
their number of samples. The other replies name it and contain numbers only. This is limited to worker processes of
the embedded engine; a remote site never replies for another one.
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
"""Word in a reply: the site whose reply contains the mean that includes this site."""
COHORT_SAMPLES = "behind"
"""Number in a representative's reply: the samples of all sites in its mean."""


def needs_only_mean(recipe: Recipe) -> bool:
    """Return whether the server of a recipe only needs the mean of the replies."""
    reads_replies = recipe.refine or recipe.admit or recipe.exchange.expected
    return recipe.aggregator in (mean, per_label) and not reads_replies


def can_average(recipe: Recipe, informs: Sequence[Tensor] = ()) -> bool:
    """Return whether sites that inform these labels, bool (labels,) each, may send one mean.

    A mean per label needs sites that inform the same labels.
    """
    same_labels = recipe.aggregator is mean or all(torch.equal(labels, informs[0]) for labels in informs)
    return needs_only_mean(recipe) and not recipe.sharing.own_rows and same_labels


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
