"""Findings of `fedaccord check` about `accord`: what the experts of the sites cost."""

from __future__ import annotations

from fedaccord.data.sites import FederationData
from fedaccord.data.validation_rows import SHARE
from fedaccord.findings import Finding, note
from fedaccord.methods.accord.server import CHEAP_SHARE, WEIGHING_SHARE, ways_alone
from fedaccord.methods.accord.settings import AccordSettings


def check(settings: AccordSettings, data: FederationData) -> list[Finding]:
    """Return a note on the training steps and models sent for the experts, beside those of the shared model."""
    if settings.personal == "off":
        return []
    if settings.personal == "cheap":
        more, sent = CHEAP_SHARE, "no more"
    else:
        apart = WEIGHING_SHARE * (1.0 if settings.epochs is None else 1 - SHARE)  # fewer rows, shorter epochs
        more, sent = 1 + apart * (1 + len(ways_alone(settings))), f"{1 + WEIGHING_SHARE:.1f} times as many"
    cost = f'{1 + more:.1f} times the training steps of personal = "off", and {sent} models sent'
    return [note(f'personal = "{settings.personal}" takes about {cost}')]
