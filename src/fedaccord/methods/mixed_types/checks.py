"""Findings of `fedaccord check` about a labelled server and coarsely labelled sites."""

from __future__ import annotations

import math

import torch

from fedaccord.data.coverage import distinguished, indistinguishable_classes, lacking_at_server, server_lacks
from fedaccord.data.sites import FederationData
from fedaccord.errors import listed
from fedaccord.findings import Finding, note, warning
from fedaccord.methods.mixed_types.settings import FedMTSettings, SemiFLSettings, SupercentreSettings

ESTIMATED = (
    "correspondences are estimated from its samples, so the model cannot learn them; if they are known, "
    'set method.correspondence = "known"'
)
ENOUGH_STEPS = 300  # of the server, at the full learning rate, before sites can be expected to reply
BY_SITES = "only the sites' labels teach them, and pseudo-labels work against it at first"


def check(settings: SupercentreSettings, data: FederationData) -> list[Finding]:
    """Return findings about missing classes and about augmentation."""
    return [*missing_classes(data, settings), *augmentation_findings(data, settings), *silence_findings(data, settings)]


def silence_findings(data: FederationData, settings: SupercentreSettings) -> list[Finding]:
    """Warn if the server may train too little for any pseudo-label to be confident: then no site ever replies."""
    if data.labelled is None or not isinstance(settings, SemiFLSettings):
        return []
    if isinstance(settings, FedMTSettings) and settings.project_on == "all":
        return []  # coarse labels are used without confident pseudo-labels
    samples = len(data.labelled[0])
    in_a_round = settings.server_epochs * math.ceil(samples / settings.server_batch)
    # A step at a smaller learning rate counts in part.
    rates = sum(settings.lr_at(round_) / settings.lr for round_ in range(1, settings.rounds + 1))
    if settings.warmup + in_a_round * rates >= ENOUGH_STEPS:
        return []
    few = f"the server takes {in_a_round} steps on its {samples} labelled samples in each of {settings.rounds} rounds"
    return [
        warning(
            f"{few}: its model may never give a sample of a site a probability above method.threshold = "
            f"{settings.threshold:g}, and without one no site replies; set method.warmup = {ENOUGH_STEPS}, or lower "
            "method.threshold"
        )
    ]


def missing_classes(data: FederationData, settings: SupercentreSettings) -> list[Finding]:
    """Return findings about classes without samples at the server: a warning if no site teaches them, else a note."""
    if data.labelled is None:
        return []
    lacking = lacking_at_server(data)
    by_sites, estimated = set[str](), set[str]()
    if isinstance(settings, FedMTSettings):  # other methods do not learn classes from the sites' labels
        by_sites = distinguished(data, coarse=settings.correspondence == "known") & lacking
        estimated = (distinguished(data) & lacking) - by_sites
    lost = lacking - by_sites - estimated
    warnings = [*server_lacks(data, estimated, ESTIMATED), *server_lacks(data, lost)]
    return [*map(warning, warnings), *map(note, server_lacks(data, by_sites, BY_SITES))]


def augmentation_findings(data: FederationData, settings: SupercentreSettings) -> list[Finding]:
    """Return warnings about strong augmentation that does not fit the inputs."""
    if settings.augment != "auto" or not _uses_strong(settings):
        return []
    inputs = [site.train.x for site in data.sites.values() if len(site.train)]
    if inputs and all(x.ndim == 2 for x in inputs) and all(map(_looks_hashed, inputs)):
        return [
            warning(
                "the inputs look like hashed texts (no value below zero, rows of norm one), and the noise that "
                'method.augment = "auto" adds to features hides them; set method.augment = "words"'
            )
        ]
    if any(x.ndim == 4 and float(x.abs().max()) > 1 for x in inputs):
        return [
            warning(
                "strong augmentation expects images in -1..1, and these have larger values; scale them, or set "
                'method.augment = "none"'
            )
        ]
    return []


def _uses_strong(settings: SupercentreSettings) -> bool:
    weight = getattr(settings, "lambda2", 1.0)  # SemiFL's pseudo-labels always count
    return settings.server_augment == "strong" or (isinstance(settings, SemiFLSettings) and weight > 0)


def _looks_hashed(x: torch.Tensor) -> bool:
    """Return whether the rows look like texts: norm one unless empty, no negative value, some with several words."""
    norm = x.norm(dim=1)
    unit = bool(((norm[norm > 0] - 1).abs() < 1e-3).all())
    return unit and bool((x >= 0).all()) and bool(((x > 0).sum(1) > 1).any())


def advice(data: FederationData) -> list[str]:
    """Return notes on whether FedMT applies, and on classes that only the server's samples separate."""
    coarse = [name for name, site in data.sites.items() if site.view.has_own_names]
    if data.labelled is None or not coarse:
        return []
    counts = torch.bincount(data.labelled[1], minlength=len(data.space))
    who = (
        f"the server has {int(counts.sum())} labelled samples and {len(coarse)} of {len(data.sites)} sites coarse names"
    )
    notes = [f"{who}: the methods fedmt and fedmt+ are made for this"]
    for names in indistinguishable_classes(data):
        numbers = {name: int(counts[data.space.column(name)]) for name in names}
        without = [name for name, number in numbers.items() if not number]
        has = f"none of {listed(without)}" if without else f"at least {min(numbers.values())} of each"
        notes.append(f"no coarse label separates {listed(names)}; only the server's samples tell them apart, {has}")
    return notes + _names_in_another_order(data, coarse)


def _names_in_another_order(data: FederationData, coarse: list[str]) -> list[str]:
    orders: dict[frozenset[str], dict[tuple[str, ...], str]] = {}
    for name in coarse:
        used = tuple(data.sites[name].view.answers)
        orders.setdefault(frozenset(used), {}).setdefault(used, name)
    return [
        f"sites {listed([*names.values()])} list the same coarse names in different orders, so they count as different "
        "names in estimates that sites make together; list them in one order"
        for names in orders.values()
        if len(names) > 1
    ]
