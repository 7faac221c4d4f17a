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
        at = {name: values[column] for name, values in samples.items() if len(values[column]) >= FEWEST}
        means = {name: float(x.mean(dtype=np.float64)) for name, x in at.items()}
        spreads = {name: float(x.std(dtype=np.float64)) for name, x in at.items()}
        rows_at = {name: len(x) for name, x in at.items()}
        constant = [name for name, spread in spreads.items() if spread < 1e-6]
        if constant and len(constant) < len(at):
            findings.append(warning(f"column '{column}' never varies at {_sites(constant)}, but does elsewhere"))
        findings += _scale_findings(f"column '{column}'", means, spreads, rows_at)
    return findings


def word_findings(plan: FeaturePlan, declared: Sequence[str]) -> list[Finding]:
    """Warn of columns that are read as words without being `declared` so, although most of their words are numbers."""
    findings = []
    for column in plan.columns:
        if column.kind == "category" and column.name not in declared:
            words = np.array(column.values, dtype=object)
            other = words[read_numbers(words, plan.missing)[1]].tolist()
            if 0 < len(other) < len(words) / 2:
                taken = f"column '{column.name}' is taken for words, because of {listed(other)}"
                findings.append(
                    warning(f"{taken}; if it is one of numbers, name it in features.numbers to find the wrong cells")
                )
    return findings


def _array_findings(data: FederationData) -> list[Finding]:
    """Return findings from a comparison of the sites' moments."""
    if len(data.moments) < 2 or len(data.input_shape) > 1:
        return []  # pixels have a fixed scale
    findings = []
    for feature in range(data.input_shape[0]):
        at = {name: m for name, m in data.moments.items() if m.n[feature] >= FEWEST}
        means = {name: float(m.mean[feature]) for name, m in at.items()}
        spreads = {name: float(np.sqrt(m.variance[feature])) for name, m in at.items()}
        rows = {name: int(m.n[feature]) for name, m in at.items()}
        findings += _scale_findings(f"feature {feature}", means, spreads, rows)
    return findings


def _scale_findings(
    what: str, means: Mapping[str, float], spreads: Mapping[str, float], rows: Mapping[str, int]
) -> list[Finding]:
    varied = {name: spread for name, spread in spreads.items() if spread >= 1e-6}
    if len(varied) < 2:
        return []
    low, high = min(varied, key=lambda n: means[n]), max(varied, key=lambda n: means[n])
    inside = np.sqrt(sum(rows[n] * spreads[n] ** 2 for n in varied) / sum(rows[n] for n in varied))
    narrow, wide = min(varied, key=lambda n: varied[n]), max(varied, key=lambda n: varied[n])
    if means[high] - means[low] > FARTHEST_MEANS * inside:
        apart = f"{(means[high] - means[low]) / inside:.0f} times the spread within the sites"
        return [warning(f"{what}: the means of {_sites([low, high])} are {apart} apart; is it the same unit?")]
    if varied[wide] > WIDEST_RATIO * varied[narrow]:
        ratio = f"{varied[wide] / varied[narrow]:.0f} times"
        return [warning(f"{what} varies {ratio} more at site '{wide}' than at site '{narrow}'; is it the same unit?")]
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
