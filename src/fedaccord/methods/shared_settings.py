"""The settings of every method, with the papers' defaults; importable without torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from fedaccord.adversary.settings import AttackSettings, DefenceSettings
from fedaccord.training.settings import TrainingSettings

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


class ClassicSettings(SharedModelSettings):
    """Settings of `fedavg`: as published, every site's softmax runs over all classes."""

    loss: Literal["view", "squared"] = Field(
        "view", description="what a site minimises: its view's likelihood, or the squared error of the scores"
    )
    weights: Literal["samples", "equal"] = Field("samples", description="how much each site that replies counts")
    softmax: Literal["view", "full"] = Field(
        "full", description="over which labels a site's softmax runs: those its view knows, or all"
    )
