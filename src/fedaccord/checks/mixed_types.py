"""What a federation of a labelled server and coarsely labelled sites should know before it trains."""

from __future__ import annotations

import torch

from fedaccord.checks.findings import Finding, listed, warning
from fedaccord.data.sites import FederationData
from fedaccord.labels.coverage import labels_without_site
from fedaccord.labels.views import Candidates, Coarse, Exact, Tags
from fedaccord.methods.mixed_settings import SupercentreSettings
from fedaccord.methods.registry import METHODS


def held_by_server(data: FederationData) -> list[str]:
    """Return the classes of which the server has labelled samples."""
    if data.labelled is None:
        return []
    return [data.space.names[column] for column in data.labelled[1].unique().tolist()]


def same_to_all_sites(data: FederationData) -> list[list[str]]:
    """Return groups of classes that mean the same to every site: always under one coarse label or in one set."""
    marks: dict[str, list[tuple[object, ...]]] = {name: [] for name in data.space}
    for site in data.sites.values():
        view = site.view
        for column, name in enumerate(data.space):
            if isinstance(view, Coarse) and view.groups is not None:
                marks[name].append(tuple(view.matrix[:, column].tolist()))
            elif isinstance(view, Candidates):
                marks[name].append((site.train.target[:, column].numpy().tobytes(),))
            elif isinstance(view, Exact | Tags) and bool(view.informs()[column]):
                marks[name].append((name,))
            else:
                marks[name].append(())
    same: dict[object, list[str]] = {}
    unknown = labels_without_site({name: site.view for name, site in data.sites.items()}, data.space)
    for name, mark in marks.items():
        if name not in unknown:
            same.setdefault(tuple(mark), []).append(name)
    return [names for names in same.values() if len(names) > 1]


def unused_findings(data: FederationData, method: str, tuning: str = "none") -> list[Finding]:
    """Warn where the server holds labelled samples that the method does not look at, or lacks inputs it needs."""
    found = []
    if data.labelled is not None and not issubclass(METHODS[method].settings, SupercentreSettings):
        found.append(warning(f"the method '{method}' does not use the server's labelled samples"))
    if tuning != "none" and data.unlabelled is None:
        found.append(
            warning(f'method.tuning = "{tuning}" has no effect: the server has no inputs; give [server] unlabelled')
        )
    return found


def mixed_type_notes(data: FederationData) -> list[str]:
    """Say whether FedMT applies, and which classes only the server's samples separate."""
    coarse = [name for name, site in data.sites.items() if isinstance(site.view, Coarse)]
    if data.labelled is None or not coarse:
        return []
    held = torch.bincount(data.labelled[1], minlength=len(data.space))
    who = f"the server has {int(held.sum())} labelled samples and {len(coarse)} of {len(data.sites)} sites coarse names"
    notes = [f"{who}: the methods fedmt and fedmt+ are made for this"]
    missing = [name for name, number in zip(data.space, held.tolist(), strict=True) if not number]
    if missing:
        notes.append(f"the server has no labelled sample of {listed(missing)}; only pseudo-labels can teach them")
    for names in same_to_all_sites(data):
        fewest = min(int(held[data.space.column(name)]) for name in names)
        told = f"no coarse label separates {listed(names)}"
        notes.append(f"{told}; only the server's samples tell them apart, at least {fewest} of each")
    return notes
