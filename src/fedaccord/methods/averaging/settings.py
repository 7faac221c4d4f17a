"""Federated averaging and FedProx: settings and registry entries; importable without torch."""

from __future__ import annotations

from fedaccord.methods.entry import LocalRule, MethodEntry
from fedaccord.methods.shared_settings import ClassicSettings
from fedaccord.training.settings import NotNegative, site_setting


class FedProxSettings(ClassicSettings):
    """Settings of `fedprox`."""

    mu: NotNegative = site_setting(0.01, "weight of the proximal term")


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
        "federated averaging with a proximal term that keeps sites near the shared model (Li et al. 2020)",
        FedProxSettings,
        "fedaccord.methods.averaging.recipe:fedprox",
        local_rule=LocalRule("fedaccord.methods.averaging.recipe:with_proximal_term", settings=("mu",)),
    ),
)
