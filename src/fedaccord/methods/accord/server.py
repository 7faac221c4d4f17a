"""The server's part after the last round: branches that train without the rows kept apart, then the sites' tasks."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from fedaccord.federation.branch import BRANCH, ROUNDS, STAYS
from fedaccord.federation.experts import KEEPS_SHARED
from fedaccord.federation.membership import Membership
from fedaccord.federation.recipe import Exchange
from fedaccord.federation.round import Progress, RoundRecord, play_round
from fedaccord.federation.server import Server
from fedaccord.federation.state import RunState
from fedaccord.messages.message import Message, SiteId
from fedaccord.messages.names import SILENT
from fedaccord.methods.accord.labelled_server import parts_to_train_on
from fedaccord.methods.accord.objective import ALONE, PLAIN_WAY, REGULARISED, WEIGHING
from fedaccord.methods.accord.personal import FIT, WEIGH
from fedaccord.methods.accord.settings import AccordSettings
from fedaccord.training.regularisation import PLAIN

WEIGHING_SHARE = 0.6  # of the run's rounds, for the models that the experts are weighed by
CHEAP_SHARE = 0.5  # of the run's rounds, for the model trained alone if `personal = "cheap"`


@dataclass(frozen=True)
class Personalise:
    """Let every site fit its experts; with "mixture", first train models that no row kept apart has informed."""

    settings: AccordSettings

    def __call__(self, server: Server) -> Iterator[Progress]:
        """Train the branches round by round, and give the sites their tasks."""
        sites = server.trainers(server.state.round)
        if sites:
            total = further_rounds(self.settings, server.state.round)
            for done, record in enumerate(self._rounds(server, sites), 1):
                yield Progress("fitting the sites' own models", done, total, record)

    def _rounds(self, server: Server, sites: Sequence[SiteId]) -> Iterator[RoundRecord | None]:
        """Play one further round after another; those of the models alone have no record."""
        played, weigh = server.state.round, self.settings.personal == "mixture"
        if weigh:
            rounds = _share(WEIGHING_SHARE, played)
            shared = start_branch(server, WEIGHING, rounds)
            for _ in range(rounds):
                yield play_round(shared, evaluated=False)
            for way in ways_alone(self.settings):
                yield from _train_alone(shared, way, sites, rounds)
            server.ask(WEIGH, _weigh_briefs(server, shared, sites), {})
        yield from _train_alone(server, ALONE, sites, played if weigh else _share(CHEAP_SHARE, played))
        server.ask(FIT, _fit_briefs(server, sites), {})


def ways_alone(settings: AccordSettings) -> tuple[str, ...]:
    """Return the branches that train alone without the rows kept apart: regularised and plain, or only plain."""
    return (REGULARISED, PLAIN_WAY) if settings.regularise else (PLAIN_WAY,)


def further_rounds(settings: AccordSettings, played: int) -> int:
    """Return the number of rounds that the experts take after a run of `played` rounds."""
    if settings.personal == "cheap":
        return _share(CHEAP_SHARE, played)
    return (1 + len(ways_alone(settings))) * _share(WEIGHING_SHARE, played) + played


def start_branch(server: Server, branch: str, rounds: int) -> Server:
    """Return a server with the untrained model and the sites of the last round, whose briefs name a branch."""
    named = Exchange(brief=lambda server, card: Message(numbers={ROUNDS: rounds}, words={BRANCH: branch}))
    members = set(server.members(server.state.round or None))
    never = Membership(joins=sys.maxsize)
    recipe = server.recipe
    return replace(
        server,
        recipe=replace(
            recipe,
            settings=recipe.settings.model_copy(update={"rounds": rounds}),
            exchange=recipe.exchange.merge(named),
        ),
        state=RunState(
            server.initial,
            dict(server.state.counters),
            cards={name: card for name, card in server.cards.items() if name in members},
        ),
        memberships={name: never for name in server.engine.sites() if name not in members},
    )


def _train_alone(source: Server, branch: str, sites: Sequence[SiteId], rounds: int) -> Iterator[None]:
    """Let the sampled sites of each round train models that stay there; one with nothing to train is asked no more.

    The meaning of names that were unknown is the last estimate of `source`: the run, or its branch without rows apart.
    """
    own = start_branch(source, branch, rounds)
    words = {BRANCH: branch, STAYS: "on"} | ({PLAIN: "on"} if branch == PLAIN_WAY else {})
    idle: set[SiteId] = set()
    for _ in range(rounds):
        briefs = {}
        for site in own.sample_sites():
            if site in sites and site not in idle:
                more = source.recipe.exchange.brief_for(source, source.cards[site])
                briefs[site] = Message(dict(more.tensors), {ROUNDS: rounds}, {**more.words, **words})
        replies = own.ask("train", briefs, {}) if briefs else {}
        idle |= {site for site, reply in replies.items() if SILENT in reply.words}
        own.state.round += 1
        yield None


def _weigh_briefs(server: Server, branch: Server, sites: Sequence[SiteId]) -> dict[SiteId, Message]:
    """Return briefs with the final shared model and the one of the branch."""
    briefs = {site: server.brief(site, server.tensors) for site in sites}
    sharing = branch.recipe.sharing
    for site, brief in briefs.items():
        sent = sharing.outgoing(branch.layout, branch.tensors, branch.cards[site].informs)
        brief.put(WEIGHING, {name.removeprefix(f"{sharing.prefix}/"): tensor for name, tensor in sent.items()})
    return briefs


def _fit_briefs(server: Server, sites: Sequence[SiteId]) -> dict[SiteId, Message]:
    """Return briefs with the final shared model; sites keep it if the server may train its own model on."""
    briefs = {site: server.brief(site, server.tensors) for site in sites}
    if parts_to_train_on(server) is not None:
        for brief in briefs.values():
            brief.words[KEEPS_SHARED] = "on"
    return briefs


def _share(share: float, rounds: int) -> int:
    return max(1, round(share * rounds))
