"""The layout of a model as one flat vector: offsets of its tensors and the parts they belong to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from fedaccord.errors import ConfigError, MessageError

Part = Literal["encoder", "personal", "head"]
PARTS: tuple[Part, ...] = get_args(Part)


@dataclass(frozen=True)
class Slot:
    """The position of one tensor in the vector: values `start` to `stop`, in row-major order."""

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int
    part: Part
    trainable: bool


@dataclass(frozen=True)
class Layout:
    """The order of a model's floating-point parameters and buffers in one flat float32 vector.

    `counters` names the integer buffers (`num_batches_tracked`), which cannot be averaged and are not in the vector.
    """

    slots: tuple[Slot, ...]
    counters: tuple[str, ...] = ()

    @classmethod
    def of(cls, module: nn.Module) -> Layout:
        """Return the layout of a module; raise ConfigError for tensors outside `encoder`, `personal` and `head`.

        A slot is trainable if it is a parameter that requires gradients now; freezing it later does not change this.
        """
        slots: list[Slot] = []
        counters: list[str] = []
        for name, tensor in named_tensors(module).items():
            if not tensor.is_floating_point():
                if isinstance(tensor, nn.Parameter):
                    raise ConfigError(f"the parameter '{name}' has dtype {tensor.dtype}, but must be floating-point")
                counters.append(name)
                continue
            start = slots[-1].stop if slots else 0
            # A buffer may require gradients by accident, but no optimiser steps it.
            trainable = isinstance(tensor, nn.Parameter) and tensor.requires_grad
            slots.append(Slot(name, tuple(tensor.shape), start, start + tensor.numel(), _part(name), trainable))
        return cls(tuple(slots), tuple(counters))

    @cached_property
    def size(self) -> int:
        """The length of the vector."""
        return self.slots[-1].stop if self.slots else 0

    def vector(self, named: Mapping[str, Tensor]) -> Tensor:
        """Copy named tensors into a new flat vector; raise MessageError for a missing tensor or a wrong shape."""
        for slot in self.slots:
            if slot.name not in named:
                raise MessageError(f"the tensor '{slot.name}' is missing")
            shape = tuple(named[slot.name].shape)
            if shape != slot.shape:
                raise MessageError(f"the tensor '{slot.name}' has shape {shape}, but the model's is {slot.shape}")
        # reshape uses the logical order, so the memory format of a tensor does not matter.
        pieces = [named[slot.name].detach().to(torch.float32).reshape(-1) for slot in self.slots]
        return torch.cat(pieces) if pieces else torch.zeros(0)

    def named(self, vector: Tensor) -> dict[str, Tensor]:
        """Return the vector's tensors by name, as views."""
        if tuple(vector.shape) != (self.size,):
            raise MessageError(f"the vector has shape {tuple(vector.shape)}, but the model's has ({self.size},)")
        return {slot.name: vector[slot.start : slot.stop].view(slot.shape) for slot in self.slots}

    def read(self, module: nn.Module) -> Tensor:
        """Copy a module's current values into a new flat vector on the CPU."""
        return self.vector(named_tensors(module)).cpu()

    @torch.no_grad()
    def load(self, module: nn.Module, vector: Tensor) -> None:
        """Copy a vector's values into a module in place; device, memory format and dtype do not change."""
        targets = named_tensors(module)
        for name, values in self.named(vector).items():
            if name not in targets or targets[name].shape != values.shape:
                raise MessageError(f"the module has no tensor '{name}' of shape {tuple(values.shape)}")
            targets[name].copy_(values)

    def slots_of(self, part: Part) -> tuple[Slot, ...]:
        """Return the slots of one part, in order; empty if the model has no personal layer."""
        if part not in PARTS:
            raise ValueError(f"unknown part '{part}': known: {', '.join(PARTS)}")
        return tuple(slot for slot in self.slots if slot.part == part)

    def mask(self, part: Part) -> Tensor:
        """Return a mask of the values of one part: bool, (size,)."""
        return self._mask(self.slots_of(part))

    def trainable_mask(self) -> Tensor:
        """Return a mask of the values that gradient steps update, without buffers: bool, (size,)."""
        return self._mask(slot for slot in self.slots if slot.trainable)

    def head_rows(self) -> Tensor:
        """Return the indices of each class's head row in the vector, weights then bias: int64, (classes, features + 1).

        A head without bias has no last column.
        """
        indices = torch.arange(self.size)
        head = {slot.name: indices[slot.start : slot.stop].view(slot.shape) for slot in self.slots_of("head")}
        if "head.weight" not in head:
            raise ConfigError("the head has no weight tensor 'head.weight', so its rows cannot be separated")
        weight = head["head.weight"]
        return torch.cat([weight, head["head.bias"].unsqueeze(1)], dim=1) if "head.bias" in head else weight.clone()

    def describe(self) -> list[dict[str, Any]]:
        """Return the slots as lists and numbers, for a JSON file."""
        return [asdict(slot) | {"shape": list(slot.shape)} for slot in self.slots]

    def _mask(self, slots: Iterable[Slot]) -> Tensor:
        mask = torch.zeros(self.size, dtype=torch.bool)
        for slot in slots:
            mask[slot.start : slot.stop] = True
        return mask


def named_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and buffers of a module by name."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


@torch.no_grad()
def load_tensors(network: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Set every tensor of a network to the value of its name."""
    for name, tensor in named_tensors(network).items():
        tensor.copy_(values[name].reshape(tensor.shape))  # without reshape, a single value would fill the tensor


def _part(name: str) -> Part:
    for part in PARTS:
        if name.startswith(part + "."):
            return part
    raise ConfigError(f"the tensor '{name}' is in none of the model's parts: {', '.join(PARTS)}")
