"""The server: what it knows of the sites, the model it holds, and what it does in a round's beats."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from fedaccord.aggregation.replies import Replies
from fedaccord.data.sensitive import Target
from fedaccord.engines.engine import Engine
from fedaccord.errors import ConfigError, EngineError, TooFewSitesError, did_you_mean
from fedaccord.federation.attack import Attack
from fedaccord.federation.cohort_mean import without_representative
from fedaccord.federation.joining import read_card
from fedaccord.federation.membership import ALWAYS, Membership
from fedaccord.federation.recipe import Recipe
from fedaccord.federation.sharing import MODEL
from fedaccord.federation.state import RunState
from fedaccord.federation.state import SiteCard as SiteCard
from fedaccord.federation.traffic import Traffic
from fedaccord.labels.space import LabelSpace
from fedaccord.messages.checks import (
    Problem,
    TensorSpec,
    all_finite,
    find_answer_problem,
    find_metrics_problem,
    find_problem,
)
from fedaccord.messages.message import Failure, Message, SiteId, one_line
from fedaccord.messages.names import POOL, SILENT
from fedaccord.models.layout import Layout
from fedaccord.models.network import Network, use_channels_last
from fedaccord.seeds import derive


@dataclass(frozen=True)
class Dropped:
    """A reply that did not reach the model, and why; what may be the site's own words is made one line."""

    round: int
    site: SiteId
    task: str
    tensor: str
    reason: str
    trace: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "tensor", one_line(self.tensor))
        object.__setattr__(self, "reason", one_line(self.reason))

    def __str__(self) -> str:
        what = f"{self.tensor} {self.reason}".strip()
        who = f"site '{self.site}' dropped from {self.task}" if self.site else f"{self.task} had no effect"
        return f"round {self.round}: {who}: {what}"

    def as_dict(self) -> dict[str, str | int]:
        """Return the fields as written to run folders."""
        return {"round": self.round, "site": self.site, "task": self.task, "tensor": self.tensor, "reason": self.reason}


@dataclass
class Server:
    """The server of one run."""

    run: str
    seed: int
    space: LabelSpace
    recipe: Recipe
    network: Network  # for the server's own computations; its values are those last loaded
    state: RunState
    engine: Engine
    test: tuple[Tensor, Tensor] | None = None  # inputs and true classes the server may be judged on
    unlabelled: Tensor | None = None  # inputs the server holds and may tune its model on
    labelled: tuple[Tensor, Tensor] | None = None  # inputs and true classes the server holds and may train on
    deadline: float | None = None
    averages_cohorts: bool = False  # the engine's own processes may hand over the mean of sites that trained together
    memberships: Mapping[SiteId, Membership] = field(default_factory=dict)  # of sites that join late or leave
    expected_cards: Mapping[SiteId, SiteCard] = field(
        default_factory=dict
    )  # of sites elsewhere: what they may say they are
    dropped: list[Dropped] = field(default_factory=list)
    recorded_drops: int = 0  # how many of the drops a round's record has told
    warnings: list[str] = field(default_factory=list)  # what whoever runs the federation should know; for no site
    target: Target | None = None  # which group's treatment is looked at
    test_groups: tuple[Tensor, Tensor | None] | None = None  # candidate and, where known, true groups of these
    attack: Attack | None = None  # in a study: what hostile sites do
    hostile: tuple[SiteId, ...] = ()  # in a study: who really is; only attacks and figures look at it
    replies: Replies | None = None  # of the round under way, for the steps that refine its result
    silent: list[SiteId] = field(default_factory=list)  # who said in this round that there was nothing to train on
    figures: dict[str, float] = field(default_factory=dict)  # what the round's own steps measured, by name
    traffic: Traffic = field(default_factory=Traffic)

    def __post_init__(self) -> None:
        use_channels_last(self.network)
        self.layout = Layout.of(self.network)
        self._specs: dict[SiteId, dict[str, TensorSpec]] = {}
        self._rejected: set[SiteId] = set()  # who said what cannot be when asked last
        self._joined_before_round = -1  # the finished rounds when all were asked who they are
        sharing = self.recipe.sharing
        # The names of a reply's tensors in the order of the flat vector, where a reply holds all of it.
        self._whole_reply = [f"{sharing.prefix}/{slot.name}" for slot in self.layout.slots]
        if sharing.own_rows or not {slot.name for slot in self.layout.slots} <= set(sharing.names(self.layout)):
            self._whole_reply = []
        # What a site sends of the model by name, dtype and shape, where all send the same.
        self._forms = (
            {}
            if sharing.own_rows
            else {
                name: tensor.to("meta")
                for name, tensor in sharing.outgoing(self.layout, self.tensors, torch.zeros(0)).items()
            }
        )

    @property
    def has_full_model(self) -> bool:
        """Whether the server's model is a trained whole: combined, and nothing of it kept at the sites."""
        shared = set(self.recipe.sharing.names(self.layout))
        return self.recipe.aggregator is not None and all(slot.name in shared for slot in self.layout.slots)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The current model by tensor names: views of the flat vector, and the counters."""
        return self.layout.named(self.state.model) | self.state.counters

    def move_to(self, device: torch.device) -> None:
        """Let the server compute on a device: its network and its samples go there, models and messages stay."""
        self.network = self.network.to(device)
        if self.unlabelled is not None:
            self.unlabelled = self.unlabelled.to(device)
        if self.test is not None:
            self.test = self.test[0].to(device), self.test[1].to(device)
        if self.labelled is not None:
            self.labelled = self.labelled[0].to(device), self.labelled[1].to(device)

    def load_network(self) -> Network:
        """Put the current model into the server's network and return it."""
        self.layout.load(self.network, self.state.model)
        return self.network

    @property
    def cards(self) -> dict[SiteId, SiteCard]:
        """Everyone who has joined so far, those who have left among them."""
        return self.state.cards

    def members(self, round_: int | None = None) -> list[SiteId]:
        """Return the sites that belong to a round, by default the coming one, and have joined."""
        joined = self.cards.keys() - self._rejected
        if not self.memberships:
            return sorted(joined)
        at = self.state.round + 1 if round_ is None else round_
        return sorted(site for site in joined if self.memberships.get(site, ALWAYS).covers(at))

    def join(self) -> None:
        """When a run begins or goes on: ask every site that belongs to the coming round who it is."""
        asked = [*self._sites_to_join(), *self.members()]
        self._joined_before_round = self.state.round
        if asked and not self._request_cards(asked):
            reasons = "; ".join(sorted({d.reason for d in self.dropped}))
            raise EngineError(f"no site could join the federation: {reasons}")

    def update_members(self) -> tuple[list[SiteId], list[SiteId]]:
        """Ask those who come now, or could not join before, who they are; returns who joins and who has left."""
        at = self.state.round + 1
        late = [] if self._joined_before_round == self.state.round else self._request_cards(self._sites_to_join())
        planned = [site for site in self.members() if self.memberships.get(site, ALWAYS).joins == at > 1]
        return sorted({*planned, *late}), sorted(s for s in self.cards if self.memberships.get(s, ALWAYS).leaves == at)

    def _sites_to_join(self) -> list[SiteId]:
        """Return the sites that belong to the coming round and have not joined yet."""
        at, joined = self.state.round + 1, self.cards.keys() - self._rejected
        return [s for s in self.engine.sites() if s not in joined and self.memberships.get(s, ALWAYS).covers(at)]

    def _request_cards(self, sites: list[SiteId]) -> list[SiteId]:
        """Ask sites who they are, and keep the cards of those that answer; returns these."""
        answered = []
        briefs = {site: self.address(Message(), 0) for site in sites}
        for site, reply in (self.engine.ask("join", briefs, self.deadline) if briefs else {}).items():
            if isinstance(reply, Failure):
                self.drop(reply.site, "join", "", reply.reason, reply.trace)
                continue
            card = read_card(site, reply, len(self.space), self.expected_cards.get(site), self.cards.get(site))
            if isinstance(card, Problem):
                self.drop(site, "join", card.tensor, card.reason)
                self._rejected.add(site)
                continue
            self.cards[site] = card
            self._rejected.discard(site)
            answered.append(site)
        return answered

    def ready(self) -> None:
        """Refuse, before the first round, what cannot work with these sites."""
        if self.recipe.server_trains and (self.labelled is None or not len(self.labelled[0])):
            raise ConfigError("the method trains on labelled samples of the server; give [server] labelled")
        if self.recipe.sites_train and self.state.round == 0 and not self.trainers():
            raise ConfigError("no site that may train in the first round has labelled samples")
        for step in self.recipe.ready:
            step(self)
        if self.attack is not None:
            self.attack.validate(self)

    def trainers(self, round_: int | None = None) -> list[SiteId]:
        """Return the sites that may train in a round, by default the coming one: asked for, with something to learn."""
        wanted, cards = self.recipe.settings.sites, self.cards
        names = self.members(round_)
        if not self.recipe.sites_train:
            return []
        if self.recipe.is_pooled:
            names = [n for n in names if n == POOL]
        elif isinstance(wanted, list):
            there = self.engine.sites()
            for name in wanted:
                if name not in there:
                    raise ConfigError(f"method.sites: there is no site '{name}'; {did_you_mean(name, there)}")
            names = [n for n in names if n in wanted]
        else:
            names = [n for n in names if n != POOL and (wanted == "all" or cards[n].view == wanted)]
        able = [n for n in names if cards[n].samples > 0 and cards[n].teaches]
        if not able and not self.memberships and not self._rejected:
            raise ConfigError("no site that may train has labelled samples")
        return able

    def sample_sites(self) -> list[SiteId]:
        """Draw the sites of the coming round, seeded by run and round; none when nobody who could train is there."""
        able = self.trainers()
        number = self.sample_size(len(able))
        if number == len(able):
            return able
        rng = np.random.default_rng(derive(self.seed, "participation", self.state.round + 1))
        return sorted(able[i] for i in rng.choice(len(able), number, replace=False))

    def sample_size(self, sites: int) -> int:
        """Return how many of so many sites take part in a round."""
        share = self.recipe.settings.participation
        # The small step back is for products such as 0.55 * 100, which floating point puts just above 55.
        number = share if isinstance(share, int) else max(1, math.ceil(share * sites - 1e-9))
        return min(number, sites)

    def address(self, message: Message, round_: int) -> Message:
        """Write run and round on a brief."""
        message.words["run"] = self.run
        message.numbers["round"] = round_
        return message

    def ask(
        self, task: str, briefs: dict[SiteId, Message], expected: Mapping[str, TensorSpec] | None = None
    ) -> dict[SiteId, Message]:
        """Ask the sites a question of the coming round; failures are noted and left out.

        With `expected`, an answer must hold these tensors and no others, finite and addressed to this round.
        """
        return dict(self.ask_each(task, briefs, expected))

    def ask_each(
        self,
        task: str,
        briefs: dict[SiteId, Message],
        expected: Mapping[str, TensorSpec] | None = None,
        as_views: bool = False,
    ) -> Iterator[tuple[SiteId, Message]]:
        """Ask as `ask` does, and yield answers in the order of site names, if the engine can, while others work.

        The tensors of a answer with `as_views` are valid until the next one is requested.
        """
        round_ = self.state.round + 1
        addressed = {s: self.address(b, round_) for s, b in briefs.items()}
        stream = getattr(self.engine, "stream", None)
        if stream is not None:
            replies = stream(task, addressed, self.deadline, as_views)
        else:
            replies = sorted(self.engine.ask(task, addressed, self.deadline).items())
        for site, reply in replies:
            self.traffic.count(
                site, addressed[site], without_representative(reply, self._forms) if self.averages_cohorts else reply
            )
            if isinstance(reply, Failure):
                self.drop(site, task, "", reply.reason, reply.trace)
            elif expected is not None and (problem := find_answer_problem(reply, expected, self.run, round_)):
                self.drop(site, task, problem.tensor, problem.reason)
            else:
                yield site, reply

    def brief(self, site: SiteId, tensors: dict[str, Tensor]) -> Message:
        """Return what one site is told: the shared model, and what the recipe adds."""
        recipe = self.recipe
        told = recipe.exchange.brief_for(self, self.cards[site])
        # A new message: a recipe may tell every site the same one, or something it keeps.
        shared = recipe.sharing.outgoing(self.layout, tensors, self.cards[site].informs)
        return Message(shared | told.tensors, dict(told.numbers), dict(told.words))

    def is_admitted(self, site: SiteId, reply: Message) -> bool:
        """Check one reply; one that is not as it should be is noted, one of a silent site is not."""
        if SILENT in reply.words:
            self.silent.append(site)
            return False
        card = self.cards[site]
        problem = find_problem(reply, self._wanted(card), self.run, self.state.round + 1, card.samples)
        if problem:
            self.drop(site, "train", problem.tensor, problem.reason)
        return problem is None

    def _wanted(self, card: SiteCard) -> Mapping[str, TensorSpec]:
        """Return what a site's reply to `train` must hold; the model's part has the same form in every round."""
        sharing = self.recipe.sharing
        key = card.name if sharing.own_rows else ""
        if key not in self._specs:
            self._specs[key] = sharing.expected(self.layout, self.tensors, card.informs)
        return {**self._specs[key], **self.recipe.exchange.reply_specs(self, card)}

    def admit(self, answers: dict[SiteId, Message]) -> Replies | None:
        """Check every reply and gather the good ones; None when there is none."""
        good = {site: reply for site, reply in answers.items() if self.is_admitted(site, reply)}
        self.replies = self._gather(good) if good else None
        if self.replies is not None and self.attack is not None:
            self.replies = self.attack.admitted(self, self.replies)
        for step in self.recipe.admit:
            if self.replies is not None and len(self.replies):
                self.replies = step(self, self.replies)
        return self.replies

    def admit_figures(self, answers: dict[SiteId, Message]) -> dict[SiteId, Message]:
        """Return the sites' answers to `evaluate` that can be written down as they are."""
        good = {}
        for site, answer in answers.items():
            problem = find_metrics_problem(answer, self.run, self.state.round + 1)
            if problem:
                self.drop(site, "evaluate", problem.tensor, problem.reason)
            else:
                good[site] = answer
        return good

    def combine(self, replies: Replies | None) -> None:
        """Make the next model; without replies it stays as it is."""
        if replies is None or len(replies) == 0 or self.recipe.aggregator is None:
            return
        try:
            model = self.recipe.aggregator(replies)
        except TooFewSitesError as error:
            self.drop("", "combine", "", f"{error}; the old model is kept")
            return
        self.adopt(model, self.counters_of(replies.messages[0]))

    def adopt(self, model: Tensor, counters: dict[str, Tensor]) -> None:
        """Take a combined model, unless it is not finite."""
        if not all_finite(model):
            broken = next(n for n, t in self.layout.named(model).items() if not all_finite(t))
            self.drop("", "combine", broken, "the combined model is not finite, so the old one is kept")
            return
        self.state.model = model
        # A counter cannot be averaged, and its value is irrelevant with fixed momentum: the first site's is taken.
        self.state.counters = counters

    def counters_of(self, reply: Message) -> dict[str, Tensor]:
        """Return the counters in a reply, and where it has none, our own."""
        held = self.state.counters.items()
        return {name: reply.tensors.get(f"{MODEL}/{name}", old).clone() for name, old in held}

    def _gather(self, good: dict[SiteId, Message]) -> Replies:
        matrix = torch.empty(len(good), self.layout.size)
        for row, (site, reply) in zip(matrix, sorted(good.items()), strict=True):
            self.flat(site, reply, row)
        return replace(self.reply_table(good), matrix=matrix, started=self._starts(sorted(good)))

    def _starts(self, sites: list[SiteId]) -> Tensor | None:
        """Return the model that each site was sent, if any step reads updates and sites were sent different models."""
        if self.attack is None and not any(getattr(step, "reads_updates", False) for step in self.recipe.admit):
            return None
        told = [self.recipe.exchange.brief_for(self, self.cards[site]) for site in sites]
        if not any(message.select(self.recipe.sharing.prefix) for message in told):
            return None
        return torch.stack([self.flat(site, message) for site, message in zip(sites, told, strict=True)])

    def reply_table(self, answers: Mapping[SiteId, Message]) -> Replies:
        """Return who answered, with which numbers: replies whose matrix has no columns.

        Their weights are the samples that are told in replies to `train`; answers to other questions may have none.
        """
        sites = tuple(sorted(answers))
        return Replies(
            sites=sites,
            messages=tuple(answers[s] for s in sites),
            matrix=torch.empty(len(sites), 0),
            weights=torch.tensor([answers[s].numbers.get("samples", 0) for s in sites], dtype=torch.float64),
            informs=torch.stack([self.cards[s].informs for s in sites]),
            previous=self.state.model,
            layout=self.layout,
        )

    def flat(self, site: SiteId, reply: Message, out: Tensor | None = None) -> Tensor:
        """Return a reply's flat vector; what the site did not send stands at the server's value."""
        sharing = self.recipe.sharing
        out = torch.empty(self.layout.size) if out is None else out
        if self._whole_reply:
            return torch.cat([reply.tensors[name].reshape(-1) for name in self._whole_reply], out=out)
        whole = sharing.incoming(self.layout, reply.tensors, self.tensors, self.cards[site].informs)
        if len(whole) < len(self.layout.slots) + len(self.layout.counters):
            out[:] = self.state.model
        for slot in self.layout.slots:
            if slot.name in whole:
                out[slot.start : slot.stop] = whole[slot.name].reshape(-1)
        return out

    def warn(self, text: str) -> None:
        """Tell whoever runs the federation something, once in a run: in the log, the summary and the report."""
        if text not in self.warnings:
            self.warnings.append(text)

    def drop(self, site: SiteId, task: str, tensor: str, reason: str, trace: str = "") -> None:
        """Note that something of a site did not reach the model, and why."""
        self.dropped.append(Dropped(self.state.round + 1, site, task, tensor, reason, trace))
