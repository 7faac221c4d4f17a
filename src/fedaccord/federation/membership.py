"""The rounds in which each site is a member: sites may join late and leave. Importable without torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Membership:
    """The rounds in which a site is a member of the federation."""

    joins: int = 1
    leaves: int | None = None  # the first round without the site; None: it never leaves

    def covers(self, round_: int) -> bool:
        """Return whether the site is a member in a round, counted from 1."""
        return self.joins <= round_ and (self.leaves is None or round_ < self.leaves)

    def in_words(self) -> str:
        """Return the rounds in words, e.g. "takes part from round 10 to round 29"."""
        if self.leaves is None:
            return f"takes part from round {self.joins} on"
        return f"takes part from round {self.joins} to round {self.leaves - 1}"


ALWAYS = Membership()


def membership_notes(memberships: Mapping[str, Membership], rounds: int) -> list[str]:
    """Return a sentence for each site with a membership."""
    return [
        f"site '{site}' never takes part: it joins in round {membership.joins} of {rounds}"
        if membership.joins > rounds
        else f"site '{site}' {membership.in_words()}"
        for site, membership in memberships.items()
    ]


def rounds_without_owner(
    owners: Mapping[str, Iterable[str]], memberships: Mapping[str, Membership], rounds: int
) -> dict[str, list[int]]:
    """Return, by label, the rounds in which none of its owners is a member; labels without owners are omitted.

    `owners` maps each label to the sites that know it.
    """
    missing = {}
    for label, sites in owners.items():
        known = [memberships.get(site, ALWAYS) for site in sites]
        without = [r for r in range(1, rounds + 1) if known and not any(owner.covers(r) for owner in known)]
        if without:
            missing[label] = without
    return missing
