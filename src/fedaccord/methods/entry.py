"""A method as the registry lists it, with what it offers to others; importable without torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedaccord.training.settings import TrainingSettings

if TYPE_CHECKING:
    from fedaccord.federation.recipe import Recipe


@dataclass(frozen=True)
class LocalRule:
    """A way to train at a site that other methods compose with, under the name of the method it comes from."""

    apply: str = ""  # "package.module:function" of (recipe, rows_by_owner), which returns a recipe; empty: no change
    settings: tuple[str, ...] = ()  # settings that only this rule reads
    defaults: Mapping[str, Any] = field(default_factory=dict)  # defaults that it changes
    exchanges: bool = False  # it sends tensors beside the model, so head rows cannot be weighed by label


@dataclass(frozen=True)
class MethodEntry:
    """A method: its name, its settings, where its parts are, and what it offers to others.

    References are "package.module:function" and are imported when they are needed. In a family's folder they are
    relative to the folder, as in "recipe:fedavg".
    """

    name: str
    settings: type[TrainingSettings]
    recipe: str | Callable[[Any], Recipe]  # of (settings), returns the recipe; a reference or the function itself
    check: str = ""  # of (settings, data), returns findings of `fedaccord check` about this method
    advice: str = ""  # of (data), returns notes of `fedaccord check` for any federation: where this method would help
    local_rule: LocalRule | None = None
    loss: str = ""  # a loss for candidate sets that other methods may use under this method's name
    summary: str = ""  # one line; left out: the first line of the settings' docstring

    def in_package(self, package: str) -> MethodEntry:
        """Return the entry with whole references and its summary, for a family in this package."""
        recipe, check, advice = (f"{package}.{ref}" if ref else "" for ref in (self.recipe, self.check, self.advice))
        rule = self.local_rule
        if rule is not None and rule.apply:
            rule = replace(rule, apply=f"{package}.{rule.apply}")
        summary = self.summary or (self.settings.__doc__ or "").splitlines()[0]
        return replace(self, recipe=recipe, check=check, advice=advice, local_rule=rule, summary=summary)

    def build(self, settings: TrainingSettings) -> Recipe:
        """Return the recipe for these settings."""
        if callable(self.recipe):
            return self.recipe(settings)
        module, _, function = self.recipe.partition(":")
        recipe: Recipe = getattr(import_module(module), function)(settings)
        return recipe
