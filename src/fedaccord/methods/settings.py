"""The settings of every method, with the papers' defaults; importable without torch."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from fedaccord.adversary.settings import AttackSettings, DefenceSettings
from fedaccord.errors import refuse_unused
from fedaccord.methods.loss_settings import AnyLossSettings
from fedaccord.training.settings import Count, TrainingSettings

OF_SITES = ("sites", "participation", "softmax", "prior", "prior_count", "bn")
"""Settings that say who trains and how sites differ, which a method without sites cannot follow."""


class SharedModelSettings(TrainingSettings):
    """Settings of methods whose sites share a model."""

    aggregation: Literal["mean", "median", "trimmed-mean", "krum", "multi-krum"] = Field(
        "mean", description="how the sites' models become one; all but the mean withstand some hostile sites"
    )
    hostile: int | float = Field(
        0.2, description="sites taken to be hostile: a share below 0.5, rounded down to at least one, or a whole number"
    )
    attack: AttackSettings | None = Field(None, description="let some sites be hostile, for studies (docs/fairness.md)")
    defence: DefenceSettings | None = Field(
        None, description="leave sites out that push a group towards a label (docs/fairness.md)"
    )

    @field_validator("hostile")
    @classmethod
    def _share_or_number(cls, value: int | float) -> int | float:
        if value < 1 if isinstance(value, int) else not 0 < value < 0.5:
            raise ValueError(f"a share between 0 and 0.5 or a whole number of sites, not {value}")
        return value


class AccordSettings(SharedModelSettings):
    """Settings of `accord`; the default of `prior` was chosen by paired runs, see docs/accord.md."""

    prior: Literal["off", "exact-sites", "all"] = Field(
        "all", description="which sites add the log of their own label frequencies to the logits"
    )


class ClassicSettings(SharedModelSettings):
    """Settings of `fedavg`: as published, every site's softmax runs over all classes."""

    loss: Literal["view", "squared"] = Field(
        "view", description="what a site minimises: its view's likelihood, or the squared error of the scores"
    )
    weights: Literal["samples", "equal"] = Field("samples", description="how much each site that replies counts")
    softmax: Literal["view", "full"] = Field(
        "full", description="over which labels a site's softmax runs: those its view knows, or all"
    )


class FedProxSettings(ClassicSettings):
    """Settings of `fedprox`."""

    mu: float = Field(0.01, ge=0, description="weight of the pull towards the received model")


class FedNovaSettings(ClassicSettings):
    """Settings of `fednova`."""


class ScaffoldSettings(ClassicSettings):
    """Settings of `scaffold`: as published, its local steps have no momentum."""

    momentum: float = Field(0.0, ge=0, lt=1, description="momentum of the sites' SGD, fresh in every round")
    server_lr: float = Field(1.0, gt=0, le=1000, description="how far the server goes along the sites' mean step")
    mu: float = Field(0.0, ge=0, description="weight of a pull towards the received model, as in fedprox")


class LocalSettings(AnyLossSettings):
    """Settings of `local`."""


class PooledSettings(TrainingSettings):
    """Settings of `pooled`."""

    labels: Literal["truth", "views"] = Field(
        "truth", description="train on the true classes (an upper bound), or on what the sites' views show"
    )

    @model_validator(mode="after")
    def _no_settings_of_sites(self) -> PooledSettings:
        refuse_unused(self, OF_SITES, "on pooled data, which has no sites of its own")
        return self


class PrivateLabelsSettings(SharedModelSettings):
    """Settings of `private-labels`."""

    rounds: Count = Field(100, description="communication rounds")
    batch: Count = Field(64, description="samples in a mini-batch")
    lr: float = Field(0.01, gt=0, le=1000, description="learning rate of the sites")
    labels: Literal["private", "public", "public_per_label"] = Field(
        "private", description="who knows the labels; public_per_label still averages head rows over their owners"
    )
    rows: Literal["known", "dense"] = Field(
        "known", description="private: send only the head rows a site knows, or heads of full shape"
    )
    label_weight: Literal["samples", "per_label"] = Field(
        "samples", description="what a site counts for in a head row: all its samples, or those of the label (it tells)"
    )
    local: Literal["fedavg", "fedprox", "scaffold"] = Field(
        "fedavg", description="how a site trains; scaffold: without momentum unless it is given"
    )
    mu: float = Field(0.01, ge=0, description="fedprox: weight of the pull towards the received model")
    tuning: Literal["none", "mse", "pairwise", "balance"] = Field(
        "none", description="what the server does with its unlabelled data; balance: once, after the last round"
    )
    norm: Literal["raw", "renorm"] = Field("raw", description="mse: compare as published, or within a site's labels")
    pairs: Literal["in-set", "zero-padded"] = Field("in-set", description="pairwise: a site's own pairs, or all")
    tuning_labels: Literal["known", "all"] = Field(
        "known", description="public: compare with a site over the labels it knows, or over all"
    )
    mask_absent: bool = Field(True, description="leave labels that no site of the round knows out of the tuning")
    tune: Literal["classifier", "all"] = Field("classifier", description="what is tuned")
    tuning_lr: float = Field(0.01, gt=0, le=1000, description="learning rate of the tuning")
    tuning_momentum: float = Field(0.9, ge=0, lt=1, description="momentum of the tuning")
    tuning_batch: Count = Field(64, description="mini-batch of the tuning")
    frequencies: Literal["uniform", "sites"] | list[float] = Field(
        "uniform", description="balance: class frequencies of the server's data; sites: by their sizes and labels"
    )

    @property
    def last_step(self) -> str:
        """Say what is done after the last round only."""
        return 'method.tuning = "balance" works' if self.tuning == "balance" else ""

    @field_validator("frequencies")
    @classmethod
    def _frequencies_of_something(cls, value: str | list[float]) -> str | list[float]:
        if isinstance(value, list) and (min(value, default=0.0) < 0 or not sum(value) > 0):
            raise ValueError("a number of at least 0 for each label, not all of them 0")
        return value

    @model_validator(mode="before")
    @classmethod
    def _scaffold_has_no_momentum(cls, given: Any) -> Any:
        plain = isinstance(given, dict) and given.get("local") == "scaffold" and "momentum" not in given
        return {**given, "momentum": 0.0} if plain else given

    @model_validator(mode="after")
    def _softmax_follows_labels(self) -> PrivateLabelsSettings:
        if self.softmax != "view":
            raise ValueError("the softmax follows from 'labels', so 'softmax' cannot be set")
        return self

    @model_validator(mode="after")
    def _nothing_is_asked_for_in_vain(self) -> PrivateLabelsSettings:
        compared = self.tuning in ("mse", "pairwise")
        by_owners = self.labels != "public" and self.aggregation == "mean" and self.local != "scaffold"
        works = {
            "rows": (self.labels == "private", "labels are private"),
            "norm": (self.tuning == "mse", "tuning is mse"),
            "pairs": (self.tuning == "pairwise", "tuning is pairwise"),
            "frequencies": (self.tuning == "balance", "tuning is balance"),
            "tuning_labels": (self.labels != "private" and compared, "labels are public and tuning is mse or pairwise"),
            "label_weight": (by_owners, "rows are averaged over their owners: not public, the mean, no scaffold"),
        }
        for name, (effective, where) in works.items():
            if not effective:
                refuse_unused(self, (name,), f"unless {where}")
        return self
