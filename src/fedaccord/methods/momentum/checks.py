"""What `fedaccord check` says about a server that trains on public samples."""

from __future__ import annotations

from fedaccord.data.separation import distinguished, lacking_at_server, server_lacks
from fedaccord.data.sites import FederationData
from fedaccord.findings import Finding, note, warning
from fedaccord.methods.momentum.settings import PfedmoSettings, PublicDataSettings

UNTAUGHT = "nothing else tells the method what they are, so the model cannot learn them"
PULLED = "only the sites' labels teach them, and the pull to the server's own model works against it"


def check(settings: PublicDataSettings, data: FederationData) -> list[Finding]:
    """Look at classes that the server has no public sample of."""
    if data.labelled is None:
        return []
    lacking = lacking_at_server(data)
    pulled = distinguished(data) & lacking if isinstance(settings, PfedmoSettings) else set[str]()
    warnings = server_lacks(data, lacking - pulled, UNTAUGHT)
    return [*map(warning, warnings), *map(note, server_lacks(data, pulled, PULLED))]
