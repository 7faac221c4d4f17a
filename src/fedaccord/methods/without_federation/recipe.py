"""What federation is compared with: every site alone, and all samples in one place."""

from __future__ import annotations

from fedaccord.aggregation.mean import mean
from fedaccord.federation.recipe import Recipe
from fedaccord.federation.sharing import SHARE_NOTHING
from fedaccord.methods.named_losses import site_objective
from fedaccord.methods.without_federation.settings import LocalSettings, PooledSettings


def local(settings: LocalSettings) -> Recipe:
    """Every site trains alone: nothing is sent, the whole model stays in the site's memory."""
    return Recipe(settings, None, site_objective(settings.loss, settings), sharing=SHARE_NOTHING)


def pooled(settings: PooledSettings) -> Recipe:
    """One place holds all samples; its model is judged at every site."""
    return Recipe(settings, mean, trains="pool of truth" if settings.labels == "truth" else "pool of views")
