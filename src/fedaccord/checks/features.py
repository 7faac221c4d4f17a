"""Checks for features that differ between sites: empty, constant, or on another scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedaccord.data.features import FeaturePlan
from fedaccord.data.sites import FederationData
from fedaccord.data.tables import read_numbers
from fedaccord.errors import listed
from fedaccord.findings import Finding, warning

FARTHEST_MEANS = 10.0  # standard deviations within the sites
WIDEST_RATIO = 100.0  # of the sites' standard deviations
CONSTANT = 1e-6  # standard deviations below this are rounding errors
FEWEST = 10  # rows; fewer give no reliable deviation
Sample = NDArray[Any]


def feature_findings(data: FederationData) -> list[Finding]:
    """Return findings from a comparison of the sites' training rows, column by column."""
    if data.features is None:
        return _array_findings(data)
    findings = []
    for name, site in data.sites.items():
        missing, rows = data.missing_cells.get(name, {}), len(site.train) + len(site.test)
        empty = [column for column, number in missing.items() if number == rows]
        if empty:
            findings.append(warning(f"site '{name}' has no value at all in {listed(empty)}"))
    samples = {name: _numbers(data.features, site.train.x.numpy()) for name, site in data.sites.items()}
    for column in (c.name for c in data.features.columns if c.kind == "number"):
        values = {name: columns[column].astype(np.float64) for name, columns in samples.items()}
        at = {name: (len(x), float(x.mean()), float(x.std())) for name, x in values.items() if len(x) >= FEWEST}
        constant = [name for name, (_, _, spread) in at.items() if spread < CONSTANT]
        if constant and len(constant) < len(at):
            findings.append(warning(f"column '{column}' never varies at {_sites(constant)}, but does elsewhere"))
        findings += _scale_findings(f"column '{column}'", at)
    return findings


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


def _array_findings(data: FederationData) -> list[Finding]:
    """Return findings from a comparison of the sites' moments."""
    if len(data.moments) < 2 or len(data.input_shape) > 1:
        return []  # pixels have a fixed scale
    findings = []
    for feature in range(data.input_shape[0]):
        found = {name: (m.n[feature], m.mean[feature], m.variance[feature]) for name, m in data.moments.items()}
        at = {name: (int(n), float(mean), float(np.sqrt(v))) for name, (n, mean, v) in found.items() if n >= FEWEST}
        findings += _scale_findings(f"feature {feature}", at)
    return findings


def _scale_findings(what: str, at: Mapping[str, tuple[int, float, float]]) -> list[Finding]:
    """Compare the sites' rows, mean and standard deviation of one feature."""
    varied = {name: found for name, found in at.items() if found[2] >= CONSTANT}
    if len(varied) < 2:
        return []
    rows, means, spreads = ({name: found[place] for name, found in varied.items()} for place in range(3))
    low, high = min(means, key=means.__getitem__), max(means, key=means.__getitem__)
    apart = means[high] - means[low]
    inside = np.sqrt(sum(rows[name] * spread**2 for name, spread in spreads.items()) / sum(rows.values()))
    if apart > FARTHEST_MEANS * inside:
        far = f"{apart / inside:.0f} times the spread within the sites"
        return [warning(f"{what}: the means of {_sites([low, high])} are {far} apart; is it the same unit?")]
    narrow, wide = min(spreads, key=spreads.__getitem__), max(spreads, key=spreads.__getitem__)
    ratio = spreads[wide] / spreads[narrow]
    if ratio > WIDEST_RATIO:
        more = f"{ratio:.0f} times more at site '{wide}' than at site '{narrow}'"
        return [warning(f"{what} varies {more}; is it the same unit?")]
    return []


def _numbers(plan: FeaturePlan, x: Sample) -> dict[str, Sample]:
    """Return the encoded columns of numbers without missing values."""
    found, start = {}, 0
    for column in plan.columns:
        if column.kind == "number":
            values = x[:, start]
            found[column.name] = values[x[:, start + 1] == 0] if column.flag_missing else values
        start += len(column.features)
    return found


def _sites(names: list[str]) -> str:
    return f"site '{names[0]}'" if len(names) == 1 else "sites " + " and ".join(f"'{name}'" for name in names)
