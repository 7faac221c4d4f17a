"""Federated averaging (McMahan et al. 2017) and FedProx (Li et al. 2020)."""

from __future__ import annotations

from fedaccord.federation.recipe import Recipe
from fedaccord.methods.averaging.settings import FedProxSettings
from fedaccord.methods.common_model import plain
from fedaccord.methods.shared_settings import ClassicSettings


def fedavg(settings: ClassicSettings) -> Recipe:
    """Average whole models by sample count (McMahan et al. 2017)."""
    return plain(settings)


def fedprox(settings: FedProxSettings) -> Recipe:
    """FedAvg whose sites are held near the shared model (Li et al. 2020)."""
    return plain(settings, settings.mu)
