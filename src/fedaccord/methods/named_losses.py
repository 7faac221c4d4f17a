"""Which objective a method's settings ask for, by the name of a loss."""

from __future__ import annotations

from fedaccord.methods.loss_settings import (
    BoundedSettings,
    ConvexSettings,
    LeverageSettings,
    NoiseSettings,
    RenewalSettings,
    TripletSettings,
)
from fedaccord.methods.offers import offered_losses
from fedaccord.training.candidate_losses import TERMS, partial_loss
from fedaccord.training.candidate_sets import PartialLabels
from fedaccord.training.noise import Noisy
from fedaccord.training.objectives import Objective, ViewLikelihood
from fedaccord.training.settings import TrainingSettings


def site_objective(loss: str, settings: TrainingSettings) -> Objective:
    """Return a loss by name, with noise if asked for; "view" is the view's own likelihood."""
    return with_noise(ViewLikelihood() if loss == "view" else _partial(loss, settings), settings)


def with_noise(objective: Objective, settings: TrainingSettings) -> Objective:
    """Return the objective with the noise that the settings ask for."""
    if isinstance(settings, NoiseSettings) and (settings.noise or settings.dropout):
        return Noisy(objective, settings.noise, settings.dropout)
    return objective


def _partial(loss: str, settings: TrainingSettings) -> PartialLabels:
    """Return a loss for candidate sets with those of its parameters that the settings have."""
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
