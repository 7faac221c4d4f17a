"""The figures that sites may report, by name, and the range of each; importable without torch.

A view or an objective outside FedAccord names further figures in its attribute `figures`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

Range = Literal["share", "difference", "loss", "rows", "labels", "resamples"]
"""A share is in 0..1, a difference of shares in -1..1; losses are not negative; the others count something."""

_SHARES = (
    *("accuracy", "accuracy_classes", "in_set", "disambiguation", "hamming"),
    *("map", "o_map", "macro_f1", "cp", "cr", "cf1", "op", "or", "of1"),
)
_QUALITY = ("accuracy", "balanced_accuracy", "macro_f1", "auroc", "brier", "ece", "guess", "map", "in_set")
_CELLS = ("members", "others", "members_with_label", "others_with_label")

EVALUATED: dict[str, Range] = {
    **dict.fromkeys(_SHARES, "share"),
    **dict.fromkeys(("nll", "correlation_error", "matrix_error", "matrix_change"), "loss"),
    "tags_judged": "labels",
}
"""Figures of a reply to `evaluate`."""

EXAMINED: dict[str, Range] = {
    **dict.fromkeys(_QUALITY, "share"),
    "over_guess": "difference",
    "classes": "labels",
    "resamples": "resamples",
}
"""Figures of a reply to `examine`; those besides counts may have the ends of an interval."""


def fairness_ranges(groups: Iterable[str]) -> dict[str, Range]:
    """Return the figures of a site's treatment of groups; see `evaluation/groups.py`."""
    ranges: dict[str, Range] = {"true_groups": "share"}
    for ending in ("", "_candidate"):
        ranges |= {f"{name}{ending}": "difference" for name in ("eod", "spd")}
        ranges |= {f"{name}{ending}": "share" for name in ("accuracy_group", "accuracy_others")}
        ranges |= {f"{cell}{given}{ending}": "rows" for cell in _CELLS for given in ("", "_given")}
    for group in groups:
        ranges |= {f"accuracy.{group}": "share", f"rows.{group}": "rows"}
    return ranges
