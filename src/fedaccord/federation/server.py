"""The server of a run: the model, the sites it knows, and its part in the phases of a round."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from fedaccord.aggregation.replies import Replies
from fedaccord.data.sensitive import Target
from fedaccord.engines.engine import Engine
from fedaccord.errors import ConfigError, TooFewSitesError, did_you_mean
from fedaccord.federation.admission import AdmitSection
from fedaccord.federation.attack import Attack
from fedaccord.federation.joining import Joining
from fedaccord.federation.membership import ALWAYS, Membership
from fedaccord.federation.recipe import Recipe
from fedaccord.federation.reported_figures import ReportedFigures
from fedaccord.federation.sharing import MODEL, ReplyFormat
from fedaccord.federation.state import Dropped, RunState
from fedaccord.federation.state import SiteCard as SiteCard
from fedaccord.federation.streaming import without_representative
from fedaccord.federation.traffic import Traffic
from fedaccord.federation.update_norms import UpdateNorms
from fedaccord.labels.space import LabelSpace
from fedaccord.messages.checks import TensorSpec, all_finite, find_answer_problem, find_problem
from fedaccord.messages.message import Failure, Message, SiteId
from fedaccord.messages.names import NOT_BATCHED, POOL, SILENT
from fedaccord.models.layout import Layout
from fedaccord.models.network import Network, use_channels_last
from fedaccord.plain_text import one_line
from fedaccord.seeds import derive

_ONE_BY_ONE = "sites trained one by one, because the method failed for several at once"


@dataclass
class Server:
    """The server of one run."""

    run: str
    seed: int
    space: LabelSpace
    recipe: Recipe
    network: Network  # for the server's computations, see `load_network`
    state: RunState
    engine: Engine
    test: tuple[Tensor, Tensor] | None = None  # inputs and true classes of the test set
    unlabelled: Tensor | None = None  # inputs for tuning the model
    labelled: tuple[Tensor, Tensor] | None = None  # inputs and true classes for training
    input_shape: tuple[int, ...] = ()  # of one sample; empty: not known
    deadline: float | None = None  # seconds for a reply
    admission: AdmitSection = field(default_factory=AdmitSection)
    averages_cohorts: bool = False  # worker processes may reply with the mean of a cohort
    memberships: Mapping[SiteId, Membership] = field(default_factory=dict)  # of sites that join late or leave
    answers: Mapping[SiteId, int] = field(default_factory=dict)  # of the sites' own tasks, as far as known
    expected_cards: Mapping[SiteId, SiteCard] = field(default_factory=dict)  # of remote sites
    dropped: list[Dropped] = field(default_factory=list)
    recorded_drops: int = 0  # number of drops that are already in the record of a round
    warnings: list[str] = field(default_factory=list)  # for the operator of the server
    target: Target | None = None  # group and label of the fairness metrics
    test_groups: tuple[Tensor, Tensor | None] | None = None  # candidate and true groups of the test set
    attack: Attack | None = None  # of hostile sites in a study
    hostile: tuple[SiteId, ...] = ()  # in a study, for attacks and figures only
    replies: Replies | None = None  # of the current round
    silent: list[SiteId] = field(default_factory=list)  # sites with no sample to train on in this round
    figures: dict[str, float] = field(default_factory=dict)  # measured by the steps of the current round
    concluded: list[str] = field(default_factory=list)  # sentences of the steps after the last round
    traffic: Traffic = field(default_factory=Traffic)

    def __post_init__(self) -> None:
        use_channels_last(self.network)
        self.layout = Layout.of(self.network)
        self.initial = self.state.model  # before any training; a checkpoint replaces `state` later
        self.reply_format = ReplyFormat(self.recipe.sharing, self.layout, self.state)
        self.joining = Joining(self)
        self.reported = ReportedFigures(self)
        self.norms = UpdateNorms(self)

    @property
    def has_full_model(self) -> bool:
        """Whether the server has a full trained model: aggregated, with no part that remains at the sites."""
        shared = set(self.recipe.sharing.names(self.layout))
        return self.recipe.aggregator is not None and all(slot.name in shared for slot in self.layout.slots)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The current model by tensor name: views of the flat vector, and the counters."""
        return self.state.tensors(self.layout)

    @property
    def trains(self) -> bool:
        """Whether the server has labelled samples and the method trains on them."""
        return self.recipe.server_trains and self.labelled is not None and len(self.labelled[0]) > 0

    def move_to(self, device: torch.device) -> None:
        """Move the server's network and samples to a device; models and messages remain on the CPU."""
        self.network = self.network.to(device)
        if self.unlabelled is not None:
            self.unlabelled = self.unlabelled.to(device)
        if self.test is not None:
            self.test = self.test[0].to(device), self.test[1].to(device)
        if self.labelled is not None:
            self.labelled = self.labelled[0].to(device), self.labelled[1].to(device)

    def load_network(self) -> Network:
        """Load the current model into the server's network and return it."""
        self.layout.load(self.network, self.state.model)
        return self.network

    @property
    def cards(self) -> dict[SiteId, SiteCard]:
        """The cards of all sites that have joined, including those that have left."""
        return self.state.cards

    def members(self, round_: int | None = None) -> list[SiteId]:
        """Return the sites that are members in a round, by default the next one, and have joined."""
        joined = self.cards.keys() - self.joining.rejected
        if not self.memberships:
            return sorted(joined)
        round_ = self.state.round + 1 if round_ is None else round_
        return sorted(site for site in joined if self.memberships.get(site, ALWAYS).covers(round_))

    def join(self) -> None:
        """Let the members of the next round join, at the start of a run or when it is resumed."""
        self.joining.join()

    def ready(self) -> None:
        """Raise ConfigError if the method or the attack cannot work with these sites."""
        if self.recipe.needs_labelled and not self.trains:
            raise ConfigError("the method trains on labelled samples of the server; set labelled in [server]")
        if self.recipe.sites_train and self.state.round == 0 and not self.trainers():
            raise ConfigError("no site that may train in the first round has labelled samples")
        for step in self.recipe.ready:
            step(self)
        if self.attack is not None:
            self.attack.validate(self)

    def trainers(self, round_: int | None = None) -> list[SiteId]:
        """Return the sites that may train in a round, by default the next one: selected, with labelled samples."""
        selected, cards = self.recipe.settings.sites, self.cards
        names = self.members(round_)
        if not self.recipe.sites_train:
            return []
        if self.recipe.is_pooled:
            names = [n for n in names if n == POOL]
        elif isinstance(selected, list):
            existing = self.engine.sites()
            for name in selected:
                if name not in existing:
                    raise ConfigError(f"method.sites: there is no site '{name}'; {did_you_mean(name, existing)}")
            names = [n for n in names if n in selected]
        else:
            names = [n for n in names if n != POOL and (selected == "all" or cards[n].view == selected)]
        trainers = [n for n in names if cards[n].samples > 0 and cards[n].teaches]
        if not trainers and not self.memberships and not self.joining.rejected:
            raise ConfigError("no site that may train has labelled samples")
        return trainers

    def sample_sites(self) -> list[SiteId]:
        """Return a sample of the sites that may train in the next round, seeded by run and round."""
        trainers = self.trainers()
        number = self.sample_size(len(trainers))
        if number == len(trainers):
            return trainers
        rng = np.random.default_rng(derive(self.seed, "participation", self.state.round + 1))
        return sorted(trainers[i] for i in rng.choice(len(trainers), number, replace=False))

    def sample_size(self, sites: int) -> int:
        """Return the number of sites that are sampled out of `sites`."""
        share = self.recipe.settings.participation
        # 1e-9, because floating-point products such as 0.55 * 100 are slightly larger than 55.
        number = share if isinstance(share, int) else max(1, math.ceil(share * sites - 1e-9))
        return min(number, sites)

    def address(self, message: Message, round_: int) -> Message:
        """Add run and round to a brief."""
        message.words["run"] = self.run
        message.numbers["round"] = round_
        return message

    def ask(
        self, task: str, briefs: dict[SiteId, Message], expected: Mapping[str, TensorSpec] | None = None
    ) -> dict[SiteId, Message]:
        """Run a task at the sites and return their replies; failures are dropped.

        With `expected`, a reply must contain exactly these tensors, finite and for this round.
        """
        return dict(self.ask_each(task, briefs, expected))

    def ask_each(
        self,
        task: str,
        briefs: dict[SiteId, Message],
        expected: Mapping[str, TensorSpec] | None = None,
        as_views: bool = False,
    ) -> Iterator[tuple[SiteId, Message]]:
        """Yield the replies of `ask` in the order of site names, as early as the engine provides them.

        With `as_views`, the tensors of a reply are valid until the next one is requested.
        """
        round_ = self.state.round + 1
        addressed = {s: self.address(b, round_) for s, b in briefs.items()}
        stream = getattr(self.engine, "stream", None)
        if stream is not None:
            replies = stream(task, addressed, self.deadline, as_views)
        else:
            replies = sorted(self.engine.ask(task, addressed, self.deadline).items())
        unbatched, failed = "", False
        for site, reply in replies:
            failed = failed or isinstance(reply, Failure)
            unbatched = ("" if isinstance(reply, Failure) else reply.words.pop(NOT_BATCHED, "")) or unbatched
            counted = without_representative(reply, self.reply_format.shapes) if self.averages_cohorts else reply
            self.traffic.count(site, addressed[site], counted)
            if isinstance(reply, Failure):
                self.drop(site, task, "", reply.reason, reply.trace)
            elif expected is not None and (problem := find_answer_problem(reply, expected, self.run, round_)):
                self.drop(site, task, problem.tensor, problem.reason)
            else:
                yield site, reply
        if unbatched and not failed and not any(text.startswith(_ONE_BY_ONE) for text in self.warnings):
            self.warn(f"{_ONE_BY_ONE}: {one_line(unbatched)}")

    def brief(self, site: SiteId, tensors: dict[str, Tensor]) -> Message:
        """Return the brief of one site: the shared model and the additions of the recipe."""
        recipe = self.recipe
        extra = recipe.exchange.brief_for(self, self.cards[site])
        # A new message, because a recipe may return the same one for every site.
        shared = recipe.sharing.outgoing(self.layout, tensors, self.cards[site].informs)
        return Message(shared | extra.tensors, dict(extra.numbers), dict(extra.words))

    def model_briefs(self, sites: Iterable[SiteId]) -> dict[SiteId, Message]:
        """Return a brief for each site that contains the shared model only, for tasks besides training."""
        sharing, tensors = self.recipe.sharing, self.tensors
        return {site: Message(sharing.outgoing(self.layout, tensors, self.cards[site].informs)) for site in sites}

    def is_admitted(self, site: SiteId, reply: Message) -> bool:
        """Return whether a reply is valid and contains a model; drop invalid ones."""
        if SILENT in reply.words:
            self.silent.append(site)
            return False
        card = self.cards[site]
        expected = {**self.reply_format.specs(card, self.state), **self.recipe.exchange.reply_specs(self, card)}
        problem = find_problem(reply, expected, self.run, self.state.round + 1, card.samples)
        if problem:
            self.drop(site, "train", problem.tensor, problem.reason)
        return problem is None

    def admit(self, answers: dict[SiteId, Message]) -> Replies | None:
        """Return the valid replies after attack and admission steps; None if there is none."""
        valid = {site: reply for site, reply in answers.items() if self.is_admitted(site, reply)}
        self.replies = self._stack(valid) if valid else None
        if self.replies is not None and self.attack is not None:
            self.replies = self.attack.apply(self, self.replies)
        if self.replies is not None:
            self.replies = self.norms.admit(self.replies)
        for step in self.recipe.admit:
            if self.replies is not None and len(self.replies):
                self.replies = step(self, self.replies)
        return self.replies

    def admit_figures(self, answers: dict[SiteId, Message], task: str = "evaluate") -> dict[SiteId, Message]:
        """Return the valid replies to a task that measures figures."""
        return self.reported.admit(answers, task)

    def combine(self, replies: Replies | None) -> None:
        """Aggregate the replies into the next model; without replies it does not change."""
        if replies is None or len(replies) == 0 or self.recipe.aggregator is None:
            return
        try:
            model = self.recipe.aggregator(replies)
        except TooFewSitesError as error:
            self.drop("", "combine", "", f"{error}; the model was not updated")
            return
        self.adopt(model, self.counters_of(replies.messages[0]))

    def adopt(self, model: Tensor, counters: dict[str, Tensor]) -> None:
        """Replace the model by an aggregated one if that is finite."""
        if not all_finite(model):
            broken = next(n for n, t in self.layout.named(model).items() if not all_finite(t))
            self.drop("", "combine", broken, "the aggregated model is not finite, so the model was not updated")
            return
        self.state.model = model
        # Counters are not averaged: with a fixed momentum their value is irrelevant.
        self.state.counters = counters

    def counters_of(self, reply: Message) -> dict[str, Tensor]:
        """Return the counters in a reply, or the server's if it has none."""
        counters = self.state.counters.items()
        return {name: reply.tensors.get(f"{MODEL}/{name}", value).clone() for name, value in counters}

    def _stack(self, replies: dict[SiteId, Message]) -> Replies:
        matrix = torch.empty(len(replies), self.layout.size)
        for row, (site, reply) in zip(matrix, sorted(replies.items()), strict=True):
            self.flat(site, reply, row)
        return replace(self.reply_table(replies), matrix=matrix, started=self._received_models(sorted(replies)))

    def _received_models(self, sites: list[SiteId]) -> Tensor | None:
        """Return the received models, (sites, parameters); None if they are equal or no step needs them."""
        if self.attack is None and not any(getattr(step, "reads_updates", False) for step in self.recipe.admit):
            return None
        extras = [self.recipe.exchange.brief_for(self, self.cards[site]) for site in sites]
        if not any(message.select(self.recipe.sharing.prefix) for message in extras):
            return None
        return torch.stack([self.flat(site, message) for site, message in zip(sites, extras, strict=True)])

    def reply_table(self, answers: Mapping[SiteId, Message]) -> Replies:
        """Return the replies as a table whose matrix has no columns yet.

        Its weights are the sample counts in replies to `train`; replies to other tasks may have none.
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
        """Return the flat vector of a reply; values that the site did not send are the server's."""
        return self.reply_format.flatten(reply, self.cards[site].informs, self.state, out)

    def warn(self, text: str) -> None:
        """Warn the operator once per run, in the log, the summary and the report."""
        if text not in self.warnings:
            self.warnings.append(text)

    def drop(self, site: SiteId, task: str, tensor: str, reason: str, trace: str = "") -> None:
        """Record that a reply of a site was not used."""
        self.dropped.append(Dropped(self.state.round + 1, site, task, tensor, reason, trace))
