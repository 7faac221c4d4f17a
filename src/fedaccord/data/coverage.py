"""Which labels the sites and the server know, and which classes their annotations distinguish."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from fedaccord.data.sites import FederationData
from fedaccord.errors import listed
from fedaccord.labels.space import LabelSpace
from fedaccord.labels.views import View

NOTHING_TO_LEARN = "so no model can learn anything; are the other labels empty cells, or in another column?"
UNTAUGHT = "no other label teaches them, so the model cannot learn them"


def labels_of_server(data: FederationData) -> list[str]:
    """Return the classes that occur in the server's labelled samples."""
    if data.labelled is None:
        return []
    return [data.space.names[column] for column in data.labelled[1].unique().tolist()]


def lacking_at_server(data: FederationData) -> set[str]:
    """Return the classes that some site knows and the server has no labelled sample of."""
    unknown = labels_without_site(data.views, data.space)
    return set(data.space.names) - set(labels_of_server(data)) - set(unknown)


def server_lacks(data: FederationData, names: set[str], consequence: str = UNTAUGHT) -> list[str]:
    """Return a sentence about classes that the server has no sample of; nothing if there is none."""
    shown = listed([name for name in data.space if name in names])
    return [f"the server has no labelled sample of {shown}; {consequence}"] if names else []


def indistinguishable_classes(data: FederationData) -> list[list[str]]:
    """Return groups of classes that no site distinguishes: always under one coarse label or in one candidate set."""
    marks = zip(*(site.view.marks(site.train.target) for site in data.sites.values()), strict=True)
    same: dict[object, list[str]] = {}
    unknown = labels_without_site(data.views, data.space)
    for name, marks_of_class in zip(data.space, marks, strict=True):
        if name not in unknown:
            same.setdefault(marks_of_class, []).append(name)
    return [names for names in same.values() if len(names) > 1]


def distinguished(data: FederationData, coarse: bool = True) -> set[str]:
    """Return the classes that the sites' annotations distinguish from every other class.

    A class is distinguished by a coarse name of its own, or by the combination of its names at several sites.
    Without `coarse`, sites with coarse names are ignored.
    """
    sites = {name: site for name, site in data.sites.items() if coarse or not site.view.has_own_names}
    if not sites:
        return set()
    data = replace(data, sites=sites)
    unknown = labels_without_site(data.views, data.space)
    mixed = {name for group in indistinguishable_classes(data) for name in group}
    return set(data.space.names) - set(unknown) - mixed


def one_class_problem(data: FederationData) -> str | None:
    """Return why there is nothing to tell apart: one class in all, or one class in all training samples.

    A single tag is fine, because a tag is present or absent. Sites without samples here, such as those on other
    machines, are judged by the number of classes alone.
    """
    sites = [site for site in data.sites.values() if site.view.has_annotations and site.view.one_label]
    if not sites:
        return None
    if len(data.space) == 1:
        return f"every label is '{data.space.names[0]}', the only class, {NOTHING_TO_LEARN}"
    if data.labelled is not None or not all(site.train.target.numel() for site in sites):
        return None
    seen = torch.zeros(len(data.space), dtype=torch.bool)
    for site in sites:
        named = site.view.names_in(site.train.target).any(0)
        seen |= (site.view.matrix[named] > 0).any(0)
    if int(seen.sum()) != 1:
        return None
    only = data.space.names[int(seen.int().argmax())]
    return f"every label in the training samples is '{only}', {NOTHING_TO_LEARN}"


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
