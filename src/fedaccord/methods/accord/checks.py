"""Findings of `fedaccord check` about `accord`: what the experts of the sites cost."""

from __future__ import annotations

from fedaccord.data.sites import FederationData
from fedaccord.data.validation_rows import SHARE
from fedaccord.findings import Finding, note
from fedaccord.methods.accord.personal import CHEAP_SHARE, WAYS
from fedaccord.methods.accord.settings import AccordSettings


def check(settings: AccordSettings, data: FederationData) -> list[Finding]:
    """Return a note on the training steps and messages of the experts, beside those of the shared model."""
    if settings.personal == "off":
        return []
    if settings.personal == "cheap":
        more, messages = CHEAP_SHARE, "one message more for each site"
    else:
        more, messages = (1 - SHARE) * (1 + len(WAYS)), "twice the messages"
    times = f"{1 + more:.1f} times the training steps"
    return [note(f'personal = "{settings.personal}" takes about {times} of personal = "off", and {messages}')]
