"""Fairness metrics of a group: rates of a label by group, with their counts (docs/methods.md 10.1).

`member` marks the members of the group, by the true attribute or by the candidates. The rate of an empty cell is NaN,
and so is every metric that uses it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

Figures = dict[str, float]
CELLS = ("members", "others", "members_with_label", "others_with_label")
CANDIDATE = "_candidate"  # suffix of metrics by candidate groups
TRUE_GROUPS = "true_groups"  # 1 if true groups are known, 0 if certain candidates replace them


def equal_opportunity_difference(predicted: Tensor, actual: Tensor, member: Tensor) -> float:
    """Return EOD, `P(predicted | actual, others) - P(predicted | actual, group)`, of bool vectors."""
    return _rate(predicted[actual & ~member]) - _rate(predicted[actual & member])


def statistical_parity_difference(predicted: Tensor, member: Tensor) -> float:
    """Return SPD, `P(predicted | others) - P(predicted | group)`, of bool vectors."""
    return _rate(predicted[~member]) - _rate(predicted[member])


def group_figures(predicted: Tensor, truth: Tensor, member: Tensor, label: int) -> Figures:
    """Return EOD, SPD, the accuracy of members and of others, and counts, from columns of labels; -1 is left out.

    `members` and `others` count rows, `members_with_label` and `others_with_label` the rows with the label. With the
    suffix `_given` they count those that were predicted to have the label.
    """
    seen = truth >= 0
    predicted, truth, member = predicted[seen], truth[seen], member[seen]
    given, actual, right = predicted == label, truth == label, predicted == truth
    cells = dict(zip(CELLS, (member, ~member, actual & member, actual & ~member), strict=True))
    return {
        "eod": equal_opportunity_difference(given, actual, member),
        "spd": statistical_parity_difference(given, member),
        "accuracy_group": _rate(right[member]),
        "accuracy_others": _rate(right[~member]),
        **{name: float(rows.sum()) for name, rows in cells.items()},
        **{f"{name}_given": float((rows & given).sum()) for name, rows in cells.items()},
    }


def fairness_figures(
    predicted: Tensor,
    truth: Tensor,
    sets: Tensor,
    true: Tensor | None,
    group: int,
    label: int,
    names: Sequence[str] = (),
) -> Figures:
    """Return `group_figures` by true groups and, as `..._candidate`, by candidate groups; and each group's accuracy.

    If true groups are unknown, rows with a single candidate are used. `rows.NAME` is the number of rows of a group.
    """
    known = known_groups(sets, true)
    seen = known >= 0
    figures = group_figures(predicted[seen], truth[seen], (known == group)[seen], label)
    listed = group_figures(predicted, truth, sets[:, group], label)
    figures |= {f"{name}{CANDIDATE}": value for name, value in listed.items()} | {TRUE_GROUPS: float(true is not None)}
    for column, name in enumerate(names):
        rows = (known == column) & (truth >= 0)
        figures |= {f"accuracy.{name}": _rate((predicted == truth)[rows]), f"rows.{name}": float(rows.sum())}
    return figures


def known_groups(sets: Tensor, true: Tensor | None) -> Tensor:
    """Return the true group of each row, or if these are unknown its only candidate; -1 if it has several."""
    return torch.where(sets.sum(1) == 1, sets.int().argmax(1), -1) if true is None else true


def pooled_figures(each: Iterable[Mapping[str, float]]) -> Figures:
    """Return the metrics of all sites' rows from each site's metrics; `true_groups` is the share of sites with them.

    Return an empty table if no site has any. A mean over sites would weight a site of three people like one of 300.
    """
    sites = [figures for figures in each if CELLS[0] in figures]
    if not sites:
        return {}
    pooled = {TRUE_GROUPS: _total(sites, TRUE_GROUPS) / len(sites)}
    for name in dict.fromkeys(name for figures in sites for name in figures if name.startswith("rows.")):
        rate = f"accuracy.{name.removeprefix('rows.')}"
        pooled |= {rate: _weighed(sites, rate, name), name: _total(sites, name)}
    for ending in ("", CANDIDATE):
        sums = {name: _total(sites, f"{name}{ending}") for cell in CELLS for name in (cell, f"{cell}_given")}
        rates = {cell: _ratio(sums[f"{cell}_given"], sums[cell]) for cell in CELLS}
        found = {
            "eod": rates["others_with_label"] - rates["members_with_label"],
            "spd": rates["others"] - rates["members"],
            "accuracy_group": _weighed(sites, f"accuracy_group{ending}", f"members{ending}"),
            "accuracy_others": _weighed(sites, f"accuracy_others{ending}", f"others{ending}"),
            **sums,
        }
        pooled |= {f"{name}{ending}": value for name, value in found.items()}
    return pooled


def _total(sites: Sequence[Mapping[str, float]], name: str) -> float:
    return sum(figures.get(name, 0.0) for figures in sites)


def _weighed(sites: Sequence[Mapping[str, float]], rate: str, rows: str) -> float:
    """Return a rate over all sites' rows; sites without rows are left out."""
    return _ratio(sum(figures.get(rate, 0.0) * figures.get(rows, 0.0) for figures in sites), _total(sites, rows))


def _ratio(hits: float, rows: float) -> float:
    return hits / rows if rows else math.nan


def _rate(values: Tensor) -> float:
    return float(values.double().mean()) if len(values) else math.nan
