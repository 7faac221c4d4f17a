"""SCAFFOLD (Karimireddy et al. 2020), option II; its parts are `ControlVariates`, which other methods compose with."""

from __future__ import annotations

from dataclasses import replace

from fedaccord.aggregation.mean import with_server_step
from fedaccord.federation.recipe import Recipe
from fedaccord.methods.common_model import plain, with_controls
from fedaccord.methods.scaffold.settings import ScaffoldSettings


def scaffold(settings: ScaffoldSettings) -> Recipe:
    """FedAvg whose sites correct every step by how their gradients differ from everybody's (SCAFFOLD, option II)."""
    recipe = with_controls(plain(settings, settings.mu))
    assert recipe.aggregator is not None
    return replace(recipe, aggregator=with_server_step(recipe.aggregator, settings.server_lr))
