"""FedNova: settings and registry entry; importable without torch."""

from __future__ import annotations

from fedaccord.methods.entry import MethodEntry
from fedaccord.methods.shared_settings import ClassicSettings


class FedNovaSettings(ClassicSettings):
    """Settings of `fednova`."""


METHODS = (
    MethodEntry(
        "fednova",
        "federated averaging of updates normalised by their number of local steps (Wang et al. 2020)",
        FedNovaSettings,
        "fedaccord.methods.fednova.recipe:fednova",
    ),
)
