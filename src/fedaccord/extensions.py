"""Code that is not part of FedAccord: how a config names it, and the rule that it runs only if the user trusts it.

A config names an object as "package.module:attribute". An installed package may also register one under an entry
point, and then its short name is enough. Importing a module runs its code, so it is imported only if its package is
trusted: `--trust package`, `trust=` in Python, or `trust = [...]` in the `site.toml` of a deployed site. For the short
names in a person's own experiment file, installing the package is enough.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from fedaccord.errors import ConfigError, UntrustedError, first_line, listed

INSTALLED = "(installed)"
"""Among trusted packages: everything that installed packages register under entry points."""

_OURS = "fedaccord"
_INSTALLED_AT = (sys.prefix, sys.base_prefix)
_trusted: set[str] = set()


@contextmanager
def trusting(packages: Iterable[str]) -> Iterator[None]:
    """Allow imports of these packages, and of the modules inside them, within this context."""
    before = set(_trusted)
    _trusted.update(packages)
    try:
        yield
    finally:
        _trusted.clear()
        _trusted.update(before)


def trusted() -> list[str]:
    """Return the packages that are trusted now, sorted."""
    return sorted(_trusted)


def is_trusted(module: str) -> bool:
    """Return whether a module, or a package that holds it, is trusted."""
    parts = module.split(".")
    return any(".".join(parts[:length]) in _trusted for length in range(1, len(parts) + 1))


@contextmanager
def importable(folder: Path) -> Iterator[None]:
    """Look for modules in a folder as well, after all other places, within this context.

    Without any trusted package the folder is ignored: even an optional dependency must not be found there.
    """
    place = str(folder.resolve())
    if not _trusted - {INSTALLED}:
        yield
        return
    sys.path.append(place)
    try:
        yield
    finally:
        sys.path.remove(place)


def is_ours(module: str) -> bool:
    """Return whether a module is part of FedAccord."""
    return module.partition(".")[0] == _OURS


def is_reference(name: str) -> bool:
    """Return whether a name points to code, as in "package.module:attribute"."""
    return ":" in name


def is_outside(name: str, group: str) -> bool:
    """Return whether a name is a reference, or one that an installed package registers."""
    return is_reference(name) or name in installed(group)


def outside_package(name: str, group: str) -> str | None:
    """Return the top-level package whose code a name stands for; None for a name of FedAccord."""
    return reference(name, group).partition(":")[0].partition(".")[0] if is_outside(name, group) else None


def reference(name: str, group: str) -> str:
    """Return an outside name as "package.module:attribute"."""
    return name if is_reference(name) else f"{installed(group)[name].module}:{installed(group)[name].attr}"


def check_trusted(name: str, group: str, what: str) -> None:
    """Raise for an outside name that `load_outside` would refuse, without importing it."""
    module, _, attribute = reference(name, group).partition(":")
    if not (attribute.isidentifier() and all(part.isidentifier() for part in module.split("."))):
        raise ConfigError(f"{what}: '{name}' is not of the form 'package.module:name'")
    package = module.partition(".")[0]
    if is_ours(module):
        raise ConfigError(f"{what}: '{name}' points inside FedAccord; use one of the names it lists")
    points = installed(group).values() if INSTALLED in _trusted else ()
    if not is_trusted(module) and (module, attribute) not in [(point.module, point.attr) for point in points]:
        raise UntrustedError(name, package, what)


def load_outside(name: str, group: str, what: str) -> Any:
    """Import the object that an outside name of a group ("methods", "models", "views") stands for.

    `what` names the setting in messages, e.g. "method.name". Raises ConfigError for a malformed name or a module that
    cannot be imported, and UntrustedError for a package that nobody has allowed.
    """
    check_trusted(name, group, what)
    module, _, attribute = reference(name, group).partition(":")
    try:
        source = import_module(module)
    except Exception as error:  # an outside module may raise anything while it is imported
        problem = f"{what}: the module '{module}' cannot be imported: {first_line(error)}"
        if isinstance(error, ModuleNotFoundError):  # the names alone, since a site's paths are its own
            folders = [Path(p).resolve().name for p in reversed(sys.path) if not p.startswith(_INSTALLED_AT)]
            problem += (
                f"; looked among the installed packages and in the folders {listed(list(dict.fromkeys(folders)))}"
            )
        raise ConfigError(problem) from error
    if not hasattr(source, attribute):
        raise ConfigError(f"{what}: the module '{module}' has no '{attribute}'")
    return getattr(source, attribute)


@cache
def installed(group: str) -> dict[str, EntryPoint]:
    """Return what installed packages register under "fedaccord.<group>", by name; nothing is imported."""
    return {point.name: point for point in sorted(entry_points(group=f"fedaccord.{group}"), key=lambda p: p.name)}


def listed_packages(group: str) -> dict[str, str]:
    """Return the names that installed packages register, each with the name of its package."""
    points = installed(group).values()
    return {p.name: f"from the package {p.module.partition('.')[0] if p.dist is None else p.dist.name}" for p in points}
