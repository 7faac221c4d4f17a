"""Federated averaging and methods derived from it: settings and registry entries; importable without torch."""

from __future__ import annotations

from fedaccord.methods.entry import LocalRule, MethodEntry
from fedaccord.methods.shared_settings import UNUSED_LOSS, ClassicSettings
from fedaccord.training.settings import Count, Fraction, NotNegative, Rate, server_setting, site_setting

IS_FEDAVG = "method.{} is 0, so {} is fedavg"


class FedProxSettings(ClassicSettings):
    """FedProx (Li et al. 2020): FedAvg with a proximal term at the sites."""

    mu: NotNegative = site_setting(0.01, "weight of the proximal term")

    def without_effect(self) -> list[str]:
        """Return also a sentence on a proximal term of weight 0."""
        return super().without_effect() + [IS_FEDAVG.format("mu", "fedprox")] * (self.mu == 0)


class ScaffoldSettings(ClassicSettings):
    """SCAFFOLD (Karimireddy et al. 2020): FedAvg with local steps corrected by control variates."""

    momentum: Fraction = 0.0
    server_lr: Rate = server_setting(1.0, "learning rate of the server: factor of the mean update")
    mu: NotNegative = site_setting(0.0, "weight of a proximal term, as in fedprox")


class FedNovaSettings(ClassicSettings):
    """FedNova (Wang et al. 2020): FedAvg that corrects for different numbers of local steps."""


class FedCurvSettings(ClassicSettings):
    """FedCurv (Shoham et al. 2019): FedAvg with a Fisher-weighted penalty towards the other sites' models."""

    curvature: NotNegative = site_setting(0.1, "weight of the penalty that pulls towards the other sites' models")
    fisher_samples: Count = site_setting(256, "maximum number of samples for a site's Fisher information")

    def without_effect(self) -> list[str]:
        """Return also sentences on a penalty of weight 0 and on the loss, which is always that of the view."""
        found = super().without_effect() + [IS_FEDAVG.format("curvature", "fedcurv")] * (self.curvature == 0)
        return found + [UNUSED_LOSS.format("fedcurv")] * self.is_changed("loss")


PLAIN_RULE = "fedavg"
"""The local rule that changes nothing."""
PROXIMAL_RULE = LocalRule("recipe:with_proximal_term", settings=("mu",))
CONTROLLED_RULE = LocalRule("scaffold:with_control_variates", defaults={"momentum": 0.0}, exchanges=True)

METHODS = (
    MethodEntry(
        "fedavg",
        ClassicSettings,
        "recipe:fedavg",
        local_rule=LocalRule(),
        summary="FedAvg (McMahan et al. 2017): models averaged by sample count, one softmax over all classes.",
    ),
    MethodEntry("fedprox", FedProxSettings, "recipe:fedprox", local_rule=PROXIMAL_RULE),
    MethodEntry("scaffold", ScaffoldSettings, "scaffold:scaffold", local_rule=CONTROLLED_RULE),
    MethodEntry("fednova", FedNovaSettings, "fednova:fednova"),
    MethodEntry("fedcurv", FedCurvSettings, "fedcurv:fedcurv"),
)
