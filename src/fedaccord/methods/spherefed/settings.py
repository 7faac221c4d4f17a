"""SphereFed: its settings and its entry; importable without torch."""

from __future__ import annotations

from pydantic import Field

from fedaccord.methods.entry import MethodEntry
from fedaccord.methods.shared_settings import ClassicSettings


class SphereFedSettings(ClassicSettings):
    """Settings of `spherefed`."""

    ridge: float = Field(1.0, gt=0, description="ridge of the head that is solved for after the last round")

    @property
    def last_step(self) -> str:
        """Say what is done after the last round only."""
        return 'method.name = "spherefed" solves for its head'


METHODS = (
    MethodEntry(
        "spherefed",
        "several labels at once: unit features below a frozen head, solved for at the end (Dong et al. 2022)",
        SphereFedSettings,
        "fedaccord.methods.spherefed.recipe:spherefed",
    ),
)
