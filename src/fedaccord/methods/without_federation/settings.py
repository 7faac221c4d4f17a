"""Baselines without federation: settings and registry entries; importable without torch."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import model_validator

from fedaccord.errors import refuse_unused
from fedaccord.methods.entry import MethodEntry
from fedaccord.methods.shared_settings import OF_SITES, AnyLossSettings
from fedaccord.training.settings import TrainingSettings, server_setting, site_setting


class LocalSettings(AnyLossSettings):
    """Every site trains alone on its own data: the baseline that federation has to beat."""

    takes_auto: ClassVar[bool] = True

    regularise: bool = site_setting(
        False, "noise and dropout that fit the kind of input: table, text, signal or image (docs/methods.md 3.7)"
    )

    @model_validator(mode="after")
    def _regularised_once(self) -> LocalSettings:
        if self.regularise and (self.noise or self.dropout):
            raise ValueError("regularise chooses noise and dropout; leave these out, or set regularise = false")
        return self


class PooledSettings(TrainingSettings):
    """All samples in one place, for studies: it moves data, so no federation can do it."""

    labels: Literal["truth", "views"] = server_setting(
        "truth", "train on the true classes (an upper bound), or on the sites' annotations"
    )

    @model_validator(mode="after")
    def _no_settings_of_sites(self) -> PooledSettings:
        refuse_unused(self, OF_SITES, "on pooled data, which has no sites of its own")
        return self


METHODS = (
    MethodEntry("local", LocalSettings, "recipe:local", trains_alone=True),
    MethodEntry("pooled", PooledSettings, "recipe:pooled"),
)
