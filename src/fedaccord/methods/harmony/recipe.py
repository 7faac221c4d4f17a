"""FedHarmony: federated multi-label learning with harmonised label correlations (docs/methods.md 7).

`fedharmony` is the published method: sites tell how their tags' scores go together, each is drawn to what the others
agree on, inside blocks of tags, and counts by its size at first and by that agreement later.

`fedharmony+` is ours: the teacher is made of counts of tags, asked for once; sites count the same, head rows by how
often their tag is annotated; and a site adds its own tag frequencies when it predicts.
"""

from __future__ import annotations

from dataclasses import replace

from fedaccord.federation.recipe import Exchange, Recipe
from fedaccord.federation.requirements import require_tags
from fedaccord.labels.correlation import Consensus
from fedaccord.methods.common_model import share_model, with_aggregation
from fedaccord.methods.harmony.server import CORRELATE, COUNT, TEACH, Harmoniser
from fedaccord.methods.harmony.settings import FedHarmonySettings
from fedaccord.methods.harmony.site import Correlating, CountingTags, Harmony, remember_teacher
from fedaccord.training.objectives import Proximal, Sum


def fedharmony(settings: FedHarmonySettings) -> Recipe:
    """Return the recipe of `fedharmony` and `fedharmony+`."""
    s = settings
    server = harmoniser(settings)
    harmony = Harmony(
        strength=s.strength,
        beta=s.beta,
        per_block=s.block_loss == "sum",
        sends=server.sends,
        noise=s.correlation_noise,
        by_entropy=s.strength_against == "frequencies",
        prior=s.site_prior,
    )
    recipe = Recipe(
        s,
        None,
        Sum((harmony, Proximal(s.mu))) if s.mu else harmony,
        sharing=replace(share_model(s), own_rows=True),
        ready=(require_tags,),
        prepare=(server.prepare,),
        exchange=Exchange(server.brief, server.extras),
        admit=(server.weigh,),
        refine=(server.refine,),
        report=server.report,
        tasks={
            CORRELATE: Correlating(s.correlation_noise),
            COUNT: CountingTags(s.correlation_noise),
            TEACH: remember_teacher,
        },
    )
    return with_aggregation(recipe, s, rows_by_owner=True)


def harmoniser(s: FedHarmonySettings) -> Harmoniser:
    """Return the server's parts as the settings ask for."""
    return Harmoniser(
        rounds=s.rounds,
        teacher=s.teacher if s.strength else "none",
        exchanges=s.exchanges,
        consensus=Consensus(s.consensus),
        shrinkage=s.shrinkage,
        blocks=s.blocks,
        block_count=s.block_count,
        permuted=s.permuted,
        weights=s.weights,
        gamma=s.gamma,
        volume_rounds=s.volume_rounds,
        by_annotations=s.head_rows == "annotated",
        prior=s.site_prior,
        noise=s.correlation_noise,
        rule=s.aggregation,
    )
