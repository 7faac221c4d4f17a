"""How a model treats a group: rates of a label by group, with the counts behind them (methods.md 6.5).

`member` says who belongs to the group in question, by the true attribute or by the candidates. Of an empty cell no rate
is known: it is NaN, and so is every figure made of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

Figures = dict[str, float]


def equal_opportunity_difference(predicted: Tensor, actual: Tensor, member: Tensor) -> float:
    """Return EOD, `P(predicted | actual, others) - P(predicted | actual, group)`, of bool vectors."""
    return _rate(predicted[actual & ~member]) - _rate(predicted[actual & member])


def statistical_parity_difference(predicted: Tensor, member: Tensor) -> float:
    """Return SPD, `P(predicted | others) - P(predicted | group)`, of bool vectors."""
    return _rate(predicted[~member]) - _rate(predicted[member])


def group_figures(predicted: Tensor, truth: Tensor, member: Tensor, label: int) -> Figures:
    """Return EOD, SPD, both parts' accuracy and the counts of the cells, from columns of labels; -1 is left out.

    `members` and `others` are rows of each part, `members_with_label` and `others_with_label` those of EOD's cells.
    """
    seen = truth >= 0
    predicted, truth, member = predicted[seen], truth[seen], member[seen]
    given, actual, right = predicted == label, truth == label, predicted == truth
    return {
        "eod": equal_opportunity_difference(given, actual, member),
        "spd": statistical_parity_difference(given, member),
        "accuracy_group": _rate(right[member]),
        "accuracy_others": _rate(right[~member]),
        "members": float(member.sum()),
        "others": float((~member).sum()),
        "members_with_label": float((actual & member).sum()),
        "others_with_label": float((actual & ~member).sum()),
    }


def fairness_figures(
    predicted: Tensor, truth: Tensor, sets: Tensor, true: Tensor | None, group: int, label: int,
    names: Sequence[str] = (),
) -> Figures:  # fmt: skip
    """Return `group_figures` by true groups and, as `..._candidate`, by candidate bits; and each group's accuracy.

    Without true groups, those of certain candidates (sets of one) stand in for them.
    """
    certain = torch.where(sets.sum(1) == 1, sets.int().argmax(1), -1)
    known = certain if true is None else true
    seen = known >= 0
    figures = group_figures(predicted[seen], truth[seen], (known == group)[seen], label)
    listed = group_figures(predicted, truth, sets[:, group], label)
    figures |= {f"{name}_candidate": value for name, value in listed.items()}
    for column, name in enumerate(names):
        rows = (known == column) & (truth >= 0)
        figures[f"accuracy.{name}"] = _rate((predicted == truth)[rows])
    return figures


def _rate(values: Tensor) -> float:
    return float(values.double().mean()) if len(values) else math.nan
