"""What `fedaccord check` says about a labelled server and coarsely labelled sites."""

from __future__ import annotations

import torch

from fedaccord.data.separation import distinguished, indistinguishable_classes, lacking_at_server, server_lacks
from fedaccord.data.sites import FederationData
from fedaccord.errors import listed
from fedaccord.findings import Finding, note, warning
from fedaccord.methods.mixed_types.settings import FedMTSettings, SemiFLSettings, SupercentreSettings

ESTIMATED = (
    "what coarse names stand for is estimated from its samples, so the model cannot learn them; if it is known, "
    'set method.correspondence = "known"'
)
UNTAUGHT = "nothing else tells the method what they are, so the model cannot learn them"
BY_SITES = "only the sites' labels teach them, and pseudo-labels work against it at first"


def check(settings: SupercentreSettings, data: FederationData) -> list[Finding]:
    """Return what to know before one of these methods trains."""
    return [*missing_classes(data, settings), *augmentation_findings(data, settings)]


def missing_classes(data: FederationData, settings: SupercentreSettings) -> list[Finding]:
    """Look at classes that the server has no sample of: warn if nothing else teaches them, note who does."""
    if data.labelled is None:
        return []
    lacking = lacking_at_server(data)
    by_sites, estimated = set[str](), set[str]()
    if isinstance(settings, FedMTSettings):  # in the others the sites' labels do not reach the federation's classes
        by_sites = distinguished(data, coarse=settings.correspondence == "known") & lacking
        estimated = (distinguished(data) & lacking) - by_sites
    lost = lacking - by_sites - estimated
    warnings = [*server_lacks(data, estimated, ESTIMATED), *server_lacks(data, lost, UNTAUGHT)]
    return [*map(warning, warnings), *map(note, server_lacks(data, by_sites, BY_SITES))]


def augmentation_findings(data: FederationData, settings: SupercentreSettings) -> list[Finding]:
    """Warn where samples would be changed strongly in a way that is not theirs."""
    if settings.augment != "auto" or not _changes_strongly(settings):
        return []
    inputs = [site.train.x for site in data.sites.values() if len(site.train)]
    if inputs and all(x.ndim == 2 for x in inputs) and all(map(_looks_hashed, inputs)):
        return [
            warning(
                "the inputs look like hashed texts (nothing below zero, every row of length one), and noise, which "
                'method.augment = "auto" adds to features, drowns them; set method.augment = "words"'
            )
        ]
    if any(x.ndim == 4 and float(x.abs().max()) > 1 for x in inputs):
        return [
            warning(
                "images are changed strongly within -1 and 1, and these go beyond; scale them, or set "
                'method.augment = "none"'
            )
        ]
    return []


def _changes_strongly(settings: SupercentreSettings) -> bool:
    weight = getattr(settings, "lambda2", 1.0)  # SemiFL's pseudo-labels always count
    return settings.server_augment == "strong" or (isinstance(settings, SemiFLSettings) and weight > 0)


def _looks_hashed(x: torch.Tensor) -> bool:
    """Say whether rows are texts, but for empty ones; a single word in each may as well be a column of categories."""
    length = x.norm(dim=1)
    unit = bool(((length[length > 0] - 1).abs() < 1e-3).all())
    return unit and bool((x >= 0).all()) and bool(((x > 0).sum(1) > 1).any())


def advice(data: FederationData) -> list[str]:
    """Say whether FedMT applies, and which classes only the server's samples separate."""
    coarse = [name for name, site in data.sites.items() if site.view.has_own_names]
    if data.labelled is None or not coarse:
        return []
    held = torch.bincount(data.labelled[1], minlength=len(data.space))
    who = f"the server has {int(held.sum())} labelled samples and {len(coarse)} of {len(data.sites)} sites coarse names"
    notes = [f"{who}: the methods fedmt and fedmt+ are made for this"]
    for names in indistinguishable_classes(data):
        numbers = {name: int(held[data.space.column(name)]) for name in names}
        without = [name for name, number in numbers.items() if not number]
        has = f"none of {listed(without)}" if without else f"at least {min(numbers.values())} of each"
        told = f"no coarse label separates {listed(names)}"
        notes.append(f"{told}; only the server's samples tell them apart, {has}")
    return notes + _names_in_another_order(data, coarse)


def _names_in_another_order(data: FederationData, coarse: list[str]) -> list[str]:
    orders: dict[frozenset[str], dict[tuple[str, ...], str]] = {}
    for name in coarse:
        used = tuple(data.sites[name].view.answers)
        orders.setdefault(frozenset(used), {}).setdefault(used, name)
    return [
        f"sites {listed([*first.values()])} list the same coarse names in different orders, so they count as different "
        "names where sites find out together what theirs stand for; list them in one order"
        for first in orders.values()
        if len(first) > 1
    ]
