"""Checks and warnings of a server that aggregates by a robust rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from fedaccord.aggregation.robust import RobustAggregation
from fedaccord.errors import ConfigError
from fedaccord.federation.membership import ALWAYS
from fedaccord.messages.names import POOL

if TYPE_CHECKING:
    from fedaccord.federation.server import Server

WARNED = "rows not robust"  # in the method's state: labels with a warning, bool (labels,)


def largest_round(server: Server) -> int | None:
    """Return the largest number of sites in any round; None for a resumed run, where sites may have left."""
    if server.state.round:
        return None
    trainers = set(server.trainers())
    # Sites that join later have not sent a card yet; all of them are assumed to train.
    trainers |= {site for site in server.engine.sites() if site not in server.cards and site != POOL}
    memberships = [server.memberships.get(site, ALWAYS) for site in trainers]
    rounds = range(1, server.recipe.settings.rounds + 1)
    return max(server.sample_size(sum(membership.covers(r) for membership in memberships)) for r in rounds)


@dataclass(frozen=True)
class RobustnessWatch:
    """Server steps for a robust rule."""

    aggregation: RobustAggregation

    def validate(self, server: Server) -> None:
        """Raise ConfigError if even the largest round has too few sites for the rule."""
        number = largest_round(server)
        if number is not None and not self.aggregation.rule.fits(number):
            raise ConfigError(f"method.aggregation: {self.aggregation.rule.refusal(number)} in a round")

    def warn_about_few_owners(self, server: Server) -> None:
        """Warn, once per label, that its head row has too few owners and was averaged instead."""
        if server.replies is None or not len(server.replies):
            return
        few = self.aggregation.underowned(server.replies.informs, server.replies.left_out)
        warned = server.state.method.tensors.get(WARNED, torch.zeros_like(few))
        if not bool((few & ~warned).any()):
            return
        names = [f"'{label}'" for label, new in zip(server.space, (few & ~warned).tolist(), strict=True) if new]
        rule = self.aggregation.rule.name
        server.warn(
            f"too few sites in a round know {', '.join(names)} for the rule '{rule}': the head rows of these labels "
            "are means weighted by sample count, which one hostile site can shift"
        )
        server.state.method.tensors[WARNED] = warned | few
