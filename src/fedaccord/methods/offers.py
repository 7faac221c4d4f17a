"""What families offer to each other under their methods' names: local rules and losses; importable without torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator

from fedaccord.errors import did_you_mean
from fedaccord.methods.entry import LocalRule

if TYPE_CHECKING:
    from fedaccord.federation.recipe import Recipe

LOSSES = ("view", "cc", "rc", "lw", "cavl", "abs-gce", "uniform", "clpl")
"""The view's likelihood, and the losses for candidate sets that belong to no single method here."""


@dataclass(frozen=True)
class Choices:
    """The names that a setting may have, known once all families are; the reference lists them."""

    names: Callable[[], Sequence[str]]

    def __call__(self, name: str) -> str:
        """Return the name, or raise ValueError with the closest one."""
        if name not in self.names():
            raise ValueError(f"unknown name '{name}'; {did_you_mean(name, self.names())}")
        return name


def local_rules() -> dict[str, LocalRule]:
    """Return the ways to train at a site that methods may compose with, by name."""
    from fedaccord.methods.registry import METHODS  # families import this module, so the registry comes later

    return {name: entry.local_rule for name, entry in METHODS.items() if entry.local_rule is not None}


def offered_losses() -> dict[str, str]:
    """Return the losses for candidate sets that methods offer: the name in an experiment file, and in the code."""
    from fedaccord.methods.registry import METHODS

    return {name: entry.loss for name, entry in METHODS.items() if entry.loss}


def with_local_rule(recipe: Recipe, rule: str, rows_by_owner: bool = False) -> Recipe:
    """Return the recipe with a local rule around its objective and solver."""
    module, _, function = local_rules()[rule].apply.partition(":")
    changed: Recipe = getattr(import_module(module), function)(recipe, rows_by_owner) if module else recipe
    return changed


def unused_by(rule: str) -> dict[str, tuple[str, ...]]:
    """Return the settings that only other local rules read, by the name of the rule."""
    return {name: other.settings for name, other in local_rules().items() if name != rule and other.settings}


def with_rule_defaults(given: Any) -> Any:
    """Return given settings with the defaults that their local rule changes."""
    rule = local_rules().get(given.get("local", "")) if isinstance(given, dict) else None
    return given if rule is None else {**rule.defaults, **given}


LossName = Annotated[str, AfterValidator(Choices(lambda: [*LOSSES, *offered_losses()]))]
LocalRuleName = Annotated[str, AfterValidator(Choices(lambda: list(local_rules())))]
