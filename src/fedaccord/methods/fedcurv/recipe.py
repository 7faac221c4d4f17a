"""FedCurv (Shoham et al. 2019): federated averaging with a pull towards the other sites' models."""

from __future__ import annotations

from fedaccord.federation.recipe import Exchange, Recipe
from fedaccord.methods.common_model import combining, share_model
from fedaccord.methods.fedcurv.server import fisher_spec, keep_curvature, tell_curvature
from fedaccord.methods.fedcurv.settings import FedCurvSettings
from fedaccord.methods.fedcurv.site import Curvature
from fedaccord.training.objectives import Sum, ViewLikelihood


def fedcurv(settings: FedCurvSettings) -> Recipe:
    """Federated averaging with a pull to the others' models where these are sure (Shoham et al. 2019)."""
    objective = Sum((ViewLikelihood(), Curvature(settings.curvature, settings.fisher_samples)))
    recipe = Recipe(
        settings,
        None,
        objective,
        sharing=share_model(settings),
        exchange=Exchange(tell_curvature, fisher_spec),
        refine=(keep_curvature,),
    )
    return combining(recipe, settings)
