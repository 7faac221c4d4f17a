"""accord: its settings and its entry in the list of methods; importable without torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fedaccord.methods.entry import MethodEntry
from fedaccord.methods.shared_settings import SharedModelSettings


class AccordSettings(SharedModelSettings):
    """Settings of `accord`; the default of `prior` was chosen by paired runs, see docs/accord.md."""

    prior: Literal["off", "exact-sites", "all"] = Field(
        "all", description="which sites add the log of their own label frequencies to the logits"
    )


METHODS = (
    MethodEntry(
        "accord",
        "every site minimises the likelihood of its own annotations; head rows are averaged per label (ours, default)",
        AccordSettings,
        "fedaccord.methods.accord.recipe:accord",
    ),
)
