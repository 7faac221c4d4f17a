"""What recipes with one shared model have in common: batch norm, aggregation, weights, control variates, solvers."""

from __future__ import annotations

from dataclasses import replace

from fedaccord.aggregation.mean import mean, per_label, with_pooled_batch_norm
from fedaccord.aggregation.replies import Aggregator
from fedaccord.aggregation.robust import RobustAggregation, Rule
from fedaccord.errors import ConfigError
from fedaccord.federation.defence import Defence
from fedaccord.federation.recipe import Recipe
from fedaccord.federation.refusing import RefuseViews
from fedaccord.federation.robustness import RobustnessWatch
from fedaccord.federation.sharing import Sharing
from fedaccord.federation.weighing import equal_weights
from fedaccord.methods.shared_settings import (
    ClassicSettings,
    SharedModelSettings,
)
from fedaccord.training.objectives import Objective, Proximal, SquaredError, Sum, ViewLikelihood
from fedaccord.training.settings import TrainingSettings
from fedaccord.training.solvers import SGD

_REFUSE_ALL_BUT_EXACT = RefuseViews("exact", 'one label for each sample with loss = "squared"')


def plain(settings: ClassicSettings, mu: float = 0.0, rows_of_owners: bool = False) -> Recipe:
    """Return what the methods with one shared model begin from: sites train it, and their models are combined."""
    recipe = Recipe(settings, None, held_near(mu, settings.loss), sharing=share_model(settings))
    if settings.loss == "squared":
        recipe = replace(recipe, ready=(_REFUSE_ALL_BUT_EXACT,))
    return combining(recipe, settings, rows_of_owners)


def share_model(settings: TrainingSettings) -> Sharing:
    """Share the whole model; `bn = "local"` keeps batch-norm statistics at the site."""
    return Sharing(buffers=settings.bn != "local")


def held_near(mu: float, loss: str = "view") -> Objective:
    """Return the likelihood, or another loss, with a pull of strength `mu` towards the received model, none for 0."""
    objective = SquaredError() if loss == "squared" else ViewLikelihood()
    return Sum((objective, Proximal(mu))) if mu else objective


def combining(recipe: Recipe, settings: SharedModelSettings, rows_of_owners: bool = False) -> Recipe:
    """Return the recipe with the aggregator that the settings ask for; a robust one is watched over.

    With `rows_of_owners` a head row, where the head is shared at all, is combined over the sites that inform its label.
    A defence that the settings ask for comes before all other steps on replies.
    """
    rows_of_owners = rows_of_owners and "head" in recipe.sharing.parts
    if getattr(settings, "weights", "samples") == "equal":
        recipe = replace(recipe, admit=(*recipe.admit, equal_weights))
    if settings.defence is not None:  # before any weights: a reply that is left out has none
        defence = Defence(settings.defence)
        recipe = replace(recipe, admit=(defence, *recipe.admit), ready=(*recipe.ready, defence.refuse))
    if settings.aggregation == "mean":
        return replace(recipe, aggregator=batch_norm(per_label if rows_of_owners else mean, settings))
    rule = Rule(settings.aggregation, settings.hostile)
    robust = RobustAggregation(rule, rows_of_owners, pooled=settings.bn == "pooled")
    watch = RobustnessWatch(robust)
    refine = (watch.warn_of_thin_rows, *recipe.refine)
    return replace(recipe, aggregator=robust, ready=(*recipe.ready, watch.refuse_too_few), refine=refine)


def sgd_alone(settings: TrainingSettings, reason: str) -> SGD:
    """Return the SGD that the settings describe; refuses another optimiser with a reason."""
    if settings.optimiser != "sgd":
        raise ConfigError(f"method.optimiser is '{settings.optimiser}', but {reason}")
    return SGD(settings.momentum, settings.weight_decay, settings.clip)


def batch_norm(aggregator: Aggregator, settings: TrainingSettings) -> Aggregator:
    """Combine batch-norm variances as the settings say."""
    return with_pooled_batch_norm(aggregator) if settings.bn == "pooled" else aggregator
