"""What hostile sites send instead of what they trained, for studies of robust rules and defences.

All are functions of the sites' updates, (sites, parameters), and of who is hostile, bool (sites,). Those of the second
kind know what the honest sites send, which is more than most attackers would.
"""

from __future__ import annotations

from statistics import NormalDist

import torch
from torch import Tensor

STRENGTH = {"sign-flip": 1.0, "scaling": 10.0, "ipm": 0.5}
HONEST = {"ipm": 1, "alie": 2}  # sites that an attack has to look at


def sign_flip(updates: Tensor, hostile: Tensor, strength: float = 1.0) -> Tensor:
    """Return the updates with the hostile ones pointing backwards."""
    return torch.where(hostile[:, None], -strength * updates, updates)


def scaling(updates: Tensor, hostile: Tensor, strength: float = 10.0) -> Tensor:
    """Return the updates with the hostile ones made larger."""
    return torch.where(hostile[:, None], strength * updates, updates)


def inner_product(updates: Tensor, hostile: Tensor, strength: float = 0.5) -> Tensor:
    """IPM (Xie et al. 2020): hostile sites all send a small step against the honest mean."""
    if bool(hostile.all()):
        return updates
    return torch.where(hostile[:, None], -strength * updates[~hostile].mean(0), updates)


def little_is_enough(updates: Tensor, hostile: Tensor, strength: float | None = None) -> Tensor:
    """ALIE (Baruch et al. 2019): hostile sites all send the honest mean less a few standard deviations.

    How many, unless told, is as many as leave hostile sites nearer to the mean than enough honest ones.
    """
    if int((~hostile).sum()) < HONEST["alie"]:
        return updates
    z = smallest_deviation(len(hostile), int(hostile.sum())) if strength is None else strength
    honest = updates[~hostile]
    return torch.where(hostile[:, None], honest.mean(0) - z * honest.std(0, unbiased=False), updates)


def idles(kind: str, sites: int, hostile: int, strength: float | None = None) -> str | None:
    """Say why an attack that looks at honest sites does no harm among so many; None: it does, or looks at none."""
    if kind not in HONEST or not hostile:
        return None
    if sites - hostile < HONEST[kind]:
        return f"it looks at what honest sites send, and needs {HONEST[kind]} of them in a round"
    if kind == "alie" and strength is None and smallest_deviation(sites, hostile) <= 0:
        return "hostile sites are too few for deviations below the honest mean that nobody would notice; set strength"
    return None


def smallest_deviation(sites: int, hostile: int) -> float:
    """Return ALIE's z: the quantile below which lie the honest sites that a hostile majority does not need."""
    needed = sites // 2 + 1 - hostile
    share = (sites - hostile - needed) / (sites - hostile)
    return NormalDist().inv_cdf(min(max(share, 1e-3), 1 - 1e-3))


def forged(
    kind: str, matrix: Tensor, previous: Tensor, hostile: Tensor, trained: Tensor, strength: float | None = None
) -> Tensor:
    """Return the sites' models under an attack by name; only values that are `trained`, bool (parameters,), change."""
    attack = {"sign-flip": sign_flip, "scaling": scaling, "ipm": inner_product, "alie": little_is_enough}.get(kind)
    if attack is None or not bool(hostile.any()):
        return matrix
    power = STRENGTH.get(kind) if strength is None else strength
    updates = matrix - previous
    sent = previous + attack(updates, hostile, power)  # type: ignore[arg-type]
    return torch.where(trained & hostile[:, None], sent, matrix)
