"""The plain methods everything is compared to: FedAvg, FedProx, training alone, and pooling the data."""

from __future__ import annotations

from fedaccord.aggregation.mean import mean, with_pooled_batch_norm
from fedaccord.aggregation.replies import Aggregator
from fedaccord.federation.recipe import Recipe
from fedaccord.federation.sharing import SHARE_NOTHING, Sharing
from fedaccord.methods.settings import ClassicSettings, FedProxSettings, LocalSettings, PooledSettings
from fedaccord.training.objectives import Proximal, Sum, ViewLikelihood
from fedaccord.training.settings import TrainingSettings


def fedavg(settings: ClassicSettings) -> Recipe:
    """Average whole models by sample count (McMahan et al. 2017)."""
    return Recipe(settings, batch_norm(mean, settings), sharing=share_model(settings))


def fedprox(settings: FedProxSettings) -> Recipe:
    """FedAvg whose sites are held near the shared model (Li et al. 2020)."""
    objective = Sum((ViewLikelihood(), Proximal(settings.mu)))
    return Recipe(settings, batch_norm(mean, settings), objective, sharing=share_model(settings))


def local(settings: LocalSettings) -> Recipe:
    """Every site trains alone: nothing is sent, the whole model stays in the site's memory."""
    return Recipe(settings, aggregator=None, sharing=SHARE_NOTHING)


def pooled(settings: PooledSettings) -> Recipe:
    """One place holds all samples; its model is judged at every site."""
    return Recipe(settings, mean, trains="pool")


def share_model(settings: TrainingSettings) -> Sharing:
    """Share the whole model; `bn = "local"` keeps batch-norm statistics at the site."""
    return Sharing(buffers=settings.bn != "local")


def batch_norm(aggregator: Aggregator, settings: TrainingSettings) -> Aggregator:
    """Combine batch-norm variances as the settings say."""
    return with_pooled_batch_norm(aggregator) if settings.bn == "pooled" else aggregator
