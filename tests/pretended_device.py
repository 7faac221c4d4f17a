"""A device for tests where there is no GPU: it computes on the CPU, and refuses what a GPU refuses.

It goes by the name of the meta device. Its tensors hold values, so that a whole round can be played there; mixing them
with those of the CPU is an error, but for what torch lets a GPU do: copies, indices and single numbers of the CPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

THERE = torch.device("meta")
MAY_CROSS = {torch.ops.aten.copy_, torch.ops.aten._to_copy}
TAKES_INDICES = {torch.ops.aten.index, torch.ops.aten.index_put, torch.ops.aten.index_put_}


class _There(torch.Tensor):
    """A tensor of the device, around its values."""

    values: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, values):
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            values.shape,
            strides=values.stride(),
            storage_offset=values.storage_offset(),
            dtype=values.dtype,
            device=THERE,
            requires_grad=False,
        )
        made.values = values
        return made

    def tolist(self):
        return self.values.tolist()  # as a GPU's tensor does, and a wrapper by itself does not

    @classmethod
    def __torch_dispatch__(cls, operation, types, args=(), kwargs=None):
        return _compute(operation, args, kwargs or {})


class _Device(TorchDispatchMode):
    """Sees also what is made out of nothing."""

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        return _compute(operation, args, kwargs or {})


class _Generator(torch.Generator):
    """A stream of random numbers on any device; that of the CPU, so that the same numbers come."""

    def __new__(cls, device="cpu"):
        made = super().__new__(cls)
        made.place = torch.device(device)
        return made

    device = property(lambda self: self.place)


@contextmanager
def pretended_device() -> Iterator[torch.device]:
    """Have the device while the block lasts."""
    with pytest.MonkeyPatch.context() as patch, _Device():
        patch.setattr(torch, "Generator", _Generator)
        yield THERE


def _compute(operation, args, kwargs):
    leaves = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, torch.Tensor)]
    there = any(isinstance(leaf, _There) for leaf in leaves)
    if there and operation.overloadpacket not in MAY_CROSS:
        _refuse_mixing(operation, args, leaves)
    asked = kwargs.get("device")
    if asked is not None:
        kwargs = kwargs | {"device": torch.device("cpu")}
        there = torch.device(asked) == THERE
    found = operation(*tree_map(_values, args), **tree_map(_values, kwargs))
    if operation._schema.is_mutable:
        return kwargs.get("out", args[0]) if operation._schema.returns else None
    return tree_map(lambda part: _There(part) if isinstance(part, torch.Tensor) else part, found) if there else found


def _refuse_mixing(operation, args, leaves):
    if operation.overloadpacket in TAKES_INDICES and isinstance(args[0], _There):
        leaves = [args[0], *args[2:3]]
    strangers = [leaf for leaf in leaves if not isinstance(leaf, _There) and leaf.dim()]
    if strangers:
        raise RuntimeError(f"{operation}: tensors of two devices")


def _values(part):
    return part.values if isinstance(part, _There) else part
