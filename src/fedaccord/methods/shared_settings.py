"""Settings that several families of methods share; importable without torch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from fedaccord.adversary.settings import AttackSettings, DefenceSettings
from fedaccord.methods.entry import LossName
from fedaccord.training.settings import (
    Fraction,
    NotNegative,
    Softmax,
    TrainingSettings,
    attack_setting,
    server_setting,
    site_setting,
)

OF_SITES = ("sites", "participation", "softmax", "prior", "prior_count", "bn")
"""Settings of how sites take part, which have no effect in a method without sites."""
Aggregation = Literal["mean", "median", "trimmed-mean", "krum", "multi-krum"]
Term = Literal["s", "pc", "nc"]


class SharedModelSettings(TrainingSettings):
    """Settings of methods whose sites share a model."""

    aggregation: Aggregation = server_setting(
        "mean", "rule that aggregates the sites' models; all except the mean are robust to some hostile sites"
    )
    hostile: int | float = server_setting(
        0.2,
        "number of sites that a robust rule assumes hostile: a fraction below 0.5, rounded down to at least one site, "
        "or a whole number",
    )
    attack: AttackSettings | None = attack_setting(
        None, "attack by some sites in a study; sent only to these sites (docs/fairness.md)"
    )
    defence: DefenceSettings | None = server_setting(
        None, "exclude sites that push a group towards a label (docs/fairness.md)"
    )

    @field_validator("hostile")
    @classmethod
    def _hostile_is_a_minority(cls, value: int | float) -> int | float:
        if value < 1 if isinstance(value, int) else not 0 < value < 0.5:
            raise ValueError(f"a share between 0 and 0.5 or a whole number of sites, not {value}")
        return value


class ClassicSettings(SharedModelSettings):
    """Settings of methods derived from federated averaging; as published, the softmax runs over all classes."""

    loss: Literal["view", "squared"] = site_setting(
        "view", "local loss: negative log-likelihood of the view, or squared error of the scores"
    )
    weights: Literal["samples", "equal"] = server_setting(
        "samples", "weights of the sites in the aggregate: by number of samples, or equal"
    )
    softmax: Softmax = "full"


class NoiseSettings(TrainingSettings):
    """Settings of methods that can add noise to training samples."""

    noise: NotNegative = site_setting(
        0.0, "standard deviation of Gaussian noise added to training inputs; meant for standardised features"
    )
    dropout: Fraction = site_setting(0.0, "dropout rate on the encoder's output in training")


class RenewalSettings(TrainingSettings):
    """Settings of losses that update label confidences."""

    alpha_from: Literal["step", "forward"] = site_setting(
        "step", "update label confidences from the model after a step, or from the step's own forward pass"
    )


class LeverageSettings(RenewalSettings):
    """Settings of the loss LW."""

    beta: NotNegative = site_setting(1.0, "lw: weight of the labels outside the candidate set")
    form: Literal["sigmoid", "cross-entropy"] = site_setting("sigmoid", "lw: loss of a single label")


class BoundedSettings(TrainingSettings):
    """Settings of the loss ABS_GCE."""

    q: Annotated[float, Field(gt=0, le=1)] = site_setting(
        0.7,
        "abs-gce: exponent of the generalised cross-entropy; near 0 it is the cross-entropy, at 1 the absolute error",
    )


class ConvexSettings(TrainingSettings):
    """Settings of the loss CLPL."""

    psi: Literal["logistic", "squared-hinge", "exponential"] = site_setting("logistic", "clpl: loss of a score")
    scores: Literal["logits", "softmax"] = site_setting("logits", "clpl: quantity used as score")


class TripletSettings(RenewalSettings):
    """Settings of the loss of pFedPLL."""

    terms: Annotated[list[Term], Field(min_length=1)] = site_setting(
        ["s", "pc", "nc"],
        "pfedpll: terms of the loss: likelihood of the set (s), cross-entropy with the confidences (pc), penalty on "
        "labels outside the set (nc)",
    )
    lambda_s: NotNegative = site_setting(1.0, "pfedpll: weight of the term s")
    lambda_pc: NotNegative = site_setting(1.0, "pfedpll: weight of the term pc")
    lambda_nc: NotNegative = site_setting(1.0, "pfedpll: weight of the term nc")

    @field_validator("terms")
    @classmethod
    def _no_term_twice(cls, terms: list[Term]) -> list[Term]:
        if len(set(terms)) < len(terms):
            raise ValueError("a term is named twice; use its lambda to weigh it")
        return terms


class AnyLossSettings(TripletSettings, LeverageSettings, BoundedSettings, ConvexSettings, NoiseSettings):
    """Settings of methods that take any loss for candidate sets."""

    loss: LossName = site_setting("view", "local loss: negative log-likelihood of the view, or one for candidate sets")
