"""FedHarmony: federated multi-label learning with harmonised label correlations (docs/methods.md 7.5 and 7.6).

`fedharmony` is the published method: sites send the correlations of their tags' scores. Each site is aligned with the
consensus of the others inside blocks of tags. It is weighted by its sample count at first, later by its agreement.

`fedharmony+` is ours: the consensus is made of tag counts, sent once. Sites have equal weights, head rows are weighted
by how often their tag is annotated, and a site adds its tag frequencies to its predictions.
"""

from __future__ import annotations

from dataclasses import replace

from fedaccord.federation.recipe import Exchange, Recipe
from fedaccord.federation.requirements import require_tags
from fedaccord.labels.correlation import Consensus
from fedaccord.methods.common_model import share_model, with_aggregation
from fedaccord.methods.harmony.consensus import Correlations
from fedaccord.methods.harmony.keys import CORRELATE, COUNT, TEACH
from fedaccord.methods.harmony.server import HarmonyServer
from fedaccord.methods.harmony.settings import FedHarmonySettings
from fedaccord.methods.harmony.site import Harmony, SendCorrelations, SendTagCounts, remember_teacher
from fedaccord.training.objectives import Proximal, Sum


def fedharmony(settings: FedHarmonySettings) -> Recipe:
    """Return the recipe of `fedharmony` and `fedharmony+`."""
    s = settings
    server = harmony_server(settings)
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
        report=server.correlations.report,
        tasks={
            CORRELATE: SendCorrelations(s.correlation_noise),
            COUNT: SendTagCounts(s.correlation_noise),
            TEACH: remember_teacher,
        },
    )
    return with_aggregation(recipe, s, rows_by_owner=True)


def harmony_server(s: FedHarmonySettings) -> HarmonyServer:
    """Return the server's parts with these settings."""
    teacher = s.teacher if s.strength else "none"
    return HarmonyServer(
        rounds=s.rounds,
        teacher=teacher,
        exchanges=s.exchanges,
        correlations=Correlations(teacher == "counts", Consensus(s.consensus), s.shrinkage),
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
