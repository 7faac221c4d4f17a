"""FedHarmony: federated multi-label learning with harmonised label correlations (docs/methods.md 7.5 and 7.6).

`fedharmony` is the published method: sites send the correlations of their tags' scores. Each site is aligned with the
consensus of the others inside blocks of tags. It is weighted by its sample count at first, later by its agreement.

`fedharmony+` is ours: the consensus is made of tag counts, sent once. Sites have equal weights, head rows are weighted
by how often their tag is annotated, and a site adds its tag frequencies to its predictions.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from fedaccord.federation.recipe import Exchange, Recipe, require_tags
from fedaccord.methods.common_model import share_model, with_aggregation
from fedaccord.methods.tags.server import HarmonyServer
from fedaccord.methods.tags.settings import FedHarmonySettings
from fedaccord.methods.tags.site import (
    CORRELATE,
    COUNT,
    TEACH,
    Harmony,
    remember_teacher,
    send_correlations,
    send_tag_counts,
)
from fedaccord.training.objectives import Proximal, Sum


def fedharmony(settings: FedHarmonySettings) -> Recipe:
    """Return the recipe of `fedharmony` and `fedharmony+`."""
    server = HarmonyServer(settings)
    harmony, noise = Harmony(settings, server.sends), settings.correlation_noise
    recipe = Recipe(
        settings,
        None,
        Sum((harmony, Proximal(settings.mu))) if settings.mu else harmony,
        sharing=replace(share_model(settings), own_rows=True),
        ready=(require_tags,),
        prepare=(server.prepare,),
        exchange=Exchange(server.brief, server.extras),
        admit=(server.weigh,),
        refine=(server.refine,),
        report=server.correlations.report,
        tasks={
            CORRELATE: partial(send_correlations, noise=noise),
            COUNT: partial(send_tag_counts, noise=noise),
            TEACH: remember_teacher,
        },
    )
    return with_aggregation(recipe, settings, rows_by_owner=True)
