"""Checks for features that differ between sites: empty, read as words, constant, or on another scale."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedaccord.checks.scales import number_findings
from fedaccord.data.features import FeaturePlan
from fedaccord.data.sites import FederationData
from fedaccord.data.tables import read_numbers
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


def word_findings(plan: FeaturePlan, declared: Sequence[str]) -> list[Finding]:
    """Warn of columns that are read as words without being `declared` so, although most of their words are numbers."""
    findings = []
    for column in plan.columns:
        if column.kind == "category" and column.name not in declared:
            words = np.array(column.values, dtype=object)
            other = words[read_numbers(words, plan.missing)[1]].tolist()
            if 0 < len(other) < len(words) / 2:
                read = f"column '{column.name}' is read as words because of {listed(other)}"
                advice = "if it should contain numbers, add it to features.numbers to find the wrong cells"
                findings.append(warning(f"{read}; {advice}"))
    return findings
