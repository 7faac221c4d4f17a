"""How a site steps. Updates are fused calls on lists of tensors: `torch.optim` costs two seconds of start-up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from fedaccord.messages.message import Message
from fedaccord.training.work import LocalWork

LossAndGradients = tuple[Tensor, Sequence[Tensor]]
"""The loss of a batch, and the gradients of all parameters."""


class Stepper:
    """Changes parameters in place, one gradient at a time; lives for one round at one site."""

    evaluations = 1  # how often a sample's gradient is taken in each step
    uses_received_gradient = (
        False  # a step also looks at the gradient of its batch at the received model, put into `there`
    )
    received_gradient: list[Tensor]

    def evaluate(self, measure: Callable[[], LossAndGradients]) -> LossAndGradients:
        """Measure a batch; a stepper that compares two points measures it with other parameters in place as well."""
        return measure()

    def step(self, gradients: list[Tensor]) -> None:
        """Take one step."""
        raise TypeError(f"{type(self).__name__} takes no steps")

    def finish(self, work: LocalWork, reply: Message) -> None:
        """Add to the reply, or to what the site keeps, e.g. momentum."""


class Solver(Protocol):
    """The `solver` slot: makes a fresh stepper for a round, from what the site was told and what it keeps.

    One that never runs the model says `batchable = True`: then it can serve sites that train as one program, where
    the model's parameters are in `work.parameters` alone.
    """

    def start(self, work: LocalWork) -> Stepper:
        """Begin a round at one site."""


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent with optional heavy-ball momentum, weight decay and clipping."""

    batchable: ClassVar[bool] = True

    momentum: float = 0.0
    weight_decay: float = 0.0
    clip: float = 0.0

    def start(self, work: LocalWork) -> Stepper:
        """Begin with no momentum."""
        return self.on(work.parameters, work.lr)

    def on(self, parameters: list[Tensor], lr: float) -> SGDStepper:
        """Begin on parameters of a site, or of several in a stack."""
        return SGDStepper(self, parameters, lr)


class SGDStepper(Stepper):
    """The steps of one round of SGD."""

    def __init__(self, settings: SGD, parameters: list[Tensor], lr: float) -> None:
        self.settings, self.parameters, self.lr = settings, parameters, lr
        self.velocity: list[Tensor] | None = None

    @torch.no_grad()
    def step(self, gradients: list[Tensor]) -> None:
        """Take one step; the first velocity is the first gradient, as in torch.optim.SGD."""
        settings, gradients = self.settings, regularised(gradients, self.parameters, self.settings)
        if settings.momentum:
            if self.velocity is None:
                self.velocity = [g.clone() for g in gradients]
            else:
                torch._foreach_mul_(self.velocity, settings.momentum)
                torch._foreach_add_(self.velocity, gradients)
            gradients = self.velocity
        torch._foreach_add_(self.parameters, gradients, alpha=-self.lr)

    def keep_first(self, sites: int) -> None:
        """Go on with the first sites of a stack only."""
        self.parameters = [parameter[:sites] for parameter in self.parameters]
        self.velocity = None if self.velocity is None else [velocity[:sites] for velocity in self.velocity]


def regularised(gradients: list[Tensor], parameters: list[Tensor], settings: SGD) -> list[Tensor]:
    """Return gradients clipped, and with weight decay, as the settings say."""
    if settings.clip:
        gradients = clip_norm(gradients, settings.clip)
        if settings.weight_decay:  # these tensors are new, so they can be added to
            torch._foreach_add_(gradients, parameters, alpha=settings.weight_decay)
    elif settings.weight_decay:
        gradients = list(torch._foreach_add(gradients, parameters, alpha=settings.weight_decay))
    return gradients


def clip_norm(gradients: list[Tensor], largest: float) -> list[Tensor]:
    """Return gradients scaled so that their joint norm is at most `largest`.

    Not in place: autograd may give two parameters one tensor, which would then be scaled twice.
    """
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    return list(torch._foreach_mul(gradients, torch.clamp(largest / (norm + 1e-12), max=1.0)))
