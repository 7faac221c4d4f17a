"""A method as the registry lists it, with what it offers to others; importable without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedaccord.training.settings import TrainingSettings


@dataclass(frozen=True)
class LocalRule:
    """A way to train at a site that other methods compose with, under the name of the method it comes from."""

    apply: str = ""  # "package.module:function" of (recipe, rows_by_owner), which returns a recipe; empty: no change
    settings: tuple[str, ...] = ()  # settings that only this rule reads
    defaults: Mapping[str, Any] = field(default_factory=dict)  # defaults that it changes
    exchanges: bool = False  # it sends tensors beside the model, so head rows cannot be weighed by label


@dataclass(frozen=True)
class MethodEntry:
    """A method: its name, one line on what it does, its settings, and where its parts are.

    References are "package.module:function" and are imported when they are needed.
    """

    name: str
    summary: str
    settings: type[TrainingSettings]
    recipe: str  # of (settings), returns the recipe
    check: str = ""  # of (settings, data), returns findings of `fedaccord check` about this method
    advice: str = ""  # of (data), returns notes of `fedaccord check` for any federation: where this method would help
    local_rule: LocalRule | None = None
    loss: str = ""  # a loss for candidate sets that other methods may use under this method's name
