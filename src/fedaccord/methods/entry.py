"""The registry entry of a method; importable without torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator

from fedaccord.errors import ConfigError, did_you_mean
from fedaccord.training.settings import TrainingSettings

if TYPE_CHECKING:
    from fedaccord.federation.recipe import Recipe

LOSSES = ("view", "cc", "rc", "lw", "cavl", "abs-gce", "uniform", "clpl")
"""The view's likelihood, and the losses for candidate sets that no single method owns."""


@dataclass(frozen=True)
class LocalRule:
    """A rule of local training that other methods can use, under the name of the method that defines it."""

    apply: str = ""  # "package.module:function" of (recipe, rows_by_owner), which returns a recipe; empty: no change
    settings: tuple[str, ...] = ()  # settings that only this rule reads
    defaults: Mapping[str, Any] = field(default_factory=dict)  # changed defaults of other settings
    exchanges: bool = False  # sends side tensors, so head rows cannot be weighted by label


@dataclass(frozen=True)
class MethodEntry:
    """Name and settings of a method, references to its parts, and the parts that it offers to other methods.

    References are "package.module:function" and are imported on first use. In a family's folder they are
    relative to the folder, as in "recipe:fedavg".
    """

    name: str
    settings: type[TrainingSettings]
    recipe: str | Callable[[Any], Recipe]  # of (settings), returns the recipe; a reference or the function itself
    check: str = ""  # of (settings, data), returns findings of `fedaccord check` about this method
    advice: str = ""  # of (data), returns notes of `fedaccord check` on any federation: where this method applies
    local_rule: LocalRule | None = None
    loss: str = ""  # a loss for candidate sets that other methods may use under this method's name
    trains_alone: bool = False  # every site trains alone: the baseline of `fedaccord run --alone`
    summary: str = ""  # one line; left out: the first line of the settings' docstring

    def in_package(self, package: str) -> MethodEntry:
        """Return the entry with absolute references and its summary, for a family in this package."""
        recipe, check, advice = (f"{package}.{ref}" if ref else "" for ref in (self.recipe, self.check, self.advice))
        rule = self.local_rule
        if rule is not None and rule.apply:
            rule = replace(rule, apply=f"{package}.{rule.apply}")
        summary = self.summary or (self.settings.__doc__ or "").splitlines()[0]
        return replace(self, recipe=recipe, check=check, advice=advice, local_rule=rule, summary=summary)

    def build(self, settings: TrainingSettings) -> Recipe:
        """Return the recipe for these settings."""
        from fedaccord.federation.recipe import Recipe  # imports torch

        recipe = (self.recipe if callable(self.recipe) else resolve_name(self.recipe))(settings)
        if not isinstance(recipe, Recipe):
            raise ConfigError(f"method.name: the function '{self.name}' must return a Recipe, not {recipe!r}")
        return recipe


@dataclass(frozen=True)
class Choices:
    """The names that a setting allows, computed when all families are loaded; the reference lists them."""

    names: Callable[[], Sequence[str]]

    def __call__(self, name: str) -> str:
        """Return the name, or raise ValueError with the closest one."""
        if name not in self.names():
            raise ValueError(f"unknown name '{name}'; {did_you_mean(name, self.names())}")
        return name


def local_rules() -> dict[str, LocalRule]:
    """Return the local rules that other methods can use, by name."""
    from fedaccord.methods.registry import METHODS  # here, because families import this module

    return {name: entry.local_rule for name, entry in METHODS.items() if entry.local_rule is not None}


def offered_losses() -> dict[str, str]:
    """Return the losses for candidate sets that methods offer, from the name in experiment files to that in code."""
    from fedaccord.methods.registry import METHODS

    return {name: entry.loss for name, entry in METHODS.items() if entry.loss}


def with_local_rule(recipe: Recipe, rule: str, rows_by_owner: bool = False) -> Recipe:
    """Return the recipe with a local rule applied to its objective or solver."""
    apply = local_rules()[rule].apply
    changed: Recipe = resolve_name(apply)(recipe, rows_by_owner) if apply else recipe
    return changed


LossName = Annotated[str, AfterValidator(Choices(lambda: [*LOSSES, *offered_losses()]))]
LocalRuleName = Annotated[str, AfterValidator(Choices(lambda: list(local_rules())))]
