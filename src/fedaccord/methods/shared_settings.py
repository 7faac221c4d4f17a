"""Settings that several families of methods share; importable without torch."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import Field, field_validator

from fedaccord.adversary.settings import AttackSettings, DefenceSettings
from fedaccord.methods.entry import LOSSES, LossName
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
UNUSED_LOSS = "method.loss has no effect: {} always minimises the likelihood of the view"
SETTINGS_OF_LOSSES = {"lw": ("beta", "form"), "abs-gce": ("q",), "clpl": ("psi", "scores")}


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

    def without_effect(self) -> list[str]:
        """Return sentences on settings of rules that are not used, and on an attack that changes nothing."""
        found = super().without_effect()
        if self.aggregation in ("mean", "median") and self.is_changed("hostile"):
            found.append(f'method.hostile has no effect: aggregation = "{self.aggregation}" does not use it')
        return found + ([] if self.attack is None else self.attack.without_effect())


class ClassicSettings(SharedModelSettings):
    """Settings of methods derived from federated averaging; as published, the softmax runs over all classes."""

    loss: Literal["view", "squared"] = site_setting(
        "view", "local loss: negative log-likelihood of the view, or squared error of the scores"
    )
    weights: Literal["samples", "equal"] = server_setting(
        "samples", "weights of the sites in the aggregate: by number of samples, or equal"
    )
    softmax: Softmax = "full"

    def without_effect(self) -> list[str]:
        """Return also a sentence on weights that a robust rule ignores."""
        found = super().without_effect()
        if self.aggregation != "mean" and self.is_changed("weights"):
            found.append(f'method.weights has no effect: aggregation = "{self.aggregation}" gives all sites one weight')
        return found


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

    @property
    def uses_terms(self) -> bool:
        """Whether the loss with these terms is used."""
        return True

    def without_effect(self) -> list[str]:
        """Return also sentences on weights of terms that are left out, and on a loss without any weight."""
        found, names = super().without_effect(), {term: f"lambda_{term}" for term in get_args(Term)}
        if not self.uses_terms:
            changed = [name for name in ("terms", *names.values()) if self.is_changed(name)]
            return [*found, *(f"method.{name} has no effect: the method uses another loss" for name in changed)]
        unused = [name for term, name in names.items() if term not in self.terms and self.is_changed(name)]
        found += [f"method.{name} has no effect: its term is not in method.terms" for name in unused]
        if not any(getattr(self, names[term]) for term in self.terms):
            weights = " and ".join(names[term] for term in self.terms)
            found.append(f"method.{weights} is 0 for every term of the loss, so sites learn nothing; set one above 0")
        return found


class AnyLossSettings(TripletSettings, LeverageSettings, BoundedSettings, ConvexSettings, NoiseSettings):
    """Settings of methods that take any loss for candidate sets."""

    loss: LossName = site_setting("view", "local loss: negative log-likelihood of the view, or one for candidate sets")

    @property
    def uses_terms(self) -> bool:
        """Whether the loss with terms is used."""
        return self.loss not in LOSSES  # the losses that methods offer have terms

    def without_effect(self) -> list[str]:
        """Return also sentences on settings of losses that are not used."""
        unused = [name for loss, names in SETTINGS_OF_LOSSES.items() if loss != self.loss for name in names]
        return super().without_effect() + [
            f'method.{name} has no effect with loss = "{self.loss}"' for name in unused if self.is_changed(name)
        ]
