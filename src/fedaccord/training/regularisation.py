"""Noise and dropout that fit the kind of input, for sites that train on few rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from fedaccord.training.input_kind import InputKind, kind_of_input
from fedaccord.training.noise import Noisy
from fedaccord.training.work import LocalWork


class Regularisation(NamedTuple):
    """Standard deviation of the noise on inputs, and dropout rate on the encoder's output."""

    noise: float
    dropout: float


# Noise is meant for standardised numbers. It would drown a hashed text, whose features are small, and it is no
# variation that images or signals have. Dropout slowed texts and images down more than it helped them.
NOTHING = Regularisation(0.0, 0.0)
BY_KIND: Mapping[InputKind, Regularisation] = {
    "table": Regularisation(0.5, 0.3),
    "text": NOTHING,
    "signal": NOTHING,
    "image": NOTHING,
}
PLAIN = "plain"
"""The word of a brief, or of the site's memory, that switches noise and dropout off."""
FEW_ROWS = 1_000  # a site with more has less to gain from noise, and more to lose


def regularisation_for(x: Tensor) -> Regularisation:
    """Return the noise and dropout for a site's training inputs, (n, ...): less with more rows."""
    full, share = BY_KIND[kind_of_input(x)], min(1.0, FEW_ROWS / max(1, len(x)))
    return Regularisation(share * full.noise, share * full.dropout)


def is_regularised(work: LocalWork) -> bool:
    """Return whether the site's training inputs are of a kind that gets noise or dropout."""
    return any(BY_KIND[kind_of_input(work.site.train.x)])


@dataclass(frozen=True)
class Regularised(Noisy):
    """An inner objective with the noise and dropout that fit the inputs of the site."""

    varies: ClassVar[bool] = True

    def amounts(self, work: LocalWork) -> tuple[float, float]:
        """Return the amounts for the kind of the site's training inputs, unless brief or memory say `PLAIN`."""
        if "regularisation" not in work.scratch:
            plain = PLAIN in work.brief.words or PLAIN in work.memory.words
            work.scratch["regularisation"] = NOTHING if plain else regularisation_for(work.site.train.x)
        noise, dropout = work.scratch["regularisation"]
        return noise, dropout
