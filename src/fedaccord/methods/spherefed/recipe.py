"""SphereFed (Dong et al. 2022; docs/methods.md 7.7): features of unit length and a frozen orthonormal head."""

from __future__ import annotations

from fedaccord.federation.recipe import Recipe
from fedaccord.federation.requirements import require_tags
from fedaccord.methods.common_model import share_model, with_aggregation
from fedaccord.methods.spherefed.server import TASK, ClosedFormHead, freeze_head, refuse_unfit_network
from fedaccord.methods.spherefed.settings import SphereFedSettings
from fedaccord.methods.spherefed.site import SphereFit, feature_moments


def spherefed(settings: SphereFedSettings) -> Recipe:
    """Return the recipe of SphereFed."""
    recipe = Recipe(
        settings,
        None,
        SphereFit(),
        sharing=share_model(settings),
        ready=(require_tags, refuse_unfit_network),
        prepare=(freeze_head,),
        refine=(ClosedFormHead(settings.rounds, settings.ridge),),
        tasks={TASK: feature_moments},
    )
    return with_aggregation(recipe, settings)
