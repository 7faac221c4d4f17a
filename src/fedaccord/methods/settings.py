"""The settings of every method, with the papers' defaults; importable without torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from fedaccord.training.settings import TrainingSettings


class AccordSettings(TrainingSettings):
    """Settings of `accord`; the default of `prior` was chosen by paired runs, see docs/accord.md."""

    prior: Literal["off", "exact-sites", "all"] = Field(
        "all", description="which sites add the log of their own label frequencies to the logits"
    )


class ClassicSettings(TrainingSettings):
    """Settings of `fedavg`: as published, every site's softmax runs over all classes."""

    softmax: Literal["view", "full"] = Field(
        "full", description="over which labels a site's softmax runs: those its view knows, or all"
    )


class FedProxSettings(ClassicSettings):
    """Settings of `fedprox`."""

    mu: float = Field(0.01, ge=0, description="weight of the pull towards the received model")


class LocalSettings(TrainingSettings):
    """Settings of `local`."""


class PooledSettings(TrainingSettings):
    """Settings of `pooled`."""

    labels: Literal["truth", "views"] = Field(
        "truth", description="train on the true classes (an upper bound), or on what the sites' views show"
    )

    @model_validator(mode="after")
    def _no_settings_of_sites(self) -> PooledSettings:
        for name in ("sites", "participation", "softmax", "prior", "prior_count", "bn"):
            if getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"pooled data has no sites of its own, so '{name}' has no meaning")
        return self
