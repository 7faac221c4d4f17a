"""Code that is not part of FedAccord: how a config names it, and the rule that it runs only if a person said so.

A config names an object as "package.module:attribute". An installed package may also register one under an entry
point, and then its short name is enough. Importing a module runs its code. So a name that comes from a file, a model
folder or a server is imported only if its package is trusted: `--trust package`, `trust=` in Python, or the environment
variable FEDACCORD_TRUST of a machine (packages separated by commas), by which a site of a deployment agrees.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from fedaccord.errors import ConfigError, UntrustedError

TRUST_VARIABLE = "FEDACCORD_TRUST"

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


def trust(packages: Iterable[str]) -> None:
    """Allow imports of these packages for the rest of this process; for worker processes."""
    _trusted.update(packages)


def trusted() -> list[str]:
    """Return the packages that are trusted now, sorted."""
    agreed = os.environ.get(TRUST_VARIABLE, "").split(",")
    return sorted(_trusted | {package.strip() for package in agreed} - {""})


def is_trusted(module: str) -> bool:
    """Return whether a module, or a package that holds it, is trusted."""
    parts = module.split(".")
    packages = trusted()
    return any(".".join(parts[:length]) in packages for length in range(1, len(parts) + 1))


@contextmanager
def importable(folder: Path) -> Iterator[None]:
    """Look for modules in a folder as well, after all other places, within this context."""
    place = str(folder.resolve())
    sys.path.append(place)
    try:
        yield
    finally:
        sys.path.remove(place)


def is_reference(name: str) -> bool:
    """Return whether a name points to code, as in "package.module:attribute"."""
    return ":" in name


def load_reference(name: str, what: str) -> Any:
    """Import the object that "package.module:attribute" names.

    `what` names the setting in messages, e.g. "method.name". Raises ConfigError for a malformed name or a module that
    cannot be imported, and UntrustedError for a package that nobody has allowed.
    """
    module, _, attribute = name.partition(":")
    if not (attribute.isidentifier() and all(part.isidentifier() for part in module.split("."))):
        raise ConfigError(f"{what}: '{name}' is not of the form 'package.module:name'")
    if not is_trusted(module):
        raise UntrustedError(name, module.split(".")[0], what)
    try:
        source = import_module(module)
    except Exception as error:  # a stranger's module may raise anything while it is imported
        raise ConfigError(f"{what}: the module '{module}' cannot be imported: {_first_line(error)}") from error
    if not hasattr(source, attribute):
        raise ConfigError(f"{what}: the module '{module}' has no '{attribute}'")
    return getattr(source, attribute)


@cache
def installed(group: str) -> dict[str, EntryPoint]:
    """Return what installed packages register under "fedaccord.<group>", by name; nothing is imported."""
    return {point.name: point for point in sorted(entry_points(group=f"fedaccord.{group}"), key=lambda p: p.name)}


def reference_of(point: EntryPoint) -> str:
    """Return an entry point as "package.module:attribute"."""
    return f"{point.module}:{point.attr}"


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
