"""SphereFed (Dong et al. 2022): unit features below a frozen orthonormal head."""

from __future__ import annotations

from fedaccord.federation.recipe import Recipe
from fedaccord.federation.refusing import refuse_other_views
from fedaccord.methods.common_model import combining, share_model
from fedaccord.methods.spherefed import server as sphere
from fedaccord.methods.spherefed.settings import SphereFedSettings
from fedaccord.methods.spherefed.site import SphereFit, feature_moments


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
