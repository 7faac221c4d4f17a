"""Checks for features that differ between sites: empty, constant, or on another scale."""

from __future__ import annotations

from fedaccord.checks.scales import number_findings
from fedaccord.data.sites import FederationData
from fedaccord.errors import listed
from fedaccord.findings import Finding, warning


def feature_findings(data: FederationData) -> list[Finding]:
    """Return findings from a comparison of the sites' training rows, feature by feature."""
    findings = []
    for name, site in data.sites.items():
        missing, rows = data.missing_cells.get(name, {}), len(site.train) + len(site.test)
        empty = [column for column, number in missing.items() if number == rows]
        if empty:
            findings.append(warning(f"site '{name}' has no value at all in {listed(empty)}"))
    return [*findings, *number_findings(data)]
