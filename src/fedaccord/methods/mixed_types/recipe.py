"""FedMT: federated learning with mixed-type labels (Zhang et al. 2024; docs/methods.md 6), and its baselines.

The server has few samples labelled by class and takes a supervised step in each round; sites have samples with coarse
labels. The correspondence of coarse names and classes is declared, estimated or learned.

`fedmt+` is ours: the correspondence by EM on counts summed over the sites, pseudo-labels given the coarse label.
`semifl` ignores the coarse labels, and `single` the sites. In `fedrep` and `fedtrans` sites train the encoder with
heads for their own names.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fedaccord.aggregation.mean import mean
from fedaccord.federation.recipe import Exchange, Recipe, ServerStep
from fedaccord.federation.requirements import RequireViews
from fedaccord.methods.common_model import share_model, with_aggregation
from fedaccord.methods.entry import with_local_rule
from fedaccord.methods.mixed_types.augment import Augmentation
from fedaccord.methods.mixed_types.correspondences import (
    ConfidenceWatch,
    PooledCounts,
    average_estimates,
    average_learned,
    matrix_brief,
    matrix_spec,
)
from fedaccord.methods.mixed_types.objective import COUNT, CountNames, MixedTypes
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
from fedaccord.training.solvers import SGD

_REQUIRE_ONE_LABEL = RequireViews("one_label", "one label for each sample")
_REQUIRE_ONE_NAME = RequireViews("one_name", "one name for each sample")
NO_EXCHANGE = Exchange()


def fedmt(settings: FedMTSettings) -> Recipe:
    """Return the recipe of `fedmt` and `fedmt+`."""
    how, pooled = settings.correspondence, settings.estimator == "em-pool"
    learned_together = how == "learnable-average"
    objective = replace(
        _pseudo_labels(settings),
        projected=True,
        source=_source(how, pooled),
        lambda2=settings.lambda2,
        posterior=settings.pseudo_label == "posterior",
        project_on=settings.project_on,
        smoothing=settings.smoothing,
        sends_matrix=learned_together,
    )
    estimate: tuple[ServerStep, ...] = ()
    if how == "estimated" and pooled:
        estimate = (PooledCounts(settings.exchanges, settings.smoothing),)
    elif how == "estimated-average":
        estimate = (average_estimates,)
    return _federated(
        settings,
        objective,
        prepare=(_supervised(settings), *estimate),
        exchange=Exchange(
            matrix_brief if estimate or learned_together else None, matrix_spec if learned_together else None
        ),
        refine=(*([average_learned] if learned_together else []), _watch(settings)),
        tasks={COUNT: CountNames(settings.threshold, settings.smoothing)},
    )


def semifl(settings: SemiFLSettings) -> Recipe:
    """Return the recipe of SemiFL: pseudo-labels only, without the sites' coarse labels (Diao et al. 2022)."""
    step, watch = _supervised(settings), _watch(settings)
    return _federated(settings, _pseudo_labels(settings), (step,), refine=(watch,))


def single(settings: SupercentreSettings) -> Recipe:
    """Return the recipe of the baseline without sites: the server trains on its labelled samples."""
    return Recipe(settings, mean, trains="server", prepare=(_supervised(settings),))


def fedrep(settings: FedRepSettings) -> Recipe:
    """Return the recipe of FedRep as compared in FedMT: server and sites train one encoder, each with its own head."""
    joint = JointEncoder(_supervised(settings), settings.server_weight)
    head = OwnHead(_augmentation(settings))
    return _federated(settings, head, (joint.prepare,), refine=(joint.refine,), ready=(_REQUIRE_ONE_NAME,))


def fedtrans(settings: FedTransSettings) -> Recipe:
    """Return the recipe of FedTrans: sites train a model of their names; the server fine-tunes it with a new head."""
    tuning = FineTuning(replace(_supervised(settings), cosine=False))
    return _federated(
        settings,
        OwnHead(_augmentation(settings), shared=True),
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


def _source(how: str, pooled: bool) -> str:
    """Return the source of a site's matrix."""
    if how.startswith("learnable"):
        return "learnable"
    return {"known": "declared", "estimated-average": "brief"}.get(how, "brief" if pooled else "counts")


def _pseudo_labels(settings: SemiFLSettings) -> MixedTypes:
    return MixedTypes(
        projected=False,
        threshold=settings.threshold,
        lambda1=settings.lambda1,
        mixup=settings.mixup,
        augmentation=_augmentation(settings),
    )


def _supervised(settings: SupercentreSettings) -> SupervisedStep:
    return SupervisedStep(
        lr=settings.server_lr or settings.lr,
        rounds=settings.rounds,
        cosine=settings.schedule == "cosine",
        epochs=settings.server_epochs,
        warmup=settings.warmup,
        batch=settings.server_batch,
        sgd=SGD(settings.momentum, settings.weight_decay, settings.clip),
        augmentation=_augmentation(settings),
        strong=settings.server_augment == "strong",
    )


def _augmentation(settings: SupercentreSettings) -> Augmentation:
    return Augmentation(settings.augment, settings.noise, settings.gaps, settings.word_dropout)


def _watch(settings: SemiFLSettings) -> ConfidenceWatch:
    unused = "the sites' labels" if isinstance(settings, FedMTSettings) else "the sites' samples"
    if isinstance(settings, FedMTSettings) and settings.project_on == "all":  # then coarse labels are always used
        unused = "pseudo-labels" if settings.lambda2 else ""
    return ConfidenceWatch(settings.threshold, settings.rounds, unused)
