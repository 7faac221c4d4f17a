"""SCAFFOLD, option II (Karimireddy et al. 2020; docs/methods.md 3.4).

Other methods compose with its control variates, so these are in `federation/control_variates.py`.
"""

from __future__ import annotations

from dataclasses import replace

from fedaccord.aggregation.mean import with_server_step
from fedaccord.federation.control_variates import ControlVariates
from fedaccord.federation.recipe import Exchange, Recipe
from fedaccord.methods.common_model import proximal_objective, require_sgd, shared_model_recipe
from fedaccord.methods.scaffold.settings import ScaffoldSettings


def scaffold(settings: ScaffoldSettings) -> Recipe:
    """Return the recipe of SCAFFOLD: FedAvg with control variates in every local step."""
    recipe = shared_model_recipe(settings, proximal_objective(settings.mu, settings.loss))
    recipe = with_control_variates(recipe)
    assert recipe.aggregator is not None
    return replace(recipe, aggregator=with_server_step(recipe.aggregator, settings.server_lr))


def with_control_variates(recipe: Recipe, rows_by_owner: bool = False) -> Recipe:
    """Return the recipe with SCAFFOLD's control variates: the local rule of `scaffold`."""
    assert recipe.aggregator is not None
    sgd = require_sgd(recipe.settings, "control variates correct steps of SGD")
    controls = ControlVariates(recipe.sharing, recipe.aggregator, sgd, rows_by_owner)
    return replace(
        recipe,
        solver=controls,
        prepare=(controls.prepare, *recipe.prepare),
        exchange=recipe.exchange.merge(Exchange(controls.brief, controls.extras)),
        refine=(controls.refine, *recipe.refine),
    )
