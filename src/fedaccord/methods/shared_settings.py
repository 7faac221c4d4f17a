"""Settings that several families of methods share; importable without torch."""

from __future__ import annotations

from typing import Literal

from pydantic import field_validator

from fedaccord.adversary.settings import AttackSettings, DefenceSettings
from fedaccord.training.settings import Softmax, TrainingSettings, server_setting, site_setting

OF_SITES = ("sites", "participation", "softmax", "prior", "prior_count", "bn")
"""Settings of how sites take part, which have no effect in a method without sites."""
Aggregation = Literal["mean", "median", "trimmed-mean", "krum", "multi-krum"]


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
    attack: AttackSettings | None = site_setting(
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
