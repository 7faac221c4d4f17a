"""Findings of `fedaccord check` about private label sets."""

from __future__ import annotations

from fedaccord.data.sites import FederationData
from fedaccord.findings import Finding, warning
from fedaccord.methods.private_labels.recipe import sites_knowing_all_labels
from fedaccord.methods.private_labels.settings import PrivateLabelsSettings


def check(settings: PrivateLabelsSettings, data: FederationData) -> list[Finding]:
    """Return warnings about sites that know every label, and about tuning without inputs."""
    findings = []
    if settings.labels == "private":
        text = sites_knowing_all_labels({name: site.view.informs() for name, site in data.sites.items()})
        findings += [] if text is None else [warning(text)]
    if settings.tuning != "none" and data.unlabelled is None:
        text = f'method.tuning = "{settings.tuning}" has no effect: the server has no inputs; give [server] unlabelled'
        findings.append(warning(text))
    return findings
