"""Baselines without federation: local training and pooled training (docs/methods.md 3.7 and 3.8)."""

from __future__ import annotations

from fedaccord.aggregation.mean import mean
from fedaccord.federation.recipe import Recipe
from fedaccord.federation.sharing import SHARE_NOTHING
from fedaccord.methods.common_model import site_objective
from fedaccord.methods.without_federation.settings import LocalSettings, PooledSettings
from fedaccord.training.regularisation import Regularised


def local(settings: LocalSettings) -> Recipe:
    """Return the recipe of local training: every site keeps its model, and nothing is sent."""
    objective = site_objective(settings.loss, settings)
    return Recipe(settings, None, Regularised(objective) if settings.regularise else objective, sharing=SHARE_NOTHING)


def pooled(settings: PooledSettings) -> Recipe:
    """Return the recipe of pooled training: one model on the samples of all sites, evaluated at every site."""
    return Recipe(settings, mean, trains="pool of truth" if settings.labels == "truth" else "pool of views")
