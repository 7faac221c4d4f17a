"""Attacks on replies, for studies of robust rules and defences.

All are functions of the sites' updates (sites, parameters) and a mask of hostile sites, bool (sites,). IPM and ALIE
assume that the attacker knows the honest updates, which few real attackers do.
"""

from __future__ import annotations

from statistics import NormalDist

import torch
from torch import Tensor

STRENGTH = {"sign-flip": 1.0, "scaling": 10.0, "ipm": 0.5}
HONEST = {"ipm": 1, "alie": 2}  # number of honest updates that an attack needs


def sign_flip(updates: Tensor, hostile: Tensor, strength: float = 1.0) -> Tensor:
    """Return the updates with the sign of the hostile ones flipped."""
    return torch.where(hostile[:, None], -strength * updates, updates)


def scaling(updates: Tensor, hostile: Tensor, strength: float = 10.0) -> Tensor:
    """Return the updates with the hostile ones scaled up."""
    return torch.where(hostile[:, None], strength * updates, updates)


def inner_product(updates: Tensor, hostile: Tensor, strength: float = 0.5) -> Tensor:
    """Return the updates under IPM (Xie et al. 2020): hostile sites send a small multiple of minus the honest mean."""
    if bool(hostile.all()):
        return updates
    return torch.where(hostile[:, None], -strength * updates[~hostile].mean(0), updates)


def little_is_enough(updates: Tensor, hostile: Tensor, strength: float | None = None) -> Tensor:
    """Return the updates under ALIE (Baruch et al. 2019): hostile sites send the honest mean minus z deviations.

    By default z is the largest value for which enough honest sites are farther from the mean than the hostile ones.
    """
    if int((~hostile).sum()) < HONEST["alie"]:
        return updates
    z = alie_deviation(len(hostile), int(hostile.sum())) if strength is None else strength
    honest = updates[~hostile]
    return torch.where(hostile[:, None], honest.mean(0) - z * honest.std(0, unbiased=False), updates)


def why_harmless(kind: str, sites: int, hostile: int, strength: float | None = None) -> str | None:
    """Return why an attack has no effect in a round of `sites` sites; None if it has one."""
    if kind not in HONEST or not hostile:
        return None
    if sites - hostile < HONEST[kind]:
        return f"it is computed from honest updates, and needs {HONEST[kind]} of them in a round"
    if kind == "alie" and strength is None and alie_deviation(sites, hostile) <= 0:
        return "there are too few hostile sites for an unnoticed deviation from the honest mean; set strength"
    return None


def alie_deviation(sites: int, hostile: int) -> float:
    """Return z of ALIE: the normal quantile of the share of honest sites that a hostile majority does not need."""
    needed = sites // 2 + 1 - hostile
    share = (sites - hostile - needed) / (sites - hostile)
    return NormalDist().inv_cdf(min(max(share, 1e-3), 1 - 1e-3))


def forged(
    kind: str, matrix: Tensor, previous: Tensor, hostile: Tensor, trained: Tensor, strength: float | None = None
) -> Tensor:
    """Return the sites' models under a named attack; only `trained` values, bool (parameters,), change."""
    attack = {"sign-flip": sign_flip, "scaling": scaling, "ipm": inner_product, "alie": little_is_enough}.get(kind)
    if attack is None or not bool(hostile.any()):
        return matrix
    power = STRENGTH.get(kind) if strength is None else strength
    updates = matrix - previous
    sent = previous + attack(updates, hostile, power)  # type: ignore[arg-type]
    return torch.where(trained & hostile[:, None], sent, matrix)
