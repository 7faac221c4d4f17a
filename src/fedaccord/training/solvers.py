"""Solvers: how a site steps, by SGD or Adam.

Updates are fused operations on lists of tensors, because importing `torch.optim` takes two seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from fedaccord.messages.message import Message
from fedaccord.training.work import LocalWork

LossAndGradients = tuple[Tensor, Sequence[Tensor]]
"""The loss of a batch and the gradients of all parameters."""
BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8  # of Adam


class Stepper:
    """Updates parameters in place, one gradient at a time; lives for one round at one site."""

    evaluations = 1  # gradient evaluations of each sample per step
    uses_received_gradient = False  # a step also needs the batch's gradient at the received model
    received_gradient: list[Tensor]  # that gradient, set before each step

    def evaluate(self, closure: Callable[[], LossAndGradients]) -> LossAndGradients:
        """Return the loss and gradients of a batch; a stepper that compares two models calls `closure` for each."""
        return closure()

    def step(self, gradients: list[Tensor]) -> None:
        """Take one step."""
        raise TypeError(f"{type(self).__name__} does not implement step")

    def finish(self, work: LocalWork, reply: Message) -> None:
        """Add tensors or numbers, e.g. momentum, to the reply or to the site's memory."""


class Solver(Protocol):
    """The `solver` slot: creates a stepper for each round.

    A solver with `batchable = True` never runs the model and only uses `work.parameters`. It can then serve sites that
    train as one program.
    """

    def start(self, work: LocalWork) -> Stepper:
        """Return the stepper of a round at one site."""


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent with heavy-ball momentum, weight decay and gradient clipping; 0 disables each."""

    batchable: ClassVar[bool] = True

    momentum: float = 0.0
    weight_decay: float = 0.0
    clip: float = 0.0

    def start(self, work: LocalWork) -> Stepper:
        """Return a stepper without momentum from earlier rounds."""
        return SGDStepper(self, work.parameters, work.lr)


class SGDStepper(Stepper):
    """The steps of one round of SGD, on the parameters of one site or of several sites in a stack."""

    def __init__(self, settings: SGD, parameters: list[Tensor], lr: float) -> None:
        self.settings, self.parameters, self.lr = settings, parameters, lr
        self.velocity: list[Tensor] | None = None

    @torch.no_grad()
    def step(self, gradients: list[Tensor]) -> None:
        """Take one step; the first velocity is the first gradient, as in `torch.optim.SGD`."""
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
        """Continue with the first `sites` sites of a stack only."""
        self.parameters = [parameter[:sites] for parameter in self.parameters]
        self.velocity = None if self.velocity is None else [velocity[:sites] for velocity in self.velocity]


def regularised(gradients: list[Tensor], parameters: list[Tensor], settings: SGD) -> list[Tensor]:
    """Return the gradients after clipping and weight decay."""
    if settings.clip:
        gradients = clip_norm(gradients, settings.clip)
        if settings.weight_decay:  # in place, because clipping returned new tensors
            torch._foreach_add_(gradients, parameters, alpha=settings.weight_decay)
    elif settings.weight_decay:
        gradients = list(torch._foreach_add(gradients, parameters, alpha=settings.weight_decay))
    return gradients


def clip_norm(gradients: list[Tensor], max_norm: float) -> list[Tensor]:
    """Return the gradients, scaled so that their joint norm is at most `max_norm`.

    The result is new tensors: autograd may return one tensor for two parameters, which would then be scaled twice.
    """
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    return list(torch._foreach_mul(gradients, torch.clamp(max_norm / (norm + 1e-12), max=1.0)))


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma and Ba 2015) with decoupled weight decay and gradient clipping.

    A step multiplies the parameters by `1 - lr * weight_decay`. `clip` is the largest norm of a gradient; 0 disables
    clipping.
    """

    batchable: ClassVar[bool] = True

    weight_decay: float = 0.0
    clip: float = 0.0

    def start(self, work: LocalWork) -> Stepper:
        """Return a stepper with zero moments."""
        return AdamStepper(self, work.parameters, work.lr)


class AdamStepper(Stepper):
    """The steps of one round of Adam, on the parameters of one site or of several sites in a stack."""

    def __init__(self, settings: Adam, parameters: list[Tensor], lr: float) -> None:
        self.settings, self.parameters, self.lr, self.steps = settings, parameters, lr, 0
        self.mean = [torch.zeros_like(p) for p in parameters]
        self.square = [torch.zeros_like(p) for p in parameters]

    @torch.no_grad()
    def step(self, gradients: list[Tensor]) -> None:
        """Take one step."""
        self.steps += 1
        if self.settings.clip:
            gradients = clip_norm(gradients, self.settings.clip)
        if self.settings.weight_decay:
            torch._foreach_mul_(self.parameters, 1 - self.lr * self.settings.weight_decay)
        torch._foreach_lerp_(self.mean, gradients, 1 - BETA1)
        torch._foreach_mul_(self.square, BETA2)
        torch._foreach_addcmul_(self.square, gradients, gradients, 1 - BETA2)
        denominator = torch._foreach_sqrt(self.square)
        torch._foreach_div_(denominator, (1 - BETA2**self.steps) ** 0.5)
        torch._foreach_add_(denominator, EPSILON)
        torch._foreach_addcdiv_(self.parameters, self.mean, denominator, -self.lr / (1 - BETA1**self.steps))

    def keep_first(self, sites: int) -> None:
        """Continue with the first `sites` sites of a stack only."""
        self.parameters, self.mean, self.square = (
            [tensor[:sites] for tensor in tensors] for tensors in (self.parameters, self.mean, self.square)
        )
