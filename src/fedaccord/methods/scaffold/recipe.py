"""SCAFFOLD (Karimireddy et al. 2020), option II; its parts are `ControlVariates`, which other methods compose with."""

from __future__ import annotations

from dataclasses import replace

from fedaccord.aggregation.mean import with_server_step
from fedaccord.federation.control_variates import ControlVariates
from fedaccord.federation.recipe import Exchange, Recipe
from fedaccord.methods.common_model import plain, sgd_alone
from fedaccord.methods.scaffold.settings import ScaffoldSettings


def scaffold(settings: ScaffoldSettings) -> Recipe:
    """FedAvg whose sites correct every step by how their gradients differ from everybody's (SCAFFOLD, option II)."""
    recipe = with_controls(plain(settings, settings.mu))
    assert recipe.aggregator is not None
    return replace(recipe, aggregator=with_server_step(recipe.aggregator, settings.server_lr))


def with_controls(recipe: Recipe, rows_of_owners: bool = False) -> Recipe:
    """Return the recipe with SCAFFOLD's control variates around what it does."""
    assert recipe.aggregator is not None
    sgd = sgd_alone(recipe.settings, "control variates correct steps of SGD")
    controls = ControlVariates(recipe.sharing, recipe.aggregator, sgd, rows_of_owners)
    return replace(
        recipe,
        solver=controls,
        prepare=(controls.prepare, *recipe.prepare),
        exchange=recipe.exchange.joined(Exchange(controls.brief, controls.extras)),
        refine=(controls.refine, *recipe.refine),
    )
