"""accord: settings and registry entry; importable without torch."""

from __future__ import annotations

from fedaccord.methods.entry import MethodEntry
from fedaccord.methods.shared_settings import SharedModelSettings
from fedaccord.training.settings import Prior


class AccordSettings(SharedModelSettings):
    """Likelihood of each site's own annotations, head rows averaged per label, site priors (ours, the default)."""

    prior: Prior = "all"


METHODS = (MethodEntry("accord", AccordSettings, "recipe:accord"),)
