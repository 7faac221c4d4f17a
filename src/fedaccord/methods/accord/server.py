"""The server's part after the last round: a second training that weighs the experts, then the sites' task."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace

from fedaccord.federation.branch import BRANCH
from fedaccord.federation.membership import Membership
from fedaccord.federation.recipe import Exchange
from fedaccord.federation.round import RoundRecord, play_round
from fedaccord.federation.server import Server
from fedaccord.federation.state import RunState
from fedaccord.messages.message import Message
from fedaccord.methods.accord.objective import WEIGHING
from fedaccord.methods.accord.personal import PERSONALISE
from fedaccord.methods.accord.settings import Personal


@dataclass(frozen=True)
class Personalise:
    """Let every site fit its experts; with "mixture", first train a model that no row kept apart has informed."""

    personal: Personal

    def __call__(self, server: Server) -> Iterator[RoundRecord]:
        """Train the branch if needed, yield its rounds, then ask the sites that have annotated rows."""
        sites = [name for name in server.members() if server.cards[name].samples and server.cards[name].teaches]
        briefs = {site: server.brief(site, server.tensors) for site in sites}
        for brief in briefs.values():
            brief.numbers["rounds"] = server.state.round
        if self.personal == "mixture" and sites:
            branch = start_branch(server)
            # As many as those of the run: with fewer, the shared model would be judged before it has converged.
            for _ in range(server.state.round):
                yield play_round(branch, evaluated=False)
            weighing = branch.recipe.sharing.outgoing(branch.layout, branch.tensors, server.cards[sites[0]].informs)
            cut = len(branch.recipe.sharing.prefix) + 1
            for brief in briefs.values():
                brief.put(WEIGHING, {name[cut:]: tensor for name, tensor in weighing.items()})
        server.ask(PERSONALISE, briefs, {})


def start_branch(server: Server) -> Server:
    """Return a server with the untrained model, whose sites train without the rows kept apart."""
    words = Exchange(brief=lambda server, card: Message(words={BRANCH: WEIGHING}))
    members = set(server.members())
    never = Membership(joins=sys.maxsize)
    return replace(
        server,
        recipe=replace(server.recipe, exchange=server.recipe.exchange.merge(words)),
        state=RunState(
            server.initial,
            dict(server.state.counters),
            cards={name: card for name, card in server.cards.items() if name in members},
        ),
        memberships={name: never for name in server.engine.sites() if name not in members},
    )
