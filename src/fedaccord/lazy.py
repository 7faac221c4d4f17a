"""Import a heavy module when it is first used, so that a config file can be checked without torch."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class _LazyModule:
    """Stands in for a module; the first access to an attribute imports it."""

    def __init__(self, name: str) -> None:
        self.__dict__["_name"] = name

    def __getattr__(self, attribute: str) -> Any:
        value = getattr(import_module(self._name), attribute)
        self.__dict__[attribute] = value  # later accesses do not come here
        return value


def lazy_import(name: str) -> Any:
    """Return a stand-in for a module that is imported at the first access to one of its attributes."""
    return _LazyModule(name)
