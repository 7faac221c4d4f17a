"""FedAvg, FedProx (Li et al. 2020) and SCAFFOLD (Karimireddy et al. 2020): docs/methods.md 3.2 to 3.4.

Other methods compose with SCAFFOLD's control variates, so these are in `federation/control_variates.py`.
"""

from __future__ import annotations

from dataclasses import replace

from fedaccord.aggregation.mean import with_server_step
from fedaccord.federation.control_variates import ControlVariates
from fedaccord.federation.recipe import Exchange, Recipe
from fedaccord.methods.averaging.settings import FedProxSettings, ScaffoldSettings
from fedaccord.methods.common_model import proximal_objective, require_sgd, shared_model_recipe
from fedaccord.methods.shared_settings import ClassicSettings
from fedaccord.training.objectives import Proximal, Sum


def fedavg(settings: ClassicSettings) -> Recipe:
    """Return the recipe of FedAvg: models are averaged by sample count."""
    return shared_model_recipe(settings)


def fedprox(settings: FedProxSettings) -> Recipe:
    """Return the recipe of FedProx: FedAvg with a proximal term at the sites."""
    return shared_model_recipe(settings, proximal_objective(settings.mu, settings.loss))


def scaffold(settings: ScaffoldSettings) -> Recipe:
    """Return the recipe of SCAFFOLD, option II: FedAvg with control variates in every local step."""
    recipe = with_control_variates(shared_model_recipe(settings, proximal_objective(settings.mu, settings.loss)))
    assert recipe.aggregator is not None
    return replace(recipe, aggregator=with_server_step(recipe.aggregator, settings.server_lr))


def with_proximal_term(recipe: Recipe, rows_by_owner: bool = False) -> Recipe:
    """Return a recipe whose objective has FedProx's proximal term: the local rule of `fedprox`."""
    mu: float = getattr(recipe.settings, "mu")  # noqa: B009 - settings of methods with a local rule have it
    objective = recipe.objective
    terms = objective.terms if isinstance(objective, Sum) else (objective,)
    return replace(recipe, objective=Sum((*terms, Proximal(mu)))) if mu else recipe


def with_control_variates(recipe: Recipe, rows_by_owner: bool = False) -> Recipe:
    """Return the recipe with SCAFFOLD's control variates: the local rule of `scaffold`."""
    assert recipe.aggregator is not None
    sgd = require_sgd(recipe.settings, "control variates correct steps of SGD")
    controls = ControlVariates(recipe.sharing, recipe.aggregator, sgd, rows_by_owner)
    return replace(
        recipe,
        solver=controls,
        prepare=(controls.prepare, *recipe.prepare),
        exchange=recipe.exchange.merge(Exchange(controls.brief, controls.side_tensors.expected)),
        refine=(controls.refine, *recipe.refine),
    )
