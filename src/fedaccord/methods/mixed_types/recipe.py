"""FedMT: federated learning with mixed-type labels (Zhang et al. 2024; docs/methods.md 6), and its baselines.

The server has few samples labelled by class and takes a supervised step in each round; sites have samples with coarse
labels. The correspondence of coarse names and classes is declared, estimated or learned.

`fedmt+` is ours: the correspondence by EM on counts summed over the sites, pseudo-labels given the coarse label.
`semifl` ignores the coarse labels, and `single` the sites. In `fedrep` and `fedtrans` sites train the encoder with
heads for their own names.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from fedaccord.aggregation.mean import mean
from fedaccord.federation.pooled_correspondence import COUNT, PooledCounts, matrix_brief
from fedaccord.federation.recipe import Exchange, Recipe, RequireViews, ServerStep
from fedaccord.methods.common_model import share_model, with_aggregation
from fedaccord.methods.entry import with_local_rule
from fedaccord.methods.mixed_types.correspondences import (
    ConfidenceWatch,
    average_estimates,
    average_learned,
    matrix_spec,
)
from fedaccord.methods.mixed_types.objective import MixedTypes, Source, count_names
from fedaccord.methods.mixed_types.own_head import OwnHead, average_heads, head_brief, head_spec
from fedaccord.methods.mixed_types.settings import (
    FedMTSettings,
    FedRepSettings,
    FedTransSettings,
    MixedSiteSettings,
    SemiFLSettings,
    SupercentreSettings,
)
from fedaccord.methods.mixed_types.supervised import FineTuning, JointEncoder, SupervisedStep, restore_head
from fedaccord.training.objectives import Objective

_REQUIRE_ONE_LABEL = RequireViews("one_label", "one label for each sample")
_REQUIRE_ONE_NAME = RequireViews("one_name", "one name for each sample")
NO_EXCHANGE = Exchange()


def fedmt(settings: FedMTSettings) -> Recipe:
    """Return the recipe of `fedmt` and `fedmt+`."""
    how, pooled = settings.correspondence, settings.estimator == "em-pool"
    learned_together = how == "learnable-average"
    estimate: tuple[ServerStep, ...] = ()
    if how == "estimated" and pooled:
        estimate = (PooledCounts(settings.exchanges, settings.smoothing),)
    elif how == "estimated-average":
        estimate = (average_estimates,)
    return _federated(
        settings,
        MixedTypes(settings, _source(how, pooled)),
        prepare=(SupervisedStep(settings), *estimate),
        exchange=Exchange(
            matrix_brief if estimate or learned_together else None, matrix_spec if learned_together else None
        ),
        refine=(*([average_learned] if learned_together else []), _watch(settings)),
        tasks={COUNT: partial(count_names, settings=settings)},
    )


def semifl(settings: SemiFLSettings) -> Recipe:
    """Return the recipe of SemiFL: pseudo-labels only, without the sites' coarse labels (Diao et al. 2022)."""
    without_projection = FedMTSettings.model_construct(**dict(settings), lambda2=1.0)
    objective = MixedTypes(without_projection, source=None)
    return _federated(settings, objective, (SupervisedStep(settings),), refine=(_watch(settings),))


def single(settings: SupercentreSettings) -> Recipe:
    """Return the recipe of the baseline without sites: the server trains on its labelled samples."""
    return Recipe(settings, mean, trains="server", prepare=(SupervisedStep(settings),))


def fedrep(settings: FedRepSettings) -> Recipe:
    """Return the recipe of FedRep as compared in FedMT: server and sites train one encoder, each with its own head."""
    joint, head = JointEncoder(settings), OwnHead(settings)
    return _federated(settings, head, (joint.prepare,), refine=(joint.refine,), ready=(_REQUIRE_ONE_NAME,))


def fedtrans(settings: FedTransSettings) -> Recipe:
    """Return the recipe of FedTrans: sites train a model of their names; the server fine-tunes it with a new head."""
    tuning = FineTuning(settings.model_copy(update={"schedule": "constant"}))
    return _federated(
        settings,
        OwnHead(settings, shared=True),
        exchange=Exchange(head_brief, head_spec),
        ready=(_REQUIRE_ONE_NAME,),
        refine=(average_heads, restore_head, tuning),
    )


def _federated(
    settings: MixedSiteSettings,
    objective: Objective,
    prepare: tuple[ServerStep, ...] = (),
    exchange: Exchange = NO_EXCHANGE,
    refine: tuple[ServerStep, ...] = (),
    ready: tuple[ServerStep, ...] = (),
    **slots: Any,
) -> Recipe:
    """Return a recipe with these parts, and the local rule and aggregation of the settings."""
    recipe = Recipe(
        settings,
        None,
        objective,
        sharing=replace(share_model(settings), owners="all"),
        trains="sites and server",
        ready=(_REQUIRE_ONE_LABEL, *ready),
        **slots,
    )
    recipe = with_local_rule(with_aggregation(recipe, settings), settings.local)
    return replace(
        recipe,
        prepare=(*recipe.prepare, *prepare),
        refine=(*recipe.refine, *refine),
        exchange=recipe.exchange.merge(exchange),
    )


def _source(how: str, pooled: bool) -> Source:
    """Return the source of a site's matrix."""
    if how.startswith("learnable"):
        return "learnable"
    if how == "known":
        return "declared"
    return "brief" if pooled or how == "estimated-average" else "counts"


def _watch(settings: SemiFLSettings) -> ConfidenceWatch:
    unused = "the sites' labels" if isinstance(settings, FedMTSettings) else "the sites' samples"
    if isinstance(settings, FedMTSettings) and settings.project_on == "all":  # then coarse labels are always used
        unused = "pseudo-labels" if settings.lambda2 else ""
    return ConfidenceWatch(settings.threshold, settings.rounds, unused)
