"""Who belongs to a federation in which round: sites may join late and leave for good. Importable without torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Membership:
    """The rounds in which a site belongs to the federation."""

    joins: int = 1
    leaves: int | None = None  # the first round without it; None: it stays to the end

    def covers(self, round_: int) -> bool:
        """Say whether the site belongs to a round, counted from 1."""
        return self.joins <= round_ and (self.leaves is None or round_ < self.leaves)

    def in_words(self) -> str:
        """Return when the site is there, as in "takes part from round 10 to round 29"."""
        if self.leaves is None:
            return f"takes part from round {self.joins} on"
        return f"takes part from round {self.joins} to round {self.leaves - 1}"


ALWAYS = Membership()


def membership_notes(memberships: Mapping[str, Membership], rounds: int) -> list[str]:
    """Say of each site that joins late or leaves when it is there."""
    return [
        f"site '{site}' never takes part: it joins in round {membership.joins} of {rounds}"
        if membership.joins > rounds
        else f"site '{site}' {membership.in_words()}"
        for site, membership in memberships.items()
    ]


def rounds_without_owner(
    owners: Mapping[str, Iterable[str]], memberships: Mapping[str, Membership], rounds: int
) -> dict[str, list[int]]:
    """Return the rounds in which no site that knows a label is there, by label; labels that nobody knows are left out.

    `owners` names the sites that know each label.
    """
    found = {}
    for label, sites in owners.items():
        there = [memberships.get(site, ALWAYS) for site in sites]
        without = [r for r in range(1, rounds + 1) if there and not any(membership.covers(r) for membership in there)]
        if without:
            found[label] = without
    return found
