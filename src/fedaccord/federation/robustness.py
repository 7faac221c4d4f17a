"""What a server looks after when it combines by a robust rule: whether the rule can work, and for which rows."""

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

WARNED = "rows not robust"  # in the method's state: labels that a warning has named


def largest_round(server: Server) -> int | None:
    """Return how many sites at most are asked to train in a round, as far as can be known when a run begins.

    None where it goes on: those who made the fullest round may have left since.
    """
    if server.state.round:
        return None
    able = set(server.trainers())
    # Of a site that joins later nothing is known yet; it counts as one that will train.
    able |= {site for site in server.engine.sites() if site not in server.cards and site != POOL}
    memberships = [server.memberships.get(site, ALWAYS) for site in able]
    rounds = range(1, server.recipe.settings.rounds + 1)
    return max(server.sample_size(sum(membership.covers(at) for membership in memberships)) for at in rounds)


@dataclass(frozen=True)
class RobustnessWatch:
    """The steps of a server that combines by a robust rule."""

    aggregation: RobustAggregation

    def validate(self, server: Server) -> None:
        """Refuse, before the first round, a rule that not even the fullest round has enough sites for."""
        number = largest_round(server)
        if number is not None and not self.aggregation.rule.fits(number):
            raise ConfigError(f"method.aggregation: {self.aggregation.rule.refusal(number)} in a round")

    def warn_about_few_owners(self, server: Server) -> None:
        """Warn, once for each label, that its row has too few owners and was averaged instead."""
        if server.replies is None or not len(server.replies):
            return
        thin = self.aggregation.underowned(server.replies.informs, server.replies.left_out)
        warned = server.state.method.tensors.get(WARNED, torch.zeros_like(thin))
        if not bool((thin & ~warned).any()):
            return
        names = [f"'{label}'" for label, new in zip(server.space, (thin & ~warned).tolist(), strict=True) if new]
        rule = self.aggregation.rule.name
        server.warn(
            f"too few sites of a round know {', '.join(names)} for the rule '{rule}': the head rows of these labels "
            "are means by sample count, which one hostile site can move"
        )
        server.state.method.tensors[WARNED] = warned | thin
