"""What a federation of a labelled server and coarsely labelled sites should know before it trains."""

from __future__ import annotations

from dataclasses import replace

import torch

from fedaccord.checks.findings import Finding, warning
from fedaccord.data.sites import FederationData
from fedaccord.errors import listed
from fedaccord.labels.coverage import labels_without_site
from fedaccord.methods.mixed_types.settings import FedMTSettings, SemiFLSettings, SupercentreSettings
from fedaccord.methods.momentum.settings import PfedmoSettings, PublicDataSettings
from fedaccord.methods.registry import make_recipe
from fedaccord.training.settings import TrainingSettings


def held_by_server(data: FederationData) -> list[str]:
    """Return the classes of which the server has labelled samples."""
    if data.labelled is None:
        return []
    return [data.space.names[column] for column in data.labelled[1].unique().tolist()]


def same_to_all_sites(data: FederationData) -> list[list[str]]:
    """Return groups of classes that mean the same to every site: always under one coarse label or in one set."""
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


def told_apart(data: FederationData, coarse: bool = True) -> set[str]:
    """Return the classes that the sites' labels tell from every other; without `coarse`, those of coarse sites do not.

    A class may be told apart by one coarse name that stands for it alone, or by names of several sites together.
    """
    sites = {name: site for name, site in data.sites.items() if coarse or not site.view.has_own_names}
    if not sites:
        return set()
    unknown = labels_without_site({name: site.view for name, site in sites.items()}, data.space)
    mixed = {name for group in same_to_all_sites(replace(data, sites=sites)) for name in group}
    return set(data.space.names) - set(unknown) - mixed


def missing_classes(data: FederationData, settings: TrainingSettings) -> tuple[list[Finding], list[str]]:
    """Look at classes that the server has no sample of: warnings of those that nothing else teaches, notes of others.

    Classes that no site knows either are told of elsewhere.
    """
    if data.labelled is None or not isinstance(settings, SupercentreSettings | PublicDataSettings):
        return [], []
    known_nowhere = labels_without_site({name: site.view for name, site in data.sites.items()}, data.space)
    lacking = set(data.space.names) - set(held_by_server(data)) - set(known_nowhere)
    by_sites, found_out = set[str](), set[str]()
    if isinstance(settings, FedMTSettings):  # in the others the sites' labels do not reach the federation's classes
        by_sites = told_apart(data, coarse=settings.correspondence == "known") & lacking
        found_out = (told_apart(data) & lacking) - by_sites
    pulled = told_apart(data) & lacking if isinstance(settings, PfedmoSettings) else set[str]()
    lost = lacking - by_sites - found_out - pulled
    warnings = {
        "what coarse names stand for is found out from its samples, so the model cannot learn them; if it is known, "
        'set method.correspondence = "known"': found_out,
        "nothing else tells the method what they are, so the model cannot learn them": lost,
    }
    notes = {
        "only the sites' labels teach them, and pseudo-labels work against it at first": by_sites,
        "only the sites' labels teach them, and the pull to the server's own model works against it": pulled,
    }

    def told(texts: dict[str, set[str]]) -> list[str]:
        each = {why: listed([name for name in data.space if name in names]) for why, names in texts.items() if names}
        return [f"the server has no labelled sample of {names}; {why}" for why, names in each.items()]

    return [*map(warning, told(warnings))], told(notes)


def unused_findings(data: FederationData, method: str, tuning: str = "none") -> list[Finding]:
    """Warn where the server holds labelled samples that the method does not look at, or lacks inputs it needs."""
    found = []
    if data.labelled is not None and not make_recipe(method, {}).server_trains:
        found.append(warning(f"the method '{method}' does not use the server's labelled samples"))
    if tuning != "none" and data.unlabelled is None:
        found.append(
            warning(f'method.tuning = "{tuning}" has no effect: the server has no inputs; give [server] unlabelled')
        )
    return found


def augmentation_findings(data: FederationData, settings: TrainingSettings) -> list[Finding]:
    """Warn where samples would be changed strongly in a way that is not theirs."""
    if not isinstance(settings, SupercentreSettings) or settings.augment != "auto" or not _changes_strongly(settings):
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


def mixed_type_notes(data: FederationData) -> list[str]:
    """Say whether FedMT applies, and which classes only the server's samples separate."""
    coarse = [name for name, site in data.sites.items() if site.view.has_own_names]
    if data.labelled is None or not coarse:
        return []
    held = torch.bincount(data.labelled[1], minlength=len(data.space))
    who = f"the server has {int(held.sum())} labelled samples and {len(coarse)} of {len(data.sites)} sites coarse names"
    notes = [f"{who}: the methods fedmt and fedmt+ are made for this"]
    for names in same_to_all_sites(data):
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
