"""Federated averaging and FedProx: settings and registry entries; importable without torch."""

from __future__ import annotations

from fedaccord.methods.entry import LocalRule, MethodEntry
from fedaccord.methods.shared_settings import ClassicSettings
from fedaccord.training.settings import NotNegative, site_setting


class FedProxSettings(ClassicSettings):
    """FedProx (Li et al. 2020): FedAvg with a proximal term at the sites."""

    mu: NotNegative = site_setting(0.01, "weight of the proximal term")


PLAIN_RULE = "fedavg"
"""The local rule that changes nothing."""

METHODS = (
    MethodEntry(
        "fedavg",
        ClassicSettings,
        "recipe:fedavg",
        local_rule=LocalRule(),
        summary="FedAvg (McMahan et al. 2017): models averaged by sample count, one softmax over all classes.",
    ),
    MethodEntry(
        "fedprox",
        FedProxSettings,
        "recipe:fedprox",
        local_rule=LocalRule("recipe:with_proximal_term", settings=("mu",)),
    ),
)
