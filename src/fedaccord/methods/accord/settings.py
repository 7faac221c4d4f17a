"""accord: settings and registry entry; importable without torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from fedaccord.methods.entry import MethodEntry
from fedaccord.methods.shared_settings import SharedModelSettings
from fedaccord.training.settings import Auto, Count, Prior, Rate, Schedule, server_setting, site_setting

Personal = Literal["mixture", "cheap", "off"]


class AccordSettings(SharedModelSettings):
    """Likelihood of each site's own annotations, head rows averaged per label, site priors (ours, the default)."""

    formerly: ClassVar[Mapping[str, Any]] = {
        "confidences": False,
        "regularise": False,
        "personal": "off",
        "prior": "all",
    }
    takes_auto: ClassVar[bool] = True

    steps: Count | Auto | None = "auto"
    lr: Rate | Auto = "auto"
    schedule: Schedule = "cosine"
    prior: Prior = "fading"
    confidences: bool = server_setting(
        True,
        "label confidences at sites with candidate sets, the loss of `pfedpll+` in place of the likelihood, if at "
        "least half of the sites have such sets",
    )
    regularise: bool = site_setting(
        True, "noise and dropout that fit the kind of input: table, text, signal or image (docs/methods.md 3.1)"
    )
    personal: Personal = server_setting(
        "mixture",
        "model that a site ends with: a mixture of the shared model, the same with an own head, and a model trained "
        "alone, with weights chosen on rows kept apart; cheap: the same with fixed weights; off: the shared model",
    )


METHODS = (MethodEntry("accord", AccordSettings, "recipe:accord", check="checks:check"),)
