"""Learning rate and number of steps for sites that say "auto": by the kind of input and the number of rows.

Measured on tables, images, signals and texts of 60 to 60,000 rows a site (docs/accord.md).
"""

from __future__ import annotations

import math

from torch import Tensor

from fedaccord.training.input_kind import kind_of_input
from fedaccord.training.settings import Optimiser, TrainingSettings

FEWEST_STEPS, MOST_STEPS = 10, 200  # in a round; between them, one epoch
SGD_RATE, TEXT_RATE, ADAM_RATE = 0.05, 1.0, 0.003  # 0.1 diverged on images


def usual_steps(samples: int, batch: int) -> int:
    """Return the number of steps in a round: an epoch, but enough for a small site and not too many for a large one."""
    return min(MOST_STEPS, max(FEWEST_STEPS, math.ceil(samples / batch)))


def rate_if_auto(settings: TrainingSettings, x: Tensor) -> float | None:
    """Return the learning rate for training inputs, (n, ...), if the settings say "auto"; else None."""
    return usual_rate(x, settings.optimiser) if settings.lr == "auto" else None


def usual_rate(x: Tensor, optimiser: Optimiser) -> float:
    """Return the learning rate for training inputs, (n, ...); with a cosine schedule, the first one."""
    if optimiser == "adam":
        return ADAM_RATE
    return TEXT_RATE if kind_of_input(x) == "text" else SGD_RATE  # gradients of small features are small
