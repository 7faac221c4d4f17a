"""Adam (Kingma and Ba 2015) with fused operations on lists of tensors; its moments are reset in every round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedaccord.training.solvers import Stepper, clip_norm
from fedaccord.training.work import LocalWork

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8


@dataclass(frozen=True)
class Adam:
    """Adam with decoupled weight decay and gradient clipping.

    A step multiplies the parameters by `1 - lr * weight_decay`. `clip` is the largest norm of a gradient; 0 disables
    clipping.
    """

    batchable: ClassVar[bool] = True

    weight_decay: float = 0.0
    clip: float = 0.0

    def start(self, work: LocalWork) -> Stepper:
        """Return a stepper with zero moments."""
        return self.on(work.parameters, work.lr)

    def on(self, parameters: list[Tensor], lr: float) -> AdamStepper:
        """Return a stepper on the parameters of one site, or of several sites in a stack."""
        return AdamStepper(self, parameters, lr)


class AdamStepper(Stepper):
    """The steps of one round of Adam."""

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
