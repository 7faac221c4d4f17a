"""The site's side of SCAFFOLD (Karimireddy et al. 2020): steps corrected by control variates, option II.

    y   <- y - eta (g - c_i + c)
    c_i <- c_i - c + (x - y) / (K eta)

`x` is the model that was received, `y` the one that trains, `K` the number of steps. By the second line the new control
is the mean gradient of the round's steps, whatever they were made of: a proximal term or weight decay is part of it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedaccord.training.solvers import SGD, SGDStepper, Stepper, clip_norm


class CorrectedSGD(Stepper):
    """Steps of SGD along `g + correction`, where the correction is `c - c_i` and stays the same for a round.

    Clipping is of the gradient, before it is corrected, so that a control is a mean of clipped gradients.
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
        """Return the site's new control by option II; None when no step was taken, or it is not finite."""
        if not self.steps:
            return None
        moved = torch._foreach_sub(received, [p.detach() for p in self.parameters])
        torch._foreach_div_(moved, effective_steps(self.steps, self.settings.momentum) * self.lr)
        torch._foreach_sub_(moved, self.correction)
        return list(moved) if all(bool(torch.isfinite(part).all()) for part in moved) else None


def effective_steps(steps: int, momentum: float) -> float:
    """Return how many plain steps are worth so many with momentum: the sum of all gradients' weights (FedNova)."""
    weight = steps - momentum * (1 - momentum**steps) / (1 - momentum)
    return weight / (1 - momentum)
