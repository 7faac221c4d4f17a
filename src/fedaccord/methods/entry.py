"""A method as the registry lists it; importable without torch."""

from __future__ import annotations

from dataclasses import dataclass

from fedaccord.training.settings import TrainingSettings


@dataclass(frozen=True)
class MethodEntry:
    """A method's name, one line on what it does, its settings and where its recipe is built."""

    name: str
    summary: str
    settings: type[TrainingSettings]
    recipe: str  # "package.module:function", imported when training begins
