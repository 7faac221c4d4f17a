"""Numpy and torch, imported when they are first used, so that a config file can be checked without them.

`from fedaccord.lazy import Tensor, torch` replaces `import torch` and `from torch import Tensor`. `Tensor` and `Array`
are for annotations only.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from torch import Tensor

    Array = NDArray[Any]
else:
    Array = Tensor = Any

__all__ = ["Array", "Tensor", "np", "torch"]


class _LazyModule:
    """Stands in for a module; the first access to an attribute imports it."""

    def __init__(self, name: str) -> None:
        self.__dict__["_name"] = name

    def __getattr__(self, attribute: str) -> Any:
        value = getattr(import_module(self._name), attribute)
        self.__dict__[attribute] = value  # later accesses do not come here
        return value


if not TYPE_CHECKING:
    np, torch = _LazyModule("numpy"), _LazyModule("torch")
