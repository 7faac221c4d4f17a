"""Which classes the annotations of a federation distinguish, and which only the server's own samples do."""

from __future__ import annotations

from dataclasses import replace

from fedaccord.data.sites import FederationData
from fedaccord.errors import listed
from fedaccord.labels.coverage import labels_without_site


def labels_of_server(data: FederationData) -> list[str]:
    """Return the classes that occur in the server's labelled samples."""
    if data.labelled is None:
        return []
    return [data.space.names[column] for column in data.labelled[1].unique().tolist()]


def lacking_at_server(data: FederationData) -> set[str]:
    """Return the classes that some site knows and the server has no labelled sample of."""
    unknown = labels_without_site({name: site.view for name, site in data.sites.items()}, data.space)
    return set(data.space.names) - set(labels_of_server(data)) - set(unknown)


def server_lacks(
    data: FederationData,
    names: set[str],
    consequence: str = "no other label teaches them, so the model cannot learn them",
) -> list[str]:
    """Return a sentence about classes that the server has no sample of; nothing if there is none."""
    shown = listed([name for name in data.space if name in names])
    return [f"the server has no labelled sample of {shown}; {consequence}"] if names else []


def indistinguishable_classes(data: FederationData) -> list[list[str]]:
    """Return groups of classes that no site distinguishes: always under one coarse label or in one candidate set."""
    marks: dict[str, list[object]] = {name: [] for name in data.space}
    for site in data.sites.values():
        for name, mark in zip(data.space, site.view.marks(site.train.target), strict=True):
            marks[name].append(mark)
    same: dict[object, list[str]] = {}
    unknown = labels_without_site({name: site.view for name, site in data.sites.items()}, data.space)
    for name, mark in marks.items():
        if name not in unknown:
            same.setdefault(tuple(mark), []).append(name)
    return [names for names in same.values() if len(names) > 1]


def distinguished(data: FederationData, coarse: bool = True) -> set[str]:
    """Return the classes that the sites' annotations distinguish from every other class.

    One coarse name may stand for a class alone, or the names of several sites may single it out together. Without
    `coarse`, sites with coarse names are ignored.
    """
    sites = {name: site for name, site in data.sites.items() if coarse or not site.view.has_own_names}
    if not sites:
        return set()
    unknown = labels_without_site({name: site.view for name, site in sites.items()}, data.space)
    mixed = {name for group in indistinguishable_classes(replace(data, sites=sites)) for name in group}
    return set(data.space.names) - set(unknown) - mixed
