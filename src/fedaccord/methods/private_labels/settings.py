"""Private label sets: settings and registry entry; importable without torch."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import field_validator, model_validator

from fedaccord.errors import refuse_unused
from fedaccord.methods.averaging.settings import PLAIN_RULE
from fedaccord.methods.entry import LocalRuleName, MethodEntry, local_rules
from fedaccord.methods.shared_settings import SharedModelSettings
from fedaccord.training.settings import Count, Fraction, NotNegative, Rate, server_setting, site_setting


class PrivateLabelsSettings(SharedModelSettings):
    """Private label sets (arXiv 2508.18774): a site shares only the head rows of labels that it knows."""

    rounds: Count = 100
    batch: Count = 64
    lr: Rate = 0.01
    labels: Literal["private", "public", "public_per_label"] = site_setting(
        "private", "who knows the labels; public_per_label still averages head rows over their owners"
    )
    rows: Literal["known", "dense"] = site_setting(
        "known", "private: send only the head rows of a site's labels, or heads of full shape"
    )
    label_weight: Literal["samples", "per_label"] = site_setting(
        "samples", "weight of a site in a head row: its number of samples, or of those with the label, which it sends"
    )
    local: LocalRuleName = site_setting(PLAIN_RULE, "local training rule; scaffold: momentum is 0 unless given")
    mu: NotNegative = site_setting(0.01, "fedprox: weight of the proximal term")
    tuning: Literal["none", "mse", "pairwise", "balance"] = server_setting(
        "none", "how the server tunes its model on unlabelled data; balance: once, after the last round"
    )
    norm: Literal["raw", "renorm"] = server_setting(
        "raw", "mse: compare probabilities as published, or renormalised over a site's labels"
    )
    pairs: Literal["in-set", "zero-padded"] = server_setting(
        "in-set", "pairwise: compare the pairs of a site's labels, or all pairs"
    )
    tuning_labels: Literal["known", "all"] = server_setting(
        "known", "public: compare with a site over the labels it knows, or over all"
    )
    mask_absent: bool = server_setting(True, "exclude labels that no site of the round knows from the tuning")
    tune: Literal["classifier", "all"] = server_setting("classifier", "parameters that are tuned")
    tuning_lr: Rate = server_setting(0.01, "learning rate of the tuning")
    tuning_momentum: Fraction = server_setting(0.9, "momentum of the tuning")
    tuning_batch: Count = server_setting(64, "mini-batch size of the tuning")
    frequencies: Literal["uniform", "sites"] | list[float] = server_setting(
        "uniform", "balance: class frequencies of the server's data; sites: estimated from their sizes and labels"
    )

    @property
    def last_step(self) -> str:
        """What is done only after the last round."""
        return 'method.tuning = "balance" works' if self.tuning == "balance" else ""

    @property
    def reads_server_inputs(self) -> bool:
        """Whether the model is tuned on the server's inputs."""
        return self.tuning != "none"

    def without_effect(self) -> list[str]:
        """Return also sentences on settings of a tuning or of a local rule that is not used."""
        tuned = ("tune", "tuning_lr", "tuning_momentum", "tuning_batch", "mask_absent")
        found, compared = super().without_effect(), self.tuning in ("mse", "pairwise")
        found += [
            f'method.{name} has no effect with tuning = "{self.tuning}"'
            for name in tuned
            if not compared and self.is_changed(name)
        ]
        if self.is_changed("mu") and "mu" not in local_rules()[self.local].settings:
            found.append(f'method.mu has no effect with local = "{self.local}"')
        return found

    @field_validator("frequencies")
    @classmethod
    def _frequencies_are_valid(cls, value: str | list[float]) -> str | list[float]:
        if isinstance(value, list) and (min(value, default=0.0) < 0 or not sum(value) > 0):
            raise ValueError("a number of at least 0 for each label, not all of them 0")
        return value

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_the_local_rule(cls, given: Any) -> Any:
        rule = local_rules().get(given.get("local", "")) if isinstance(given, dict) else None
        return given if rule is None else {**rule.defaults, **given}

    @model_validator(mode="after")
    def _softmax_follows_labels(self) -> PrivateLabelsSettings:
        if self.softmax != "view":
            raise ValueError("the softmax follows from 'labels', so 'softmax' cannot be set")
        return self

    @model_validator(mode="after")
    def _no_setting_is_unused(self) -> PrivateLabelsSettings:
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


METHODS = (MethodEntry("private-labels", PrivateLabelsSettings, "recipe:private_labels", check="recipe:check"),)
