"""Find a method by name: built in, from an installed package, or "package.module:recipe"; importable without torch.

Every `methods/<family>/settings.py` lists the entries of its built-in methods as `METHODS`.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, get_type_hints

from fedaccord import methods
from fedaccord.errors import ConfigError, did_you_mean
from fedaccord.extensions import installed, is_reference, load_reference, reference_of
from fedaccord.methods.entry import MethodEntry
from fedaccord.training.settings import TrainingSettings, place_of

if TYPE_CHECKING:
    from fedaccord.federation.recipe import Recipe

DEFAULT = "accord"


def _built_in() -> dict[str, MethodEntry]:
    families = [
        f"{methods.__name__}.{module.name}" for module in pkgutil.iter_modules(methods.__path__) if module.ispkg
    ]
    entries = [e.in_package(family) for family in families for e in import_module(f"{family}.settings").METHODS]
    return {entry.name: entry for entry in sorted(entries, key=lambda entry: entry.name != DEFAULT)}


METHODS: dict[str, MethodEntry] = _built_in()
"""Built-in methods by name: the default first, then by family."""


def method_entry(name: str) -> MethodEntry:
    """Return the entry of a method; raise ConfigError with the closest name if it is unknown.

    A method that is not built in is imported, so its package must be trusted (`fedaccord.extensions`).
    """
    if name in METHODS:
        return METHODS[name]
    points = installed("methods")
    if is_reference(name) or name in points:
        reference = name if is_reference(name) else reference_of(points[name])
        return outside_entry(name, load_reference(reference, "method.name"), reference)
    raise ConfigError(f"method.name: unknown method '{name}'; {did_you_mean(name, [*METHODS, *points])}")


def outside_entry(name: str, build: Callable[[Any], Recipe], reference: str) -> MethodEntry:
    """Return the entry of an external recipe function; its argument's annotation is the settings class."""
    if not callable(build):
        raise ConfigError(f"method.name: '{reference}' is not a function that returns a recipe")
    hints = {key: hint for key, hint in get_type_hints(build).items() if key != "return"}
    settings = next(iter(hints.values()), None)
    if not (isinstance(settings, type) and issubclass(settings, TrainingSettings)):
        raise ConfigError(
            f"method.name: the function '{reference}' must annotate its argument with a subclass of "
            "fedaccord.TrainingSettings"
        )
    unplaced = [name for name, field in settings.model_fields.items() if place_of(field) is None]
    if unplaced:
        raise ConfigError(
            f"method.name: '{reference}': the setting '{unplaced[0]}' must say where it belongs: declare it by "
            "fedaccord.site_setting if a site's part of the method reads it, else by fedaccord.server_setting"
        )
    summary = (build.__doc__ or "").strip().splitlines()
    return MethodEntry(name, settings, reference, summary=summary[0] if summary else "")


def make_recipe(name: str, settings: TrainingSettings | Mapping[str, Any]) -> Recipe:
    """Return the recipe of a method with these settings."""
    entry = method_entry(name)
    module, _, function = entry.recipe.partition(":")
    checked = settings if isinstance(settings, TrainingSettings) else entry.settings(**settings)
    recipe: Recipe = getattr(import_module(module), function)(checked)
    return recipe
