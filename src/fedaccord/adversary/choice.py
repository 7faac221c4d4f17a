"""Which sites a study makes hostile; importable without torch."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fedaccord.errors import ConfigError, did_you_mean
from fedaccord.seeds import derive


def hostile_sites(
    asked: int | float | Sequence[str], sites: Sequence[str], seed: int, able: Sequence[str] | None = None
) -> tuple[str, ...]:
    """Return the hostile ones of the sites that train: those named, or so many, or a share, drawn by the run's seed.

    A share is rounded down, to at least one site. Only sites that are `able` to carry the attack out are drawn.
    """
    able = sites if able is None else able
    if not isinstance(asked, int | float):
        for name in asked:
            if name not in sites:
                raise ConfigError(f"method.attack.sites: there is no site '{name}'; {did_you_mean(name, sites)}")
        return tuple(sorted(asked))
    # The small step is for products such as 0.29 * 100, which floating point puts just below 29.
    number = asked if isinstance(asked, int) else max(1, math.floor(asked * len(sites) + 1e-9))
    if number > len(sites):
        raise ConfigError(f"method.attack.sites asks for {number} hostile sites, and {len(sites)} may train")
    if number > len(able):
        raise ConfigError(
            f"method.attack.sites asks for {number} hostile sites, and {len(able)} of {len(sites)} know the label that "
            "the attack gives, and another"
        )
    rng = np.random.default_rng(derive(seed, "hostile"))
    return tuple(sorted(sorted(able)[i] for i in rng.choice(len(able), number, replace=False)))
