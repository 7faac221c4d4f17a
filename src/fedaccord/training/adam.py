"""Adam (Kingma and Ba 2015) in fused calls on lists of tensors, fresh in every round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedaccord.training.solvers import Stepper, clip_norm
from fedaccord.training.work import LocalWork

MEAN, SQUARE, EPSILON = 0.9, 0.999, 1e-8


@dataclass(frozen=True)
class Adam:
    """Adam with decoupled weight decay (of `weight_decay` times the learning rate in a step) and clipping."""

    batchable: ClassVar[bool] = True

    weight_decay: float = 0.0
    clip: float = 0.0

    def start(self, work: LocalWork) -> Stepper:
        """Begin with no moments."""
        return self.on(work.parameters, work.lr)

    def on(self, parameters: list[Tensor], lr: float) -> AdamStepper:
        """Begin on parameters of a site, or of several in a stack."""
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
        torch._foreach_lerp_(self.mean, gradients, 1 - MEAN)
        torch._foreach_mul_(self.square, SQUARE)
        torch._foreach_addcmul_(self.square, gradients, gradients, 1 - SQUARE)
        spread = torch._foreach_sqrt(self.square)
        torch._foreach_div_(spread, (1 - SQUARE**self.steps) ** 0.5)
        torch._foreach_add_(spread, EPSILON)
        torch._foreach_addcdiv_(self.parameters, self.mean, spread, -self.lr / (1 - MEAN**self.steps))

    def keep_first(self, sites: int) -> None:
        """Go on with the first sites of a stack only."""
        self.parameters, self.mean, self.square = (
            [tensor[:sites] for tensor in tensors] for tensors in (self.parameters, self.mean, self.square)
        )
