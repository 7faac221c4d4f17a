"""Baselines that FedHarmony is compared with (methods.md 3.6): FedCurv (any view) and SphereFed (tags)."""

from __future__ import annotations

from fedaccord.federation import spherefed as sphere
from fedaccord.federation.fedcurv import fisher_spec, keep_curvature, tell_curvature
from fedaccord.federation.harmony import refuse_other_views
from fedaccord.federation.recipe import Recipe
from fedaccord.methods.classic import combining, share_model
from fedaccord.methods.tag_settings import FedCurvSettings, SphereFedSettings
from fedaccord.training.fedcurv import Curvature
from fedaccord.training.objectives import Sum, ViewLikelihood
from fedaccord.training.spherefed import SphereFit, feature_moments


def fedcurv(settings: FedCurvSettings) -> Recipe:
    """Federated averaging with a pull to the others' models where these are sure (Shoham et al. 2019)."""
    objective = Sum((ViewLikelihood(), Curvature(settings.curvature, settings.fisher_samples)))
    recipe = Recipe(
        settings,
        None,
        objective,
        sharing=share_model(settings),
        brief=tell_curvature,
        extras=fisher_spec,
        refine=(keep_curvature,),
    )
    return combining(recipe, settings)


def spherefed(settings: SphereFedSettings) -> Recipe:
    """Unit features below a frozen orthonormal head, which is solved for at the end (Dong et al. 2022)."""
    recipe = Recipe(
        settings,
        None,
        SphereFit(),
        sharing=share_model(settings),
        ready=(refuse_other_views, sphere.refuse_unfit_network),
        prepare=(sphere.freeze_head,),
        refine=(sphere.ClosedForm(settings.rounds, settings.ridge),),
        tasks={sphere.TASK: feature_moments},
    )
    return combining(recipe, settings)
