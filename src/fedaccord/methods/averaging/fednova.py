"""FedNova (Wang et al. 2020; docs/methods.md 3.5): averaging that corrects for different numbers of local steps.

Sites with more samples take more steps per epoch and would pull the mean towards their own optimum. FedNova divides
each update by its effective number of steps `A_k` and multiplies by the weighted mean of these, `A`:

    A = sum_k w_k A_k
    theta <- theta + sum_k w_k (A / A_k) (theta_k - theta)
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedaccord.aggregation.replies import Aggregator, Replies, normalised
from fedaccord.federation.recipe import Recipe, plain_solver
from fedaccord.federation.server import Server
from fedaccord.messages.checks import is_finite
from fedaccord.messages.message import Message
from fedaccord.methods.averaging.settings import FedNovaSettings
from fedaccord.methods.common_model import shared_model_recipe
from fedaccord.training.solvers import Solver, Stepper
from fedaccord.training.work import LocalWork

EFFECTIVE_STEPS = "effective_steps"  # in a reply: A_k, the sum of the weights of all gradients in the update


def fednova(settings: FedNovaSettings) -> Recipe:
    """Return the recipe of FedNova."""
    momentum = settings.momentum if settings.optimiser == "sgd" else 0.0  # a step of Adam counts as one
    recipe = shared_model_recipe(settings)
    assert recipe.aggregator is not None
    return replace(
        recipe,
        solver=CountedSteps(plain_solver(settings), momentum),
        aggregator=with_normalised_steps(recipe.aggregator, robust=settings.aggregation != "mean"),
        admit=(drop_uncounted, *recipe.admit),
    )


def drop_uncounted(server: Server, replies: Replies) -> Replies:
    """Drop replies without a positive, finite number of effective steps."""
    valid = []
    for site, message in zip(replies.sites, replies.messages, strict=True):
        steps = message.numbers.get(EFFECTIVE_STEPS)
        valid.append(is_finite(steps) and steps is not None and steps > 0)
        if not valid[-1]:
            server.drop(site, "train", EFFECTIVE_STEPS, f"the number of steps is {steps!r}, not above zero")
    return replies.keep(torch.tensor(valid, dtype=torch.bool))


def with_normalised_steps(aggregator: Aggregator, robust: bool = False) -> Aggregator:
    """Return an aggregator that first scales each update by `A / A_k`; batch-norm statistics are not scaled.

    If `robust`, `A` is the median of the `A_k`, because a single hostile site could make the mean arbitrarily large.
    """

    def combine(replies: Replies) -> Tensor:
        steps = torch.tensor([m.numbers[EFFECTIVE_STEPS] for m in replies.messages], dtype=torch.float64)
        common_steps = steps.median() if robust else (normalised(replies.weights) * steps).sum()
        scale = common_steps / steps
        trainable = replies.layout.trainable_mask()
        start = replies.previous[trainable]
        matrix = replies.matrix.clone()
        matrix[:, trainable] = start + scale.to(matrix.dtype)[:, None] * (replies.matrix[:, trainable] - start)
        return aggregator(replace(replies, matrix=matrix))

    return combine


@dataclass(frozen=True)
class CountedSteps:
    """A solver that counts the steps of an inner solver; `momentum` is the inner solver's heavy-ball momentum."""

    inner: Solver
    momentum: float = 0.0

    @property
    def batchable(self) -> bool:
        """Delegates to the inner solver."""
        return bool(getattr(self.inner, "batchable", False))

    def start(self, work: LocalWork) -> Stepper:
        """Return a stepper that counts from zero."""
        return _CountingStepper(self.inner.start(work), self.momentum)


class _CountingStepper(Stepper):
    def __init__(self, inner: Stepper, momentum: float) -> None:
        self.inner, self.momentum, self.steps = inner, momentum, 0

    def step(self, gradients: list[Tensor]) -> None:
        self.inner.step(gradients)
        self.steps += 1

    def finish(self, work: LocalWork, reply: Message) -> None:
        self.inner.finish(work, reply)
        reply.numbers[EFFECTIVE_STEPS] = effective_steps(self.steps, self.momentum)


def effective_steps(steps: int, momentum: float) -> float:
    """Return the sum of the weights of all gradients in `steps` steps with momentum."""
    weight = steps - momentum * (1 - momentum**steps) / (1 - momentum)
    return weight / (1 - momentum)
