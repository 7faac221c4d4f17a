"""FedAvg (docs/methods.md 3.2) and FedProx (Li et al. 2020; docs/methods.md 3.3)."""

from __future__ import annotations

from dataclasses import replace

from fedaccord.federation.recipe import Recipe
from fedaccord.methods.averaging.settings import FedProxSettings
from fedaccord.methods.common_model import proximal_objective, shared_model_recipe
from fedaccord.methods.shared_settings import ClassicSettings
from fedaccord.training.objectives import Proximal, Sum


def fedavg(settings: ClassicSettings) -> Recipe:
    """Return the recipe of FedAvg: models are averaged by sample count."""
    return shared_model_recipe(settings)


def fedprox(settings: FedProxSettings) -> Recipe:
    """Return the recipe of FedProx: FedAvg with a proximal term at the sites."""
    return shared_model_recipe(settings, proximal_objective(settings.mu, settings.loss))


def with_proximal_term(recipe: Recipe, rows_by_owner: bool = False) -> Recipe:
    """Return a recipe whose objective has FedProx's proximal term: the local rule of `fedprox`."""
    mu: float = getattr(recipe.settings, "mu")  # noqa: B009 - settings of methods with a local rule have it
    objective = recipe.objective
    terms = objective.terms if isinstance(objective, Sum) else (objective,)
    return replace(recipe, objective=Sum((*terms, Proximal(mu)))) if mu else recipe
