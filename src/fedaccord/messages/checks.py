"""Checks on replies; no other module checks them."""

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
_LONGEST_NAME = 200  # characters in the name of a metric


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
        _address_problem(reply, run, round_)
        or _weight_problem(reply, most_samples)
        or _tensor_problem(reply.tensors, expected)
    )


def find_answer_problem(answer: Message, expected: Mapping[str, TensorSpec], run: str, round_: int) -> Problem | None:
    """Return the first problem of the answer to a follow-up task, or None."""
    for name, value in answer.numbers.items():
        if not is_finite(value):
            return Problem(name, f"the number is {value!r}")
    return _address_problem(answer, run, round_) or _tensor_problem(answer.tensors, expected)


def find_metrics_problem(reply: Message, run: str, round_: int) -> Problem | None:
    """Return the first problem of a site's metrics, or None.

    Values must be finite, confusion counts int64 (n, n), and a calibration curve float64 (bins, 5), at most 10 bins.
    """
    for name, value in reply.numbers.items():
        if not name.isprintable() or len(name) > _LONGEST_NAME:
            return Problem(name, "is not a valid metric name")
        if not is_finite(value):
            return Problem(name, f"the metric is {value!r}")
    counts = reply.tensors.get("confusion")
    if counts is not None and (counts.dim() != 2 or counts.shape[0] != counts.shape[1] or counts.dtype != torch.int64):
        return Problem("confusion", f"the counts are {counts.dtype} with shape {tuple(counts.shape)}")
    curve = reply.tensors.get("calibration")
    if curve is not None:
        is_curve = curve.dim() == 2 and curve.shape[0] <= 10 and curve.shape[1] == 5 and curve.dtype == torch.float64
        if not is_curve or not all_finite(curve):
            return Problem("calibration", f"the curve is {curve.dtype} with shape {tuple(curve.shape)}, or not finite")
    return _address_problem(reply, run, round_)


def _address_problem(reply: Message, run: str, round_: int) -> Problem | None:
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
