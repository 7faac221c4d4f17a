"""FedNova (Wang et al. 2020; docs/methods.md 3.5): averaging that corrects for different numbers of steps.

Sites with more samples take more steps in an epoch and would pull the mean towards their own optimum. Here each update
is divided by its number of steps, and the mean update is multiplied by the mean number of steps:

    tau = sum_k p_k ||a_k||_1
    w  <- w - tau sum_k p_k (w - w_k) / ||a_k||_1
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
from fedaccord.methods.common_model import plain
from fedaccord.methods.fednova.settings import FedNovaSettings
from fedaccord.training.corrected_sgd import effective_steps
from fedaccord.training.solvers import Solver, Stepper
from fedaccord.training.work import LocalWork

EFFECTIVE_STEPS = "effective_steps"  # in a reply: the sum of all gradients' weights, ||a||_1


def fednova(settings: FedNovaSettings) -> Recipe:
    """Return the recipe."""
    momentum = settings.momentum if settings.optimiser == "sgd" else 0.0  # a step of Adam counts as one
    recipe = replace(plain(settings), solver=Counted(plain_solver(settings), momentum))
    assert recipe.aggregator is not None
    normalised = with_normalised_steps(recipe.aggregator, robust=settings.aggregation != "mean")
    return replace(recipe, aggregator=normalised, admit=(drop_uncounted, *recipe.admit))


def drop_uncounted(server: Server, replies: Replies) -> Replies:
    """Leave out replies without a number of steps that one can divide by."""
    counted = []
    for site, message in zip(replies.sites, replies.messages, strict=True):
        steps = message.numbers.get(EFFECTIVE_STEPS)
        counted.append(is_finite(steps) and steps is not None and steps > 0)
        if not counted[-1]:
            server.drop(site, "train", EFFECTIVE_STEPS, f"the number of steps is {steps!r}, not above zero")
    return replies.keep(torch.tensor(counted, dtype=torch.bool))


def with_normalised_steps(aggregator: Aggregator, robust: bool = False) -> Aggregator:
    """Let each site's way be as long as if all had taken the mean number of steps; buffers are no steps.

    If `robust`, tau is the median: the mean is as large as one hostile site says, and all ways grow with it.
    """

    def combine(replies: Replies) -> Tensor:
        steps = torch.tensor([m.numbers[EFFECTIVE_STEPS] for m in replies.messages], dtype=torch.float64)
        tau = steps.median() if robust else (normalised(replies.weights) * steps).sum()
        scale = tau / steps
        moving = replies.layout.trainable_mask()
        start = replies.previous[moving]
        matrix = replies.matrix.clone()
        matrix[:, moving] = start + scale.to(matrix.dtype)[:, None] * (replies.matrix[:, moving] - start)
        return aggregator(replace(replies, matrix=matrix))

    return combine


@dataclass(frozen=True)
class Counted:
    """Another solver whose steps are counted; with heavy-ball momentum a gradient lasts longer than one step."""

    inner: Solver
    momentum: float = 0.0

    @property
    def steps_apart(self) -> bool:
        """Whether the other solver's steps never run the model."""
        return bool(getattr(self.inner, "steps_apart", False))

    def start(self, work: LocalWork) -> Stepper:
        """Begin to count."""
        return _Counter(self.inner.start(work), self.momentum)


class _Counter(Stepper):
    def __init__(self, inner: Stepper, momentum: float) -> None:
        self.inner, self.momentum, self.steps = inner, momentum, 0

    def step(self, gradients: list[Tensor]) -> None:
        self.inner.step(gradients)
        self.steps += 1

    def finish(self, work: LocalWork, reply: Message) -> None:
        self.inner.finish(work, reply)
        reply.numbers[EFFECTIVE_STEPS] = effective_steps(self.steps, self.momentum)
