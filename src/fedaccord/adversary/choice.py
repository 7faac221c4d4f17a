"""The selection of hostile sites in a study; importable without torch."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fedaccord.errors import ConfigError, did_you_mean
from fedaccord.seeds import derive


def share_of(share: float, sites: int) -> int:
    """Return a share of `sites` sites, rounded down."""
    # The epsilon corrects products such as 0.29 * 100, which is just below 29 in floating point.
    return math.floor(share * sites + 1e-9)


def hostile_sites(
    asked: int | float | Sequence[str], sites: Sequence[str], seed: int, able: Sequence[str] | None = None
) -> tuple[str, ...]:
    """Return the hostile sites: the named ones, or a number or share of the sites, drawn with the run's seed.

    A share is rounded down, to at least one site. Only sites in `able`, which can carry out the attack, are drawn.
    """
    able = sites if able is None else able
    if not isinstance(asked, int | float):
        for name in asked:
            if name not in sites:
                raise ConfigError(f"method.attack.sites: there is no site '{name}'; {did_you_mean(name, sites)}")
        return tuple(sorted(asked))
    number = asked if isinstance(asked, int) else max(1, share_of(asked, len(sites)))
    wanted = f"method.attack.sites asks for {number} hostile sites, but only"
    if number > len(sites):
        raise ConfigError(f"{wanted} {len(sites)} may train")
    if number > len(able):
        raise ConfigError(f"{wanted} {len(able)} of {len(sites)} know the target label of the attack and another label")
    rng = np.random.default_rng(derive(seed, "hostile"))
    return tuple(sorted(sorted(able)[i] for i in rng.choice(len(able), number, replace=False)))
