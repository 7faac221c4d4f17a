"""Attacks on replies, for studies of robust rules and defences.

Models and updates are (sites, parameters), the mask of hostile sites is bool (sites,). IPM and ALIE assume that the
attacker knows the honest updates, which few real attackers do.
"""

from __future__ import annotations

from statistics import NormalDist

import torch
from torch import Tensor

from fedaccord.adversary.settings import SENDING

STRENGTH = {"sign-flip": 1.0, "scaling": 10.0, "ipm": 0.5}
HONEST = {"ipm": 1, "alie": 2}  # number of honest updates that an attack needs


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
    """Return the sites' models under an attack; only `trained` values, bool (parameters,), of hostile sites change."""
    if kind not in SENDING or not bool(hostile.any()):
        return matrix
    updates = matrix - previous
    sent = previous + _forged_updates(kind, updates, updates[~hostile], strength)
    return torch.where(trained & hostile[:, None], sent, matrix)


def _forged_updates(kind: str, updates: Tensor, honest: Tensor, strength: float | None) -> Tensor:
    """Return the update that each site would send if it were hostile, or one update for all of them."""
    if len(honest) < HONEST.get(kind, 0):
        return updates
    if kind == "alie":  # Baruch et al. 2019: hostile updates are closer to the mean than enough of the honest ones
        z = alie_deviation(len(updates), len(updates) - len(honest)) if strength is None else strength
        return honest.mean(0) - z * honest.std(0, unbiased=False)
    factor = STRENGTH[kind] if strength is None else strength
    if kind == "ipm":  # Xie et al. 2020: a small multiple of the honest mean, with the opposite sign
        return -factor * honest.mean(0)
    return factor * updates if kind == "scaling" else -factor * updates
