"""What to know before fairness is measured: whether the group in question is large enough for a rate."""

from __future__ import annotations

import torch

from fedaccord.checks.findings import Finding, warning
from fedaccord.config import Experiment
from fedaccord.data.site_data import Samples
from fedaccord.data.sites import FederationData
from fedaccord.labels.views import Exact

SMALLEST_TEST_CELL = 20  # people; one of them is 5 points of a rate


def fairness_findings(experiment: Experiment, data: FederationData) -> list[Finding]:
    """Warn where too few test rows of all sites together are in the group, or in the group with the label."""
    asked = experiment.fairness
    if asked is None or asked.group not in data.groups or asked.label not in data.space.names:
        return []  # a wrong name is told as what a run would refuse
    group, label = data.groups.index(asked.group), data.space.names.index(asked.label)
    members = with_label = 0
    for site in data.sites.values():
        truth = site.test.target if isinstance(site.view, Exact) else site.test.truth
        known = _known_groups(site.test)
        if known is not None:
            members += int((known == group).sum())
            with_label += 0 if truth is None else int(((known == group) & (truth == label)).sum())
    counts = {f"'{asked.group}'": members, f"'{asked.group}' with the label '{asked.label}'": with_label}
    small = [f"{rows} of {who}" for who, rows in counts.items() if rows < SMALLEST_TEST_CELL]
    if not small:
        return []
    return [
        warning(
            f"the group in question is too small to measure: all test parts together have {' and '.join(small)}; of "
            f"fewer than {SMALLEST_TEST_CELL} people a rate moves by more than 5 points with each"
        )
    ]


def _known_groups(part: Samples) -> torch.Tensor | None:
    """Return each row's group where it is certain, else -1; None for a site without groups."""
    if part.group is None:
        return None
    if part.group_truth is not None:
        return part.group_truth
    return torch.where(part.group.sum(1) == 1, part.group.int().argmax(1), -1)
