"""What follows from sites that join late or leave: labels that nobody knows for a while, sites that never take part."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fedaccord.errors import listed
from fedaccord.federation.membership import Membership, rounds_without_owner
from fedaccord.findings import Finding, warning
from fedaccord.runs.page import spans


def membership_findings(
    coverage: Mapping[str, Iterable[str]], memberships: Mapping[str, Membership], rounds: int
) -> list[Finding]:
    """Look for rounds in which a label has no site, and for sites that join too late; `coverage` names its sites."""
    alike: dict[str, list[str]] = {}
    for label, without in rounds_without_owner(coverage, memberships, rounds).items():
        alike.setdefault(spans(without), []).append(label)
    findings = [
        warning(f"no site that knows {listed(labels)} is there in rounds {when}; nothing is learnt of it then")
        for when, labels in alike.items()
    ]
    late = [site for site, membership in memberships.items() if membership.joins > rounds]
    return findings + [warning(f"the run ends after round {rounds}, before {listed(late)} would join")] * bool(late)
