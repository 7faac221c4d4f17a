"""FedMT: federated learning with mixed-type labels (Zhang et al. 2024; docs/methods.md 6), and its baselines.

The server holds few samples labelled in the federation's classes and takes a supervised step each round; sites hold
samples labelled in coarser names. What these names stand for is declared, estimated or learned.

`fedmt+` is ours: the correspondence by EM on counts added up over the sites, pseudo-labels given the coarse label.
`semifl` does not look at the coarse labels, `single` at no site at all; in `fedrep` and `fedtrans` sites train the
encoder below heads for their own names.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fedaccord.aggregation.mean import mean
from fedaccord.federation.recipe import Exchange, Recipe, ServerStep
from fedaccord.federation.requirements import RequireViews
from fedaccord.methods.common_model import share_model, with_aggregation
from fedaccord.methods.mixed_types import correspondences as names
from fedaccord.methods.mixed_types.augment import Augmentation
from fedaccord.methods.mixed_types.own_head import OwnHead
from fedaccord.methods.mixed_types.settings import (
    FedMTSettings,
    FedRepSettings,
    FedTransSettings,
    MixedSiteSettings,
    SemiFLSettings,
    SupercentreSettings,
)
from fedaccord.methods.mixed_types.site import Counting, MixedTypes
from fedaccord.methods.mixed_types.supervised import FineTuning, JointEncoder, SupervisedStep, keep_head
from fedaccord.methods.offers import with_local_rule
from fedaccord.training.objectives import Objective
from fedaccord.training.solvers import SGD

_REFUSE_TAGS = RequireViews("one_label", "one label for each sample")
_REFUSE_SETS = RequireViews("one_name", "one name for each sample")
NOTHING_BESIDE = Exchange()


def fedmt(settings: FedMTSettings) -> Recipe:
    """Return the recipe of `fedmt` and `fedmt+`."""
    how, pooled = settings.correspondence, settings.estimator == "em-pool"
    objective = replace(
        _pseudo_labels(settings),
        projected=True,
        source=_source(how, pooled),
        lambda2=settings.lambda2,
        posterior=settings.pseudo_label == "posterior",
        project_on=settings.project_on,
        smoothing=settings.smoothing,
        sends_matrix=how == "learnable-average",
    )
    together = how.endswith("-average") or (how == "estimated" and pooled)
    asked: tuple[ServerStep, ...] = ()
    if how == "estimated" and pooled:
        asked = (names.PooledCounts(settings.exchanges, settings.smoothing),)
    elif how == "estimated-average":
        asked = (names.average_estimates,)
    return _federated(
        settings,
        objective,
        prepare=(_supervised(settings), *asked),
        exchange=Exchange(
            names.tell_matrix if together else None, names.matrix_spec if how == "learnable-average" else None
        ),
        refine=(*([names.average_learned] if how == "learnable-average" else []), _watch(settings)),
        tasks={names.COUNT: Counting(settings.threshold, settings.smoothing)},
    )


def semifl(settings: SemiFLSettings) -> Recipe:
    """Pseudo-labels alone, without the sites' coarse labels (SemiFL, Diao et al. 2022)."""
    step, watch = _supervised(settings), _watch(settings)
    return _federated(settings, _pseudo_labels(settings), (step,), refine=(watch,))


def single(settings: SupercentreSettings) -> Recipe:
    """The server trains on its own labelled samples; no site does anything."""
    return Recipe(settings, mean, trains="server", prepare=(_supervised(settings),))


def fedrep(settings: FedRepSettings) -> Recipe:
    """Server and sites train one encoder at the same time, each below its own head (FedRep as compared by FedMT)."""
    together = JointEncoder(_supervised(settings), settings.server_weight)
    head = OwnHead(_augmentation(settings))
    return _federated(settings, head, (together.prepare,), refine=(together.refine,), ready=(_REFUSE_SETS,))


def fedtrans(settings: FedTransSettings) -> Recipe:
    """Sites train a model of their own names; then the server fine-tunes it, with a new head, on its own samples."""
    tuning = FineTuning(replace(_supervised(settings), cosine=False))
    return _federated(
        settings,
        OwnHead(_augmentation(settings), shared=True),
        exchange=Exchange(names.tell_head, names.head_spec),
        ready=(_REFUSE_SETS,),
        refine=(names.average_heads, keep_head, tuning),
    )


def _federated(
    settings: MixedSiteSettings,
    objective: Objective,
    prepare: tuple[ServerStep, ...] = (),
    exchange: Exchange = NOTHING_BESIDE,
    refine: tuple[ServerStep, ...] = (),
    ready: tuple[ServerStep, ...] = (),
    **slots: Any,
) -> Recipe:
    """Put a method's parts around the local solver and the aggregation that the settings ask for."""
    recipe = Recipe(
        settings,
        None,
        objective,
        sharing=replace(share_model(settings), owners="all"),
        trains="sites and server",
        ready=(_REFUSE_TAGS, *ready),
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
    """Return where a site takes its matrix from."""
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


def _watch(settings: SemiFLSettings) -> names.ConfidenceWatch:
    unused = "the sites' labels" if isinstance(settings, FedMTSettings) else "the sites' samples"
    if isinstance(settings, FedMTSettings) and settings.project_on == "all":  # these are learned from all the same
        unused = "pseudo-labels" if settings.lambda2 else ""
    return names.ConfidenceWatch(settings.threshold, settings.rounds, unused)
