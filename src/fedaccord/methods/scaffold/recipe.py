"""SCAFFOLD, option II (Karimireddy et al. 2020; docs/methods.md 3.4).

Other methods compose with its control variates, so these are in `federation/control_variates.py`.
"""

from __future__ import annotations

from dataclasses import replace

from fedaccord.aggregation.mean import with_server_step
from fedaccord.federation.recipe import Recipe
from fedaccord.methods.common_model import shared_model_recipe, with_control_variates
from fedaccord.methods.scaffold.settings import ScaffoldSettings


def scaffold(settings: ScaffoldSettings) -> Recipe:
    """Return the recipe of SCAFFOLD: FedAvg with control variates in every local step."""
    recipe = with_control_variates(shared_model_recipe(settings, settings.mu))
    assert recipe.aggregator is not None
    return replace(recipe, aggregator=with_server_step(recipe.aggregator, settings.server_lr))
