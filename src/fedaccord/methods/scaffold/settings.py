"""SCAFFOLD: its settings and its entry; importable without torch."""

from __future__ import annotations

from pydantic import Field

from fedaccord.methods.entry import LocalRule, MethodEntry
from fedaccord.methods.shared_settings import ClassicSettings


class ScaffoldSettings(ClassicSettings):
    """Settings of `scaffold`: as published, its local steps have no momentum."""

    momentum: float = Field(0.0, ge=0, lt=1, description="momentum of the sites' SGD, fresh in every round")
    server_lr: float = Field(1.0, gt=0, le=1000, description="how far the server goes along the sites' mean step")
    mu: float = Field(0.0, ge=0, description="weight of a pull towards the received model, as in fedprox")


METHODS = (
    MethodEntry(
        "scaffold",
        "federated averaging with local steps corrected by control variates (Karimireddy et al. 2020)",
        ScaffoldSettings,
        "fedaccord.methods.scaffold.recipe:scaffold",
        local_rule=LocalRule(
            "fedaccord.methods.scaffold.recipe:with_control_variates", defaults={"momentum": 0.0}, exchanges=True
        ),
    ),
)
