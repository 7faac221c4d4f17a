"""Momentum between rounds: pFedMo (docs/methods.md 8) and the methods it is compared with.

    method       sites step by            server steps by          what travels beside the model
    fedmom       SGD                      Nesterov                 nothing
    slowmo       SGD                      heavy ball               nothing
    mime         Mime's steps             mean                     statistics and gradients
    domo         SGD, after a pre-step    heavy ball               the server's momentum, to the sites
    fedadc       SGD with a drift         heavy ball               the server's momentum, to the sites
    fednag       Nesterov                 mean                     the sites' momentum, both ways
    fastslowmo   Nesterov                 Nesterov                 the sites' momentum, both ways
    pfedmo       Nesterov                 personalised returns     the sites' momentum, both ways

With `softmax = "view"` head rows are combined over the sites that inform their labels, as in `accord`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from fedaccord.aggregation.mean import mean
from fedaccord.aggregation.replies import Aggregator, Replies
from fedaccord.aggregation.robust import RobustAggregation
from fedaccord.federation.recipe import Exchange, Recipe
from fedaccord.federation.requirements import RequireViews
from fedaccord.federation.side_tensors import SideTensors
from fedaccord.methods.common_model import proximal_objective, require_sgd, share_model, shared_model_recipe
from fedaccord.methods.momentum.representation import PersonalisedReturns, Representation, RepresentationAlone
from fedaccord.methods.momentum.server import (
    GRADIENT,
    MOMENTUM,
    STATISTICS,
    GradientStatistics,
    ServerHeavyBall,
    ServerNesterov,
    SharedMomentum,
    TravellingMomentum,
)
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
from fedaccord.methods.momentum.site import Drift
from fedaccord.training.settings import TrainingSettings
from fedaccord.training.solvers import SGD

if TYPE_CHECKING:
    from fedaccord.federation.server import Server


_REFUSE_TAGS = RequireViews("one_label", "one class of each sample, as the server's own model has")


def fedmom(settings: FedMomSettings) -> Recipe:
    """FedAvg whose server takes Nesterov steps along the sites' mean (Huo et al. 2020)."""
    recipe = _plain(settings)
    return replace(recipe, refine=(*recipe.refine, ServerNesterov(settings.server_lr, settings.beta)))


def slowmo(settings: SlowMoSettings) -> Recipe:
    """FedAvg whose server takes heavy-ball steps along the sites' mean (Wang et al. 2020)."""
    recipe = _plain(settings)
    return replace(recipe, refine=(*recipe.refine, ServerHeavyBall(settings, settings.alpha, settings.beta)))


def domo(settings: DomoSettings) -> Recipe:
    """SlowMo whose sites begin where the server's momentum leads, and send what they add (Xu and Huang 2022)."""
    share = settings.beta if settings.fusion is None else settings.fusion
    return _told(slowmo(settings), settings, Drift("each" if settings.spread else "first", share, sent=False))


def fedadc(settings: FedAdcSettings) -> Recipe:
    """Sites take the server's momentum into their own steps, which carry it on (Ozfatura et al. 2021)."""
    share = settings.beta if settings.beta_local is None else settings.beta_local
    recipe = _plain(settings)
    carried = ServerHeavyBall(settings, settings.alpha, settings.beta - share)
    drift = Drift("ahead" if settings.form == "nesterov" else "each", share, sent=True)
    return _told(replace(recipe, refine=(*recipe.refine, carried)), settings, drift)


def mime(settings: MimeSettings) -> Recipe:
    """Corrected local steps with the server's statistics in place of momentum (Karimireddy et al. 2021)."""
    recipe = _plain(settings)
    assert recipe.aggregator is not None
    statistics = GradientStatistics(
        SideTensors(recipe.sharing, GRADIENT),
        SideTensors(recipe.sharing, STATISTICS),
        recipe.aggregator,
        recipe.objective,
        _sgd(settings),
        settings.beta,
        corrected=not settings.lite,
        samples=settings.gradient_samples,
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
    """Sites step by Nesterov's rule; models and momenta are both averaged (Yang et al. 2022)."""
    recipe = _plain(settings)
    momentum = _travelling(settings, recipe.aggregator)
    recipe = _choosing_once(recipe, momentum.chosen_together)
    return replace(
        recipe,
        solver=momentum,
        prepare=(momentum.prepare,),
        exchange=Exchange(momentum.brief, momentum.extras),
        refine=(*recipe.refine, momentum.refine),
    )


def fastslowmo(settings: FastSlowMoSettings) -> Recipe:
    """FedNAG whose server takes a Nesterov step as well (Yang et al.)."""
    recipe = fednag(settings)
    return replace(recipe, refine=(*recipe.refine, ServerNesterov(1.0, settings.beta)))


def pfedmo(settings: PfedmoSettings) -> Recipe:
    """FedNAG whose sites get models of their own back, by how they agree with the server's (pFedMo)."""
    recipe = _plain(settings)
    representation = _representation(settings, recipe.aggregator)
    returns = PersonalisedReturns(
        representation.momentum, representation, settings.rule, settings.pi, settings.score_batch
    )
    recipe = _choosing_once(recipe, returns.chosen_together)
    return replace(
        recipe,
        solver=representation.momentum,
        trains="sites and server",
        prepare=(returns.prepare,),
        exchange=Exchange(returns.brief, representation.momentum.extras),
        ready=(*recipe.ready, _REFUSE_TAGS, representation.refuse_too_few),
        refine=(*recipe.refine, returns.refine),
    )


def representation(settings: RepresentationSettings) -> Recipe:
    """The server's part of pFedMo alone: what its public samples give without any site."""
    alone = _representation(settings, mean)
    return Recipe(
        settings,
        mean,
        trains="server",
        ready=(alone.refuse_too_few,),
        prepare=(RepresentationAlone(alone),),
    )


def _plain(settings: MomentumSettings) -> Recipe:
    return shared_model_recipe(settings, rows_by_owner=settings.softmax == "view")


def _choosing_once(recipe: Recipe, together: Callable[[Server, Replies], Replies]) -> Recipe:
    """Let Krum's rules choose sites by all that these send; other rules look at each parameter by itself."""
    rule = recipe.aggregator
    if not (isinstance(rule, RobustAggregation) and rule.rule.chooses):
        return recipe
    return replace(recipe, admit=(*recipe.admit, together))


def _told(recipe: Recipe, settings: MomentumSettings, drift: Drift) -> Recipe:
    shared = SharedMomentum(SideTensors(recipe.sharing, MOMENTUM), settings, _sgd(settings), drift)
    return replace(recipe, solver=shared, exchange=Exchange(shared.brief))


def _travelling(settings: NesterovSettings, aggregator: Aggregator | None) -> TravellingMomentum:
    assert aggregator is not None
    return TravellingMomentum(SideTensors(share_model(settings), MOMENTUM), aggregator, _sgd(settings), settings.gamma)


def _representation(settings: PublicDataSettings, aggregator: Aggregator | None) -> Representation:
    momentum = _travelling(settings, aggregator)
    return Representation(settings, proximal_objective(0.0, settings.loss), momentum, settings.held_out)


def _sgd(settings: TrainingSettings) -> SGD:
    return require_sgd(settings, "the method's own momentum goes into steps of SGD")
