"""accord: settings and registry entry; importable without torch."""

from __future__ import annotations

from fedaccord.methods.entry import MethodEntry
from fedaccord.methods.shared_settings import SharedModelSettings
from fedaccord.training.settings import Prior


class AccordSettings(SharedModelSettings):
    """Settings of `accord`; the default of `prior` was chosen by paired runs, see docs/accord.md."""

    prior: Prior = "all"


METHODS = (
    MethodEntry(
        "accord",
        "every site minimises the likelihood of its own annotations; head rows are averaged per label (ours, default)",
        AccordSettings,
        "fedaccord.methods.accord.recipe:accord",
    ),
)
