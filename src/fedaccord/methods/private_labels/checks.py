"""What `fedaccord check` says about private label sets."""

from __future__ import annotations

from fedaccord.data.sites import FederationData
from fedaccord.findings import Finding, warning
from fedaccord.methods.private_labels.recipe import sites_knowing_all_labels
from fedaccord.methods.private_labels.settings import PrivateLabelsSettings


def check(settings: PrivateLabelsSettings, data: FederationData) -> list[Finding]:
    """Warn of sites from which no label is private, and of tuning without inputs."""
    found = []
    if settings.labels == "private":
        said = sites_knowing_all_labels({name: site.view.informs() for name, site in data.sites.items()})
        found += [] if said is None else [warning(said)]
    if settings.tuning != "none" and data.unlabelled is None:
        text = f'method.tuning = "{settings.tuning}" has no effect: the server has no inputs; give [server] unlabelled'
        found.append(warning(text))
    return found
