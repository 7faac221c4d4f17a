"""FedNova: settings and registry entry; importable without torch."""

from __future__ import annotations

from fedaccord.methods.entry import MethodEntry
from fedaccord.methods.shared_settings import ClassicSettings


class FedNovaSettings(ClassicSettings):
    """FedNova (Wang et al. 2020): FedAvg that corrects for different numbers of local steps."""


METHODS = (MethodEntry("fednova", FedNovaSettings, "recipe:fednova"),)
