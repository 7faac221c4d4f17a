"""SphereFed: settings and registry entry; importable without torch."""

from __future__ import annotations

from fedaccord.methods.entry import MethodEntry
from fedaccord.methods.shared_settings import ClassicSettings
from fedaccord.training.settings import Positive, server_setting


class SphereFedSettings(ClassicSettings):
    """Tags: SphereFed (Dong et al. 2022), with unit features below a frozen head that is solved for at the end."""

    ridge: Positive = server_setting(1.0, "ridge penalty of the head that is solved for after the last round")

    @property
    def last_step(self) -> str:
        """What is done only after the last round."""
        return 'method.name = "spherefed" solves for its head'


METHODS = (MethodEntry("spherefed", SphereFedSettings, "recipe:spherefed"),)
