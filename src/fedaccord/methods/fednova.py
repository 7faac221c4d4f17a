"""FedNova (Wang et al. 2020; methods.md 4.8): federated averaging that corrects for different numbers of local steps.

Sites with more samples take more steps in an epoch, and would pull the mean to their own optimum. Here each site's way
is divided by the number of its steps, and the mean goes as far as the mean number of steps. It works for any view.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from fedaccord.aggregation.fednova import with_normalised_steps
from fedaccord.aggregation.replies import Replies
from fedaccord.federation.recipe import Recipe, plain_solver
from fedaccord.federation.server import Server
from fedaccord.messages.checks import is_finite
from fedaccord.methods.classic import plain
from fedaccord.methods.settings import FedNovaSettings
from fedaccord.training.fednova import EFFECTIVE_STEPS, Counted


def fednova(settings: FedNovaSettings) -> Recipe:
    """Return the recipe."""
    momentum = settings.momentum if settings.optimiser == "sgd" else 0.0  # a step of Adam counts as one
    recipe = replace(plain(settings), solver=Counted(plain_solver(settings), momentum))
    assert recipe.aggregator is not None
    asked = recipe.defence

    def defence(server: Server, replies: Replies) -> Replies:
        counted = drop_uncounted(server, replies)
        return asked(server, counted) if asked and counted.sites else counted

    normalised = with_normalised_steps(recipe.aggregator, robust=settings.aggregation != "mean")
    return replace(recipe, aggregator=normalised, defence=defence)


def drop_uncounted(server: Server, replies: Replies) -> Replies:
    """Leave out replies without a number of steps that one can divide by: the `defence` slot."""
    counted = []
    for site, message in zip(replies.sites, replies.messages, strict=True):
        steps = message.numbers.get(EFFECTIVE_STEPS)
        counted.append(is_finite(steps) and steps is not None and steps > 0)
        if not counted[-1]:
            server.drop(site, "train", EFFECTIVE_STEPS, f"the number of steps is {steps!r}, not above zero")
    return replies.keep(torch.tensor(counted, dtype=torch.bool))
