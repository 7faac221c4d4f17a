"""Parts of recipes with one shared model: batch norm, aggregation, weights, solvers, losses by name."""

from __future__ import annotations

from dataclasses import replace

from fedaccord.aggregation.mean import mean, per_label, with_pooled_batch_norm
from fedaccord.aggregation.robust import RobustAggregation, Rule
from fedaccord.errors import ConfigError
from fedaccord.federation.defence import Defence
from fedaccord.federation.recipe import Recipe, RequireViews, equal_weights
from fedaccord.federation.robustness import RobustnessWatch
from fedaccord.federation.sharing import Sharing
from fedaccord.methods.entry import offered_losses
from fedaccord.methods.shared_settings import (
    BoundedSettings,
    ConvexSettings,
    LeverageSettings,
    NoiseSettings,
    RenewalSettings,
    SharedModelSettings,
    TripletSettings,
)
from fedaccord.training.candidate_losses import TERMS, PartialLabels, partial_loss
from fedaccord.training.noise import Noisy
from fedaccord.training.objectives import Objective, Proximal, SquaredError, Sum, ViewLikelihood
from fedaccord.training.settings import TrainingSettings
from fedaccord.training.solvers import SGD

_REQUIRE_EXACT_LABELS = RequireViews("exact", 'one label for each sample with loss = "squared"')


def shared_model_recipe(
    settings: SharedModelSettings, objective: Objective | None = None, rows_by_owner: bool = False
) -> Recipe:
    """Return the recipe of a method whose sites train one shared model, as FedAvg does; most methods begin from it.

    Sites minimise `objective`, by default the loss of the settings, and the server aggregates their models as
    `with_aggregation` describes. Change other parts of the result with `dataclasses.replace`.
    """
    loss = getattr(settings, "loss", "view")
    recipe = Recipe(settings, None, objective or proximal_objective(0.0, loss), sharing=share_model(settings))
    if loss == "squared":
        recipe = replace(recipe, ready=(_REQUIRE_EXACT_LABELS,))
    return with_aggregation(recipe, settings, rows_by_owner)


def share_model(settings: TrainingSettings, encoder_only: bool = False) -> Sharing:
    """Share the model or its encoder, without batch-norm statistics if `bn = "local"`."""
    return Sharing(frozenset({"encoder"} if encoder_only else {"encoder", "head"}), buffers=settings.bn != "local")


def proximal_objective(mu: float, loss: str = "view") -> Objective:
    """Return the site's loss, plus a proximal term of weight `mu` if that is positive."""
    objective = SquaredError() if loss == "squared" else ViewLikelihood()
    return Sum((objective, Proximal(mu))) if mu else objective


def with_aggregation(recipe: Recipe, settings: SharedModelSettings, rows_by_owner: bool = False) -> Recipe:
    """Return the recipe with the aggregation of the settings: a mean or a robust rule, with weights and a defence.

    With `rows_by_owner`, each row of a shared head is aggregated over the sites that inform its label.
    """
    rows_by_owner = rows_by_owner and "head" in recipe.sharing.parts
    if getattr(settings, "weights", "samples") == "equal":
        recipe = replace(recipe, admit=(*recipe.admit, equal_weights))
    if settings.defence is not None:  # first, so that dropped replies get no weight
        defence = Defence(settings.defence)
        recipe = replace(recipe, admit=(defence, *recipe.admit), ready=(*recipe.ready, defence.validate))
    if settings.aggregation == "mean":
        average = per_label if rows_by_owner else mean
        return replace(recipe, aggregator=with_pooled_batch_norm(average) if settings.bn == "pooled" else average)
    rule = Rule(settings.aggregation, settings.hostile)
    robust = RobustAggregation(rule, rows_by_owner, pooled=settings.bn == "pooled")
    watch = RobustnessWatch(robust)
    refine = (watch.warn_about_few_owners, *recipe.refine)
    return replace(recipe, aggregator=robust, ready=(*recipe.ready, watch.validate), refine=refine)


def require_sgd(settings: TrainingSettings, reason: str) -> SGD:
    """Return the SGD of the settings; raise ConfigError with the reason if they name another optimiser."""
    if settings.optimiser != "sgd":
        raise ConfigError(f"method.optimiser is '{settings.optimiser}', but {reason}")
    return SGD(settings.momentum, settings.weight_decay, settings.clip)


def site_objective(loss: str, settings: TrainingSettings) -> Objective:
    """Return a loss by name, with the noise of the settings; "view" is the likelihood of the view."""
    return with_noise(ViewLikelihood() if loss == "view" else _partial(loss, settings), settings)


def with_noise(objective: Objective, settings: TrainingSettings) -> Objective:
    """Return the objective with the noise of the settings."""
    if isinstance(settings, NoiseSettings) and (settings.noise or settings.dropout):
        return Noisy(objective, settings.noise, settings.dropout)
    return objective


def _partial(loss: str, settings: TrainingSettings) -> PartialLabels:
    """Return a loss for candidate sets with its parameters from the settings."""
    given: dict[str, object] = {}
    if isinstance(settings, LeverageSettings):
        given |= {"beta": settings.beta, "form": settings.form}
    if isinstance(settings, BoundedSettings):
        given["q"] = settings.q
    if isinstance(settings, ConvexSettings):
        given |= {"psi": settings.psi, "on": settings.scores}
    if isinstance(settings, TripletSettings):
        lambdas = {term: getattr(settings, f"lambda_{term}") for term in TERMS}
        given |= {"terms": tuple(settings.terms), "lambdas": lambdas}
    update_from = settings.alpha_from if isinstance(settings, RenewalSettings) else "step"
    return PartialLabels(partial_loss(offered_losses().get(loss, loss), **given), update_from)  # type: ignore[arg-type]
