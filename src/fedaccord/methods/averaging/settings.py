"""Federated averaging and FedProx: their settings and entries; importable without torch."""

from __future__ import annotations

from pydantic import Field

from fedaccord.methods.entry import LocalRule, MethodEntry
from fedaccord.methods.shared_settings import ClassicSettings


class FedProxSettings(ClassicSettings):
    """Settings of `fedprox`."""

    mu: float = Field(0.01, ge=0, description="weight of the pull towards the received model")


PLAIN_RULE = "fedavg"
"""The local rule that changes nothing."""

METHODS = (
    MethodEntry(
        "fedavg",
        "federated averaging (McMahan et al. 2017): one shared softmax, models averaged by sample count",
        ClassicSettings,
        "fedaccord.methods.averaging.recipe:fedavg",
        local_rule=LocalRule(),
    ),
    MethodEntry(
        "fedprox",
        "federated averaging with a proximal term that holds sites near the shared model (Li et al. 2020)",
        FedProxSettings,
        "fedaccord.methods.averaging.recipe:fedprox",
        local_rule=LocalRule("fedaccord.methods.averaging.recipe:with_proximal_term", settings=("mu",)),
    ),
)
