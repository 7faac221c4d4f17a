"""The settings of losses for candidate sets, which several methods have; importable without torch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from fedaccord.methods.offers import LossName
from fedaccord.training.settings import TrainingSettings

Term = Literal["s", "pc", "nc"]


class NoiseSettings(TrainingSettings):
    """Settings of methods that may train on noisy samples."""

    noise: float = Field(
        0.0, ge=0, description="standard deviation of noise on the inputs in training; for standardised features"
    )
    dropout: float = Field(0.0, ge=0, lt=1, description="share of the encoder's output left out in a training step")


class RenewalSettings(TrainingSettings):
    """Settings of a loss that renews what it believes of each label."""

    alpha_from: Literal["step", "forward"] = Field(
        "step", description="renew label confidences by the model after a step, or by the step's own forward pass"
    )


class LeverageSettings(RenewalSettings):
    """Settings of the loss LW."""

    beta: float = Field(1.0, ge=0, description="lw: weight of the labels outside the candidate set")
    form: Literal["sigmoid", "cross-entropy"] = Field("sigmoid", description="lw: loss of a single label")


class BoundedSettings(TrainingSettings):
    """Settings of the loss ABS_GCE."""

    q: float = Field(0.7, gt=0, le=1, description="abs-gce: 1 bounds the loss of a candidate most, near 0 hardly")


class ConvexSettings(TrainingSettings):
    """Settings of the loss CLPL."""

    psi: Literal["logistic", "squared-hinge", "exponential"] = Field("logistic", description="clpl: loss of a score")
    scores: Literal["logits", "softmax"] = Field("logits", description="clpl: what scores are")


class TripletSettings(RenewalSettings):
    """Settings of pFedPLL's loss."""

    terms: Annotated[list[Term], Field(min_length=1)] = Field(
        ["s", "pc", "nc"],
        description="pfedpll: the set's likelihood, cross-entropy by confidences, penalty outside the set",
    )
    lambda_s: float = Field(1.0, ge=0, description="pfedpll: weight of the term s")
    lambda_pc: float = Field(1.0, ge=0, description="pfedpll: weight of the term pc")
    lambda_nc: float = Field(1.0, ge=0, description="pfedpll: weight of the term nc")

    @field_validator("terms")
    @classmethod
    def _no_term_twice(cls, terms: list[Term]) -> list[Term]:
        if len(set(terms)) < len(terms):
            raise ValueError("a term is named twice; use its lambda to weigh it")
        return terms


class AnyLossSettings(TripletSettings, LeverageSettings, BoundedSettings, ConvexSettings, NoiseSettings):
    """Settings of a method that takes any loss for candidate sets."""

    loss: LossName = Field(
        "view", description="what a site minimises: its view's likelihood, or a loss for candidate sets"
    )
