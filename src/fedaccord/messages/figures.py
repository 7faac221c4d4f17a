"""Checks on the figures that sites report: expected names, ranges, and counts within the test rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedaccord.messages.checks import MOST_SAMPLES, Problem, all_finite, find_address_problem, is_finite
from fedaccord.messages.message import Message
from fedaccord.messages.names import CONFUSION, LARGEST_MATRIX

_LONGEST_NAME = 200  # characters in the name of a figure
_MOST_BINS = 10  # of a calibration curve
_MOST_RESAMPLES = 10_000
_HIGHEST_LOSS = 1e9  # above this a site diverged, and its loss would decide the mean over sites
_ROUNDING = 1e-3
_ENDS = (".low", ".high")


@dataclass(frozen=True)
class FigureSpec:
    """The figures that a site may report.

    `rows` names the number of test rows in the reply, which is at most `most_rows`; `ranges` are those of
    `evaluation/ranges.py`. `intervals` allows ends of intervals, and `alone/` and `gain/` before a name.
    """

    ranges: Mapping[str, str]
    answers: int  # of the site's own task
    labels: int
    rows: str = "samples"
    intervals: bool = False
    tensors: frozenset[str] = field(default=frozenset({CONFUSION}))
    most_rows: int = MOST_SAMPLES

    def limits(self, name: str, rows: float) -> tuple[float, float] | None:
        """Return the lowest and the highest value of a figure; None if it was not asked for."""
        if name == self.rows:
            return 0, self.most_rows
        plain = name.removesuffix(_ENDS[0]).removesuffix(_ENDS[1]) if self.intervals else name
        is_gain = self.intervals and plain.startswith("gain/")
        plain = plain.removeprefix("gain/").removeprefix("alone/") if self.intervals else plain
        if plain not in self.ranges:
            return None
        kinds: dict[str, tuple[float, float]] = {
            "share": (0, 1),
            "difference": (-1, 1),
            "loss": (0, _HIGHEST_LOSS),
            "rows": (0, rows),
            "labels": (0, max(self.answers, self.labels)),
            "resamples": (0, _MOST_RESAMPLES),
        }
        low, high = kinds[self.ranges[plain]]
        if is_gain:
            low, high = low - high, high - low
        if name.endswith(_ENDS) and self.intervals:  # an interval that is reflected at its figure reaches further
            low, high = 2 * low - high, 2 * high - low
        return low, high

    def is_count(self, name: str) -> bool:
        """Return whether a figure counts something, so that it is a whole number."""
        return name == self.rows or self.ranges.get(name) in ("rows", "labels", "resamples")


def find_metrics_problem(reply: Message, spec: FigureSpec, run: str, round_: int) -> Problem | None:
    """Return the first problem of a site's figures, or None."""
    rows = reply.numbers.get(spec.rows, 0)
    for name, value in reply.numbers.items():
        problem = None if name == "round" else _number_problem(name, value, spec, rows)
        if problem is not None:
            return problem
    for name, tensor in reply.tensors.items():
        if name not in spec.tensors:
            return Problem(name, "the tensor was not asked for")
        wrong = _confusion_problem(tensor, spec.answers, rows) if name == CONFUSION else _curve_problem(tensor)
        if wrong:
            return Problem(name, wrong)
    return find_address_problem(reply, run, round_)


def _number_problem(name: str, value: float, spec: FigureSpec, rows: float) -> Problem | None:
    if not name.isprintable() or len(name) > _LONGEST_NAME:
        return Problem(name, "is not a valid metric name")
    if not is_finite(value):
        return Problem(name, f"the metric is {value!r}")
    limits = spec.limits(name, rows)
    if limits is None:
        return Problem(name, "the metric was not asked for; a view lists its own metrics in `figures`")
    low, high = limits
    if not low - _ROUNDING <= value <= high + _ROUNDING:
        return Problem(name, f"the metric is {value:g}, not between {low:g} and {high:g}")
    if spec.is_count(name) and value != int(value):
        return Problem(name, f"the metric is {value:g}, not a whole number")
    return None


def _confusion_problem(sent: Tensor, answers: int, rows: float) -> str:
    """Return what is wrong with confusion counts of a site with `rows` test rows, or an empty string."""
    many = answers > LARGEST_MATRIX
    width = 3 if many else answers
    if sent.dtype != torch.int64 or sent.dim() != 2 or sent.shape[1] != width or not (many or len(sent) == answers):
        expected = "cells x 3" if many else f"{answers} x {answers}"
        return f"the counts are {sent.dtype} with shape {tuple(sent.shape)}, not torch.int64, {expected}"
    if not len(sent):
        return ""
    if many and len(sent) > rows:
        return f"there are {len(sent)} cells for {rows:g} test rows"
    places, counts = sent[:, :2], sent[:, 2] if many else sent
    if many and not 0 <= int(places.min()) <= int(places.max()) < answers:
        return f"a cell is outside the {answers} answers"
    if int(counts.min()) < 0:
        return "a count is below zero"
    # The largest count first, because a sum of huge ones would overflow.
    if int(counts.max()) > rows or int(counts.sum()) > rows:
        return f"the counts add up to more than the {rows:g} test rows"
    return ""


def _curve_problem(curve: Tensor) -> str:
    """Return what is wrong with a calibration curve, float64 (bins, 5): rows and four shares; or an empty string."""
    is_curve = curve.dim() == 2 and len(curve) <= _MOST_BINS and curve.shape[1] == 5 and curve.dtype == torch.float64
    if not is_curve or not all_finite(curve):
        return f"the curve is {curve.dtype} with shape {tuple(curve.shape)}, or not finite"
    rows, shares = curve[:, 0], curve[:, 1:]
    # A row of tags has a decision for each of them, so the rows of a bin are only bounded as such.
    inside = (rows >= 0) & (rows <= MOST_SAMPLES) & ((shares >= -_ROUNDING) & (shares <= 1 + _ROUNDING)).all(1)
    return "" if bool(inside.all()) else "a share of the curve is not between 0 and 1"
