"""Which site knows which label, and which labels are connected through a site."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedaccord.labels.space import LabelSpace
from fedaccord.labels.views import View


def coverage_matrix(views: Mapping[str, View]) -> Tensor:
    """Return for each site and label whether the site's view informs it: bool (sites, labels)."""
    return torch.stack([view.informs() for view in views.values()])


def labels_without_site(views: Mapping[str, View], space: LabelSpace) -> list[str]:
    """Return the labels that no site informs."""
    covered = coverage_matrix(views).any(0)
    return [name for name, seen in zip(space, covered.tolist(), strict=True) if not seen]


def connected_groups(views: Mapping[str, View], space: LabelSpace) -> list[tuple[str, ...]]:
    """Return the groups of labels that sites compare with each other, directly or through other labels.

    Softmax scores are only identified within such a group: no method can compare labels of two groups. A view of tags
    decides each tag by itself, so it connects nothing and needs no connection.
    """
    groups = [{column} for column in range(len(space))]
    for view in views.values():
        if view.one_label:
            known = set(view.informs().nonzero().flatten().tolist())
            apart = [group for group in groups if not group & known]
            groups = [*apart, set().union(*(group for group in groups if group & known))] if known else apart
    return [tuple(space.names[column] for column in sorted(group)) for group in sorted(groups, key=min)]
