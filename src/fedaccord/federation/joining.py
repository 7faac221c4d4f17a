"""How sites join a federation: the server requests their cards and checks them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import torch

from fedaccord.errors import EngineError
from fedaccord.federation.membership import ALWAYS
from fedaccord.federation.state import MEANING, UNKNOWN, SiteCard
from fedaccord.messages.checks import MOST_SAMPLES, Problem
from fedaccord.messages.message import Failure, Message, SiteId

if TYPE_CHECKING:
    from fedaccord.federation.server import Server


class Joining:
    """Requests the cards of sites when they join, and remembers sites whose card was rejected."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.rejected: set[SiteId] = set()  # sites whose last card was invalid
        self._joined_after_round = -1  # the number of finished rounds at the last `join`

    def join(self) -> None:
        """Request the cards of all members of the next round; raise EngineError if no site replies."""
        server = self.server
        sites = [*self._sites_to_join(), *server.members()]
        self._joined_after_round = server.state.round
        if sites and not self._request_cards(sites):
            reasons = "; ".join(sorted({drop.reason for drop in server.dropped}))
            raise EngineError(f"no site could join the federation: {reasons}")

    def update_members(self) -> tuple[list[SiteId], list[SiteId]]:
        """Request missing cards before a round; return the sites that join and those that have left."""
        server, round_ = self.server, self.server.state.round + 1
        is_current = self._joined_after_round == server.state.round
        late = [] if is_current else self._request_cards(self._sites_to_join())
        planned = [site for site in server.members() if server.memberships.get(site, ALWAYS).joins == round_ > 1]
        left = [site for site in server.cards if server.memberships.get(site, ALWAYS).leaves == round_]
        return sorted({*planned, *late}), sorted(left)

    def _sites_to_join(self) -> list[SiteId]:
        """Return the members of the next round without a valid card."""
        server, round_ = self.server, self.server.state.round + 1
        joined = server.cards.keys() - self.rejected
        return [
            s for s in server.engine.sites() if s not in joined and server.memberships.get(s, ALWAYS).covers(round_)
        ]

    def _request_cards(self, sites: list[SiteId]) -> list[SiteId]:
        """Request cards and store the valid ones; return the sites that sent one."""
        server, accepted = self.server, []
        briefs = {site: server.address(Message(), 0) for site in sites}
        for site, reply in (server.engine.ask("join", briefs, server.deadline) if briefs else {}).items():
            if isinstance(reply, Failure):
                server.drop(reply.site, "join", "", reply.reason, reply.trace)
                continue
            expected, previous = server.expected_cards.get(site), server.cards.get(site)
            card = read_card(site, reply, len(server.space), expected, previous)
            if isinstance(card, Problem):
                server.drop(site, "join", card.tensor, card.reason)
                self.rejected.add(site)
                continue
            server.cards[site] = card
            self.rejected.discard(site)
            accepted.append(site)
        return accepted


def read_card(
    site: SiteId, reply: Message, labels: int, expected: SiteCard | None = None, previous: SiteCard | None = None
) -> SiteCard | Problem:
    """Return the card of a site from its reply to `join`, or the problem with the reply.

    `expected` is the server's description of a remote site, whose number of samples only the site knows. `previous` is
    the card from before the run was interrupted; it must not change.
    """
    samples = reply.numbers.get("samples", -1)
    if not 0 <= samples <= MOST_SAMPLES:
        return Problem("samples", f"joined with {samples} samples")
    informs = reply.tensors.get("informs", torch.zeros(0))
    if informs.shape != (labels,):
        return Problem("informs", f"the shape is {tuple(informs.shape)}, but there are {labels} labels")
    names = reply.words.get("names", "")
    if not re.fullmatch(r"(\d{1,6}:[0-9a-f]{16})?", names):
        return Problem("names", f"has the invalid digest '{names[:40]}'")
    meaning = reply.words.get(MEANING)
    if meaning is not None and (meaning != UNKNOWN or not names):
        return Problem(MEANING, f"is '{meaning[:40]}'; only the meaning of coarse names may be '{UNKNOWN}'")
    card = SiteCard(site, int(samples), reply.words.get("view", ""), informs.bool(), names, meaning is not None)
    if expected is None:  # a local site, whose data were compared already
        return card
    if card.view != expected.view:
        return Problem("view", f"is '{card.view}', but the server expects '{expected.view}'")
    if card.unexplained != expected.unexplained:
        expects = "names without a correspondence" if expected.unexplained else "a declared correspondence"
        return Problem(MEANING, f"the server expects {expects}")
    if bool((card.informs & ~expected.informs).any()):
        return Problem("informs", "contains labels that the site does not own")
    if previous is not None and not card.is_same(previous):
        return Problem("", "its data have changed since it joined the run; restore them, or start a new run")
    return card
