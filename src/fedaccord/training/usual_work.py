"""Learning rate and number of steps for sites that say "auto": by the kind of input and the number of rows.

Measured on tables, images, signals and texts of 60 to 60,000 rows a site (docs/accord.md).
"""

from __future__ import annotations

import math

from torch import Tensor

from fedaccord.training.settings import Optimiser, Schedule, TrainingSettings

FEWEST_STEPS, MOST_STEPS = 10, 200  # in a round; between them, one epoch
SGD_RATE, TEXT_RATE, ADAM_RATE = 0.05, 0.5, 0.003
SHORT_ROWS = 2.0  # mean squared length of a row; hashed texts have 1, standardised numbers one for each feature
SMALL_SPREAD = 0.1  # mean variance of a feature; 1 for standardised numbers


def usual_steps(samples: int, batch: int) -> int:
    """Return the number of steps in a round: an epoch, but enough for a small site and not too many for a large one."""
    return min(MOST_STEPS, max(FEWEST_STEPS, math.ceil(samples / batch)))


def rate_if_auto(settings: TrainingSettings, x: Tensor) -> float | None:
    """Return the learning rate for training inputs, (n, ...), if the settings say "auto"; else None."""
    return usual_rate(x, settings.optimiser, settings.schedule) if settings.lr == "auto" else None


def usual_rate(x: Tensor, optimiser: Optimiser, schedule: Schedule) -> float:
    """Return the learning rate for training inputs, (n, ...); the first one of a cosine schedule."""
    if optimiser == "adam":
        rate = ADAM_RATE
    else:
        rate = TEXT_RATE if has_short_rows(x) else SGD_RATE
    return 2 * rate if schedule == "cosine" else rate  # its mean is half the first rate


def has_short_rows(x: Tensor) -> bool:
    """Return whether inputs are rows of small features, as of hashed texts, whose gradients are small as well."""
    if x.ndim != 2 or not len(x):
        return False
    return bool(x.square().sum(1).mean() <= SHORT_ROWS) and bool(x.var(0, correction=0).mean() < SMALL_SPREAD)
