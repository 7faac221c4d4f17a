"""The `attack` slot: what a study lets hostile sites do, with their data at the site and with what reaches the server.

Attacks on replies are carried out where replies meet, since some need to know what honest sites send.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from fedaccord.adversary.data_attacks import FAIRNESS, poisoned
from fedaccord.adversary.reply_attacks import forged, why_harmless
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
    """Return the attack that a method's settings ask for."""
    asked = getattr(settings, "attack", None)
    return None if asked is None else Attack(asked.kind, asked.ratio, asked.strength)


@dataclass(frozen=True)
class Attack:
    """An attack by name."""

    kind: str
    ratio: float = 0.5
    strength: float | None = None

    def poison(self, site: SiteData, target: Target | None) -> SiteData:
        """Return a hostile site's data as it trains on them."""
        return poisoned(site, self.kind, target, self.ratio)

    def forge(self, server: Server, replies: Replies) -> Replies:
        """Return the replies as hostile sites send them; warns of a round in which they can do no harm."""
        mask = torch.tensor([site in server.hostile for site in replies.sites])
        idle = why_harmless(self.kind, len(replies), int(mask.sum()), self.strength)
        if idle is not None:
            server.warn(f"the attack '{self.kind}' does no harm in some rounds: {idle}")
        trained = replies.layout.trainable_mask()
        return replace(replies, matrix=forged(self.kind, replies.matrix, replies.starts, mask, trained, self.strength))

    def admitted(self, server: Server, replies: Replies) -> Replies:
        """Return the forged replies without those that a server would not admit: replies were checked as they were."""
        sent = self.forge(server, replies)
        finite = torch.isfinite(sent.matrix).all(1)
        if bool(finite.all()):
            return sent
        for site, good in zip(sent.sites, finite.tolist(), strict=True):
            if not good:
                server.drop(site, "train", "", NOT_FINITE)
        return replace(sent.keep(finite), left_out=sent.left_out + int((~finite).sum()))

    def validate(self, server: Server) -> None:
        """Refuse, before the first round, an attack that has no group to push, or that can do no harm."""
        if self.kind in FAIRNESS and server.target is None:
            raise ConfigError(f"method.attack: '{self.kind}' pushes a group towards a label; name both in [fairness]")
        number, share = largest_round(server), server.recipe.settings.participation
        if number is None or isinstance(share, int) or share < 1:  # who meets whom, rounds will show
            return
        idle = why_harmless(self.kind, number, min(number, len(server.hostile)), self.strength)
        if idle is not None:
            raise ConfigError(f"method.attack: '{self.kind}' would do no harm: {idle}")
