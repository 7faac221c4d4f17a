"""SCAFFOLD at a site (Karimireddy et al. 2020): steps corrected by control variates, option II.

    y   <- y - eta (g - c_i + c)
    c_i <- c_i - c + (x - y) / (K eta)

`x` is the received model, `y` the local model and `K` the number of steps. The new control is the mean of the
gradients of the round, including a proximal term and weight decay.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedaccord.training.solvers import SGD, SGDStepper, Stepper, clip_norm


class CorrectedSGD(Stepper):
    """SGD along `g + correction`, where `correction = c - c_i` is constant within a round.

    The gradient is clipped before the correction, so that a control is a mean of clipped gradients.
    """

    def __init__(self, settings: SGD, parameters: list[Tensor], lr: float, correction: list[Tensor]) -> None:
        self.settings, self.parameters, self.lr, self.correction = settings, parameters, lr, correction
        self.steps = 0
        self._sgd = SGDStepper(SGD(settings.momentum, settings.weight_decay), parameters, lr)

    def step(self, gradients: list[Tensor]) -> None:
        """Take one step."""
        if self.settings.clip:
            gradients = clip_norm(gradients, self.settings.clip)
        self._sgd.step(list(torch._foreach_add(gradients, self.correction)))
        self.steps += 1

    def control(self, received: list[Tensor]) -> list[Tensor] | None:
        """Return the site's new control by option II; None if no step was taken or it is not finite."""
        if not self.steps:
            return None
        control = torch._foreach_sub(received, [p.detach() for p in self.parameters])
        torch._foreach_div_(control, effective_steps(self.steps, self.settings.momentum) * self.lr)
        torch._foreach_sub_(control, self.correction)
        return list(control) if all(bool(torch.isfinite(part).all()) for part in control) else None


def effective_steps(steps: int, momentum: float) -> float:
    """Return the sum of the weights of all gradients in `steps` steps with momentum (FedNova)."""
    weight = steps - momentum * (1 - momentum**steps) / (1 - momentum)
    return weight / (1 - momentum)
