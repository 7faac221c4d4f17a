"""FedCurv (Shoham et al. 2019; docs/methods.md 3.6): FedAvg with a Fisher-weighted pull to the other sites' models."""

from __future__ import annotations

from fedaccord.federation.recipe import Exchange, Recipe
from fedaccord.methods.common_model import share_model, with_aggregation
from fedaccord.methods.fedcurv.server import curvature_brief, fisher_spec, store_curvature
from fedaccord.methods.fedcurv.settings import FedCurvSettings
from fedaccord.methods.fedcurv.site import Curvature
from fedaccord.training.objectives import Sum, ViewLikelihood


def fedcurv(settings: FedCurvSettings) -> Recipe:
    """Return the recipe of FedCurv."""
    objective = Sum((ViewLikelihood(), Curvature(settings.curvature, settings.fisher_samples)))
    recipe = Recipe(
        settings,
        None,
        objective,
        sharing=share_model(settings),
        exchange=Exchange(curvature_brief, fisher_spec),
        refine=(store_curvature,),
    )
    return with_aggregation(recipe, settings)
