"""Checks of sites that join late or leave: labels without a site in some rounds, sites that never train."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fedaccord.errors import listed
from fedaccord.federation.membership import Membership, rounds_without_owner
from fedaccord.findings import Finding, warning
from fedaccord.runs.page import spans


def membership_findings(
    coverage: Mapping[str, Iterable[str]], memberships: Mapping[str, Membership], rounds: int
) -> list[Finding]:
    """Warn of rounds in which a label has no site, and of sites that join too late; `coverage` lists labels' sites."""
    alike: dict[str, list[str]] = {}
    for label, without in rounds_without_owner(coverage, memberships, rounds).items():
        alike.setdefault(spans(without), []).append(label)
    findings = [
        warning(f"no site that knows {listed(labels)} takes part in rounds {when}; nothing is learned about it then")
        for when, labels in alike.items()
    ]
    late = [site for site, membership in memberships.items() if membership.joins > rounds]
    return findings + [warning(f"the run ends after round {rounds}, before {listed(late)} would join")] * bool(late)
