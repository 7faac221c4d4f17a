"""Private label sets: settings and entry; importable without torch."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from fedaccord.errors import refuse_unused
from fedaccord.methods.averaging.settings import PLAIN_RULE
from fedaccord.methods.entry import MethodEntry
from fedaccord.methods.offers import LocalRuleName, local_rules, with_rule_defaults
from fedaccord.methods.shared_settings import SharedModelSettings
from fedaccord.training.settings import Count


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
    local: LocalRuleName = Field(
        PLAIN_RULE, description="how a site trains; scaffold: without momentum unless it is given"
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
    def _defaults_of_the_local_rule(cls, given: Any) -> Any:
        return with_rule_defaults(given)

    @model_validator(mode="after")
    def _softmax_follows_labels(self) -> PrivateLabelsSettings:
        if self.softmax != "view":
            raise ValueError("the softmax follows from 'labels', so 'softmax' cannot be set")
        return self

    @model_validator(mode="after")
    def _nothing_is_asked_for_in_vain(self) -> PrivateLabelsSettings:
        compared = self.tuning in ("mse", "pairwise")
        by_owners = self.labels != "public" and self.aggregation == "mean" and not local_rules()[self.local].exchanges
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


METHODS = (
    MethodEntry(
        "private-labels",
        "sites know some labels each and need not say which; head rows averaged over their owners (arXiv 2508.18774)",
        PrivateLabelsSettings,
        "fedaccord.methods.private_labels.recipe:private_labels",
        check="fedaccord.methods.private_labels.checks:check",
    ),
)
