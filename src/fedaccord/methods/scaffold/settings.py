"""SCAFFOLD: settings and registry entry; importable without torch."""

from __future__ import annotations

from fedaccord.methods.entry import LocalRule, MethodEntry
from fedaccord.methods.shared_settings import ClassicSettings
from fedaccord.training.settings import Fraction, NotNegative, Rate, server_setting, site_setting


class ScaffoldSettings(ClassicSettings):
    """SCAFFOLD (Karimireddy et al. 2020): FedAvg with local steps corrected by control variates."""

    momentum: Fraction = 0.0
    server_lr: Rate = server_setting(1.0, "learning rate of the server: factor of the mean update")
    mu: NotNegative = site_setting(0.0, "weight of a proximal term, as in fedprox")


METHODS = (
    MethodEntry(
        "scaffold",
        ScaffoldSettings,
        "recipe:scaffold",
        local_rule=LocalRule("recipe:with_control_variates", defaults={"momentum": 0.0}, exchanges=True),
    ),
)
