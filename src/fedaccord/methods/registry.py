"""Find a method by name: built in, from an installed package, or "package.module:recipe"; importable without torch.

Every `methods/<family>/settings.py` lists the entries of its built-in methods as `METHODS`.
"""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, get_type_hints

from fedaccord import methods
from fedaccord.errors import ConfigError, did_you_mean
from fedaccord.extensions import installed, is_outside, is_trusted, load_outside
from fedaccord.methods.entry import MethodEntry
from fedaccord.training.settings import TrainingSettings, place_of

if TYPE_CHECKING:
    from fedaccord.federation.recipe import Recipe

DEFAULT = "accord"
_given: dict[str, Callable[[Any], Recipe]] = {}  # functions handed over in Python, by name


def _built_in() -> dict[str, MethodEntry]:
    families = [
        f"{methods.__name__}.{module.name}" for module in pkgutil.iter_modules(methods.__path__) if module.ispkg
    ]
    entries = [e.in_package(family) for family in families for e in import_module(f"{family}.settings").METHODS]
    return {entry.name: entry for entry in sorted(entries, key=lambda entry: entry.name != DEFAULT)}


METHODS: dict[str, MethodEntry] = _built_in()
"""Built-in methods by name: the default first, then by family."""


ALONE = next(name for name, entry in METHODS.items() if entry.trains_alone)
"""The method in which every site trains alone."""


def method_entry(name: str) -> MethodEntry:
    """Return the entry of a method; raise ConfigError with the closest name if it is unknown.

    A method that is not built in is imported, so its package must be trusted (`fedaccord.extensions`).
    """
    if name in METHODS:
        return METHODS[name]
    if name in _given:
        return outside_entry(name, _given[name])
    if is_outside(name, "methods"):
        module, _, function = name.partition(":")
        if module == "__main__" or "<" in function:
            raise ConfigError(
                f"method.name: '{name}' is a function of another Python process; put it into a module that can be "
                "imported, or use workers=0"
            )
        return outside_entry(name, load_outside(name, "methods", "method.name"))
    hint = did_you_mean(name, [*METHODS, *installed("methods")])
    if is_trusted(name) or (name.isidentifier() and name not in sys.stdlib_module_names and find_spec(name)):
        hint = f"for a function of the module '{name}', write '{name}:FUNCTION'"
    raise ConfigError(f"method.name: unknown method '{name}'; {hint}")


def outside_entry(name: str, build: Callable[[Any], Recipe]) -> MethodEntry:
    """Return the entry of a recipe function that is not ours: its settings are the annotation of its argument."""
    if not callable(build):
        raise ConfigError(f"method.name: '{name}' is not a function that returns a recipe")
    try:
        hints = {key: hint for key, hint in get_type_hints(build).items() if key != "return"}
    except Exception as error:  # an annotation may name what exists only for a type checker
        raise ConfigError(f"method.name: the annotations of '{name}' cannot be read: {error}") from error
    settings = next(iter(hints.values()), None)
    if not (isinstance(settings, type) and issubclass(settings, TrainingSettings)):
        raise ConfigError(
            f"method.name: the function '{name}' must annotate its argument with a class of settings, "
            "a subclass of fedaccord.TrainingSettings"
        )
    unplaced = [key for key, field in settings.model_fields.items() if place_of(field) is None]
    if unplaced:
        raise ConfigError(
            f"method.name: '{name}': the setting '{unplaced[0]}' must say where it belongs: declare it by "
            "fedaccord.site_setting if a site's part of the method reads it, else by fedaccord.server_setting"
        )
    summary = (build.__doc__ or "").strip().splitlines()
    return MethodEntry(name, settings, build, summary=summary[0] if summary else "")


@contextmanager
def given(build: Callable[[Any], Recipe]) -> Iterator[str]:
    """Yield a name for a recipe function of this process, which `method_entry` finds within this context."""
    name = f"{build.__module__}:{build.__qualname__}"
    _given[name] = build
    try:
        yield name
    finally:
        del _given[name]


def is_importable(build: Callable[[Any], Recipe]) -> bool:
    """Return whether another process finds a function by the name of its module and its own."""
    module = sys.modules.get(build.__module__)
    return build.__module__ != "__main__" and getattr(module, build.__qualname__, None) is build


def make_recipe(name: str, settings: TrainingSettings | Mapping[str, Any]) -> Recipe:
    """Return the recipe of a method with these settings."""
    entry = method_entry(name)
    return entry.build(settings if isinstance(settings, TrainingSettings) else entry.settings(**settings))
