"""What a method says about a federation before training, and which methods would help it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from fedaccord.data.sites import FederationData
from fedaccord.findings import Finding, warning
from fedaccord.methods.registry import METHODS, make_recipe, method_entry
from fedaccord.training.settings import TrainingSettings


def method_findings(name: str, settings: TrainingSettings, data: FederationData) -> tuple[list[Finding], list[str]]:
    """Return a method's findings, and the notes of all methods that have advice for these data."""
    said, entry = settings.lr_warning(name), method_entry(name)
    found = [*([warning(said)] if said else []), *unused_labelled(name, settings, data)]
    if entry.check:
        found += _function(entry.check)(settings, data)
    advice = [text for other in METHODS.values() if other.advice for text in _function(other.advice)(data)]
    notes = [finding.text for finding in found if finding.level == "note"]
    return [finding for finding in found if finding.level != "note"], [*advice, *notes]


def unused_labelled(name: str, settings: TrainingSettings, data: FederationData) -> list[Finding]:
    """Warn if the server holds labelled samples that the method does not train on."""
    if data.labelled is None or make_recipe(name, settings).server_trains:
        return []
    return [warning(f"the method '{name}' does not use the server's labelled samples")]


def _function(reference: str) -> Any:
    module, _, name = reference.partition(":")
    return getattr(import_module(module), name)
