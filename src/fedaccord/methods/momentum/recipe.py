"""Momentum between rounds (docs/methods.md 8): pFedMo and the methods it is compared with.

    method       step of a site           step of the server       sent in addition to the model
    fedmom       SGD                      Nesterov                 nothing
    slowmo       SGD                      heavy ball               nothing
    mime         Mime                     mean                     statistics and gradients
    domo         SGD after a pre-step     heavy ball               the server's momentum, to the sites
    fedadc       SGD with a drift         heavy ball               the server's momentum, to the sites
    fednag       Nesterov                 mean                     the sites' momentum, both ways
    fastslowmo   Nesterov                 Nesterov                 the sites' momentum, both ways
    pfedmo       Nesterov                 personalised models      the sites' momentum, both ways

With `softmax = "view"` head rows are aggregated over the sites that inform their labels, as in `accord`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from fedaccord.aggregation.mean import mean
from fedaccord.aggregation.replies import Aggregator, Replies
from fedaccord.aggregation.robust import RobustAggregation
from fedaccord.federation.recipe import Exchange, Recipe, RequireViews
from fedaccord.federation.side_tensors import SideTensors
from fedaccord.methods.common_model import require_sgd, share_model, shared_model_recipe
from fedaccord.methods.momentum.mime import GRADIENT, STATISTICS, GradientStatistics
from fedaccord.methods.momentum.representation import PersonalisedModels, Representation
from fedaccord.methods.momentum.server_momentum import ServerHeavyBall, ServerNesterov
from fedaccord.methods.momentum.settings import (
    DomoSettings,
    FastSlowMoSettings,
    FedAdcSettings,
    FedMomSettings,
    MimeSettings,
    MomentumSettings,
    NesterovSettings,
    PfedmoSettings,
    PublicDataSettings,
    RepresentationSettings,
    SlowMoSettings,
)
from fedaccord.methods.momentum.site import MOMENTUM, Drift, SharedMomentum, TravellingMomentum
from fedaccord.training.settings import TrainingSettings
from fedaccord.training.solvers import SGD

if TYPE_CHECKING:
    from fedaccord.federation.server import Server


_REQUIRE_ONE_LABEL = RequireViews("one_label", "one class for each sample, like the server's model")


def fedmom(settings: FedMomSettings) -> Recipe:
    """Return the recipe of FedMom: FedAvg with Nesterov momentum at the server (Huo et al. 2020)."""
    recipe = _shared_model_recipe(settings)
    return replace(recipe, refine=(*recipe.refine, ServerNesterov(settings.server_lr, settings.beta)))


def slowmo(settings: SlowMoSettings) -> Recipe:
    """Return the recipe of SlowMo: FedAvg with heavy-ball momentum at the server (Wang et al. 2020)."""
    recipe = _shared_model_recipe(settings)
    return replace(recipe, refine=(*recipe.refine, ServerHeavyBall(settings, settings.alpha, settings.beta)))


def domo(settings: DomoSettings) -> Recipe:
    """Return the recipe of DOMO: SlowMo whose sites first move along the server's momentum (Xu and Huang 2022)."""
    share = settings.beta if settings.fusion is None else settings.fusion
    drift = Drift("each" if settings.spread else "first", share, sent=False)
    return _with_shared_momentum(slowmo(settings), settings, drift)


def fedadc(settings: FedAdcSettings) -> Recipe:
    """Return the recipe of FedADC: the server's momentum is part of the local steps (Ozfatura et al. 2021)."""
    share = settings.beta if settings.beta_local is None else settings.beta_local
    recipe = _shared_model_recipe(settings)
    server_step = ServerHeavyBall(settings, settings.alpha, settings.beta - share)
    drift = Drift("ahead" if settings.form == "nesterov" else "each", share, sent=True)
    return _with_shared_momentum(replace(recipe, refine=(*recipe.refine, server_step)), settings, drift)


def mime(settings: MimeSettings) -> Recipe:
    """Return the recipe of Mime: corrected local steps with the server's statistics (Karimireddy et al. 2021)."""
    recipe = _shared_model_recipe(settings)
    assert recipe.aggregator is not None
    statistics = GradientStatistics(
        SideTensors(recipe.sharing, GRADIENT),
        SideTensors(recipe.sharing, STATISTICS),
        recipe.aggregator,
        recipe.objective,
        _sgd(settings),
        settings,
    )
    return replace(
        recipe,
        solver=statistics,
        prepare=(statistics.prepare,),
        exchange=Exchange(statistics.brief),
        refine=(*recipe.refine, statistics.refine),
        tasks={GRADIENT: statistics.answer},
    )


def fednag(settings: NesterovSettings) -> Recipe:
    """Return the recipe of FedNAG: Nesterov momentum at the sites, averaged like the models (Yang et al. 2022)."""
    recipe = _shared_model_recipe(settings)
    momentum = _travelling_momentum(settings, recipe.aggregator)
    recipe = _with_krum_scores(recipe, momentum.score_with_momenta)
    return replace(
        recipe,
        solver=momentum,
        prepare=(momentum.prepare,),
        exchange=Exchange(momentum.brief, momentum.extras),
        refine=(*recipe.refine, momentum.refine),
    )


def fastslowmo(settings: FastSlowMoSettings) -> Recipe:
    """Return the recipe of FastSlowMo: FedNAG with Nesterov momentum at the server, too (Yang et al.)."""
    recipe = fednag(settings)
    return replace(recipe, refine=(*recipe.refine, ServerNesterov(1.0, settings.beta)))


def pfedmo(settings: PfedmoSettings) -> Recipe:
    """Return the recipe of pFedMo: FedNAG with models personalised by their agreement with the representation."""
    recipe = _shared_model_recipe(settings)
    representation = _representation(settings, recipe.aggregator)
    models = PersonalisedModels(settings, representation)
    recipe = _with_krum_scores(recipe, models.score_with_momenta)
    return replace(
        recipe,
        solver=representation.momentum,
        trains="sites and server",
        prepare=(models.prepare,),
        exchange=Exchange(models.brief, representation.momentum.extras),
        ready=(*recipe.ready, _REQUIRE_ONE_LABEL, representation.refuse_too_few),
        refine=(*recipe.refine, models.refine),
    )


def representation(settings: RepresentationSettings) -> Recipe:
    """Return the recipe of the baseline without sites: the server trains on its public samples."""
    alone = _representation(settings, mean)
    return Recipe(settings, mean, trains="server", ready=(alone.refuse_too_few,), prepare=(alone.learn_alone,))


def _shared_model_recipe(settings: MomentumSettings) -> Recipe:
    return shared_model_recipe(settings, rows_by_owner=settings.softmax == "view")


def _with_krum_scores(recipe: Recipe, score_with_momenta: Callable[[Server, Replies], Replies]) -> Recipe:
    """Let Krum select sites by models and momenta together; other rules treat each parameter separately."""
    rule = recipe.aggregator
    if not (isinstance(rule, RobustAggregation) and rule.rule.chooses):
        return recipe
    return replace(recipe, admit=(*recipe.admit, score_with_momenta))


def _with_shared_momentum(recipe: Recipe, settings: MomentumSettings, drift: Drift) -> Recipe:
    shared = SharedMomentum(SideTensors(recipe.sharing, MOMENTUM), settings, _sgd(settings), drift)
    return replace(recipe, solver=shared, exchange=Exchange(shared.brief))


def _travelling_momentum(settings: NesterovSettings, aggregator: Aggregator | None) -> TravellingMomentum:
    assert aggregator is not None
    return TravellingMomentum(SideTensors(share_model(settings), MOMENTUM), aggregator, _sgd(settings), settings.gamma)


def _representation(settings: PublicDataSettings, aggregator: Aggregator | None) -> Representation:
    return Representation(settings, _travelling_momentum(settings, aggregator))


def _sgd(settings: TrainingSettings) -> SGD:
    return require_sgd(settings, "the momentum of this method is part of steps of SGD")
