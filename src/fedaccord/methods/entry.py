"""The registry entry of a method; importable without torch."""

from __future__ import annotations

from dataclasses import dataclass

from fedaccord.training.settings import TrainingSettings


@dataclass(frozen=True)
class MethodEntry:
    """Name, one-line summary, settings class and recipe function of a method."""

    name: str
    summary: str
    settings: type[TrainingSettings]
    recipe: str  # "package.module:function", imported when training starts
