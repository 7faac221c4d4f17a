"""Findings of `fedaccord check` about the server's public samples."""

from __future__ import annotations

from fedaccord.data.separation import distinguished, lacking_at_server, server_lacks
from fedaccord.data.sites import FederationData
from fedaccord.findings import Finding, note, warning
from fedaccord.methods.momentum.settings import PfedmoSettings, PublicDataSettings

UNTAUGHT = "no other data contain them, so the model cannot learn them"
PULLED = "only the sites' labels teach them, and the pull towards the server's model works against it"


def check(settings: PublicDataSettings, data: FederationData) -> list[Finding]:
    """Return findings about classes without public samples."""
    if data.labelled is None:
        return []
    lacking = lacking_at_server(data)
    pulled = distinguished(data) & lacking if isinstance(settings, PfedmoSettings) else set[str]()
    warnings = server_lacks(data, lacking - pulled, UNTAUGHT)
    return [*map(warning, warnings), *map(note, server_lacks(data, pulled, PULLED))]
