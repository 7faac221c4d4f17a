"""Checks on replies to `train` and to follow-up tasks; `figures.py` checks figures."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedaccord.messages.message import Message

MOST_SAMPLES = 10**9
NOT_FINITE = "it holds NaN or infinite values; lower the learning rate, or check the loss"
_LARGEST = 1e100  # absolute value of a number in a message, so that squares and sums stay finite


@dataclass(frozen=True)
class TensorSpec:
    """The required shape and dtype of a tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: Tensor) -> TensorSpec:
        """Return the spec of a tensor."""
        return cls(tuple(tensor.shape), tensor.dtype)


@dataclass(frozen=True)
class Problem:
    """Why a reply is rejected, and the name of the tensor or number at fault."""

    tensor: str
    reason: str


def find_problem(
    reply: Message, expected: Mapping[str, TensorSpec], run: str, round_: int, most_samples: int = MOST_SAMPLES
) -> Problem | None:
    """Return the first problem of a reply, or None; replies are never broadcast, cast or renamed to fit."""
    return (
        find_address_problem(reply, run, round_)
        or _weight_problem(reply, most_samples)
        or _tensor_problem(reply.tensors, expected)
    )


def find_answer_problem(answer: Message, expected: Mapping[str, TensorSpec], run: str, round_: int) -> Problem | None:
    """Return the first problem of the answer to a follow-up task, or None."""
    for name, value in answer.numbers.items():
        if not is_finite(value):
            return Problem(name, f"the number is {value!r}")
    return find_address_problem(answer, run, round_) or _tensor_problem(answer.tensors, expected)


def find_address_problem(reply: Message, run: str, round_: int) -> Problem | None:
    """Return a problem if a reply belongs to another run or round, or None."""
    if reply.words.get("run") != run:
        return Problem("run", f"belongs to run '{reply.words.get('run')}', not to '{run}'")
    if reply.numbers.get("round") != round_:
        return Problem("round", f"answers round {reply.numbers.get('round')}, not round {round_}")
    return None


def _weight_problem(reply: Message, most: int) -> Problem | None:
    samples = reply.numbers.get("samples")
    if samples is None:
        return Problem("samples", "the weight is missing")
    if not is_finite(samples):
        return Problem("samples", f"the weight is {samples!r}, not a finite number")
    if samples <= 0:
        return Problem("samples", f"the weight is {samples}, not above zero")
    if samples > most:
        return Problem("samples", f"the weight is {samples}, but the site joined with {most} samples")
    return None


def _tensor_problem(tensors: Mapping[str, Tensor], expected: Mapping[str, TensorSpec]) -> Problem | None:
    for name in expected:
        if name not in tensors:
            return Problem(name, "the tensor is missing")
    for name, tensor in tensors.items():
        spec = expected.get(name)
        if spec is None:
            return Problem(name, "the tensor was not asked for")
        if tuple(tensor.shape) != spec.shape:
            return Problem(name, f"the shape is {tuple(tensor.shape)}, not {spec.shape}")
        if tensor.dtype != spec.dtype:
            return Problem(name, f"the dtype is {tensor.dtype}, not {spec.dtype}")
        if not all_finite(tensor):
            return Problem(name, NOT_FINITE)
    return None


def all_finite(tensor: Tensor) -> bool:
    """Return whether a tensor has no NaN and no infinite value."""
    # A finite sum is a fast proof; a sum that overflows proves nothing.
    if not tensor.is_floating_point() or math.isfinite(float(tensor.sum())):
        return True
    return bool(torch.isfinite(tensor).all())


def is_finite(value: object) -> bool:
    """Return whether a value in a message is a finite number that can also be squared."""
    return not isinstance(value, bool) and isinstance(value, int | float) and -_LARGEST <= value <= _LARGEST
