"""Attacks of hostile sites in a study, on their training data or on their replies.

Attacks on replies run at the server, because some of them use the replies of honest sites.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from fedaccord.adversary.attacks import FAIRNESS, forged, poisoned, why_harmless
from fedaccord.adversary.settings import attack_of
from fedaccord.aggregation.replies import Replies
from fedaccord.data.sensitive import Target
from fedaccord.data.site_data import SiteData
from fedaccord.errors import ConfigError
from fedaccord.federation.robustness import largest_round
from fedaccord.messages.checks import NOT_FINITE
from fedaccord.training.settings import TrainingSettings

if TYPE_CHECKING:
    from fedaccord.federation.server import Server


def make_attack(settings: TrainingSettings) -> Attack | None:
    """Return the attack of a method's settings, if any."""
    chosen = attack_of(settings)
    return None if chosen is None else Attack(chosen.kind, chosen.ratio, chosen.strength)


@dataclass(frozen=True)
class Attack:
    """An attack, identified by the name of its kind."""

    kind: str
    ratio: float = 0.5  # share of the victims' rows that are changed
    strength: float | None = None

    def poison(self, site: SiteData, target: Target | None) -> SiteData:
        """Return the data that a hostile site trains on."""
        return poisoned(site, self.kind, target, self.ratio)

    def forge(self, server: Server, replies: Replies) -> Replies:
        """Return the replies after the attack; warn if the attack has no effect in the round."""
        mask = torch.tensor([site in server.hostile for site in replies.sites])
        reason = why_harmless(self.kind, len(replies), int(mask.sum()), self.strength)
        if reason is not None:
            server.warn(f"the attack '{self.kind}' has no effect in some rounds: {reason}")
        trained = replies.layout.trainable_mask()
        return replace(replies, matrix=forged(self.kind, replies.matrix, replies.starts, mask, trained, self.strength))

    def apply(self, server: Server, replies: Replies) -> Replies:
        """Return the replies after the attack, without those that are no longer finite."""
        sent = self.forge(server, replies)
        finite = torch.isfinite(sent.matrix).all(1)
        if bool(finite.all()):
            return sent
        for site, is_finite in zip(sent.sites, finite.tolist(), strict=True):
            if not is_finite:
                server.drop(site, "train", "", NOT_FINITE)
        return replace(sent.keep(finite), left_out=sent.left_out + int((~finite).sum()))

    def validate(self, server: Server) -> None:
        """Raise ConfigError for an attack without a target group, or without any effect."""
        if self.kind in FAIRNESS and server.target is None:
            raise ConfigError(f"method.attack: '{self.kind}' pushes a group towards a label; name both in [fairness]")
        number, share = largest_round(server), server.recipe.settings.participation
        if number is None or isinstance(share, int) or share < 1:  # depends on the sampled sites
            return
        reason = why_harmless(self.kind, number, min(number, len(server.hostile)), self.strength)
        if reason is not None:
            raise ConfigError(f"method.attack: '{self.kind}' would have no effect: {reason}")
