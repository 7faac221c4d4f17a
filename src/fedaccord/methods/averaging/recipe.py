"""Federated averaging (McMahan et al. 2017) and FedProx (Li et al. 2020)."""

from __future__ import annotations

from dataclasses import replace

from fedaccord.federation.recipe import Recipe
from fedaccord.methods.averaging.settings import FedProxSettings
from fedaccord.methods.common_model import plain
from fedaccord.methods.shared_settings import ClassicSettings
from fedaccord.training.objectives import Proximal, Sum


def fedavg(settings: ClassicSettings) -> Recipe:
    """Average whole models by sample count (McMahan et al. 2017)."""
    return plain(settings)


def fedprox(settings: FedProxSettings) -> Recipe:
    """FedAvg whose sites are held near the shared model (Li et al. 2020)."""
    return plain(settings, settings.mu)


def pulled(recipe: Recipe, rows_of_owners: bool = False) -> Recipe:
    """Return a recipe whose objective has FedProx's pull towards the received model; the local rule of `fedprox`."""
    mu: float = getattr(recipe.settings, "mu")  # noqa: B009 - settings of methods with a local rule have it
    objective = recipe.objective
    terms = objective.terms if isinstance(objective, Sum) else (objective,)
    return replace(recipe, objective=Sum((*terms, Proximal(mu)))) if mu else recipe
