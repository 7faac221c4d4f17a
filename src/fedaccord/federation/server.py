"""The server: what it knows of the sites, the model it holds, and what it does in a round's beats."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from fedaccord.aggregation.replies import Replies
from fedaccord.engines.engine import Engine
from fedaccord.errors import ConfigError, EngineError, did_you_mean
from fedaccord.federation.recipe import SILENT, Recipe
from fedaccord.federation.sharing import MODEL
from fedaccord.federation.state import RunState
from fedaccord.labels.space import LabelSpace
from fedaccord.messages.checks import (
    MOST_SAMPLES,
    TensorSpec,
    all_finite,
    find_answer_problem,
    find_figures_problem,
    find_problem,
)
from fedaccord.messages.message import Failure, Message, SiteId
from fedaccord.messages.names import POOL
from fedaccord.models.layout import Layout
from fedaccord.models.network import Network
from fedaccord.seeds import derive


@dataclass(frozen=True)
class SiteCard:
    """What the server knows of a site: sizes, kind of view, and which labels its annotations inform."""

    name: SiteId
    samples: int
    view: str
    informs: Tensor  # bool (labels,)


@dataclass(frozen=True)
class Dropped:
    """A reply that did not reach the model, and why."""

    round: int
    site: SiteId
    task: str
    tensor: str
    reason: str
    trace: str = ""

    def __str__(self) -> str:
        what = f"{self.tensor} {self.reason}".strip()
        who = f"site '{self.site}' dropped from {self.task}" if self.site else f"{self.task} had no effect"
        return f"round {self.round}: {who}: {what}"

    def account(self) -> dict[str, str | int]:
        """Return it as run folders write it."""
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
    deadline: float | None = None
    cards: dict[SiteId, SiteCard] = field(default_factory=dict)
    dropped: list[Dropped] = field(default_factory=list)
    told: int = 0  # how many of the drops a round's record has told
    replies: Replies | None = None  # of the round under way, for the steps that refine its result

    def __post_init__(self) -> None:
        self.layout = Layout.of(self.network)

    @property
    def is_whole(self) -> bool:
        """Whether the server's model is a trained whole: combined, and nothing of it kept at the sites."""
        shared = set(self.recipe.sharing.names(self.layout))
        return self.recipe.aggregator is not None and all(slot.name in shared for slot in self.layout.slots)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The current model by tensor names: views of the flat vector, and the counters."""
        return self.layout.named(self.state.model) | self.state.counters

    def load_network(self) -> Network:
        """Put the current model into the server's network and return it."""
        self.layout.load(self.network, self.state.model)
        return self.network

    def join(self) -> None:
        """Ask every site once who it is."""
        briefs = {site: self.address(Message(), 0) for site in self.engine.sites()}
        for site, reply in self.engine.ask("join", briefs, self.deadline).items():
            if isinstance(reply, Failure):
                self.drop(reply.site, "join", "", reply.reason, reply.trace)
                continue
            samples = reply.numbers.get("samples", -1)
            informs = reply.tensors.get("informs", torch.zeros(0))
            if not 0 <= samples <= MOST_SAMPLES:
                self.drop(site, "join", "samples", f"joined with {samples} samples")
                continue
            if informs.shape != (len(self.space),):
                shape = tuple(informs.shape)
                self.drop(site, "join", "informs", f"the shape is {shape}, but there are {len(self.space)} labels")
                continue
            self.cards[site] = SiteCard(site, int(samples), reply.words.get("view", ""), informs.bool())
        if not self.cards:
            reasons = "; ".join(sorted({d.reason for d in self.dropped}))
            raise EngineError(f"no site could join the federation: {reasons}")

    def trainers(self) -> list[SiteId]:
        """Return the sites that may train under this recipe: those asked for that have something to learn from."""
        wanted = self.recipe.settings.sites
        names = list(self.cards)
        if self.recipe.trains == "pool":
            names = [n for n in names if n == POOL]
        elif isinstance(wanted, list):
            for name in wanted:
                if name not in self.cards:
                    raise ConfigError(f"method.sites: there is no site '{name}'; {did_you_mean(name, self.cards)}")
            names = sorted(set(wanted))
        else:
            names = [n for n in names if n != POOL and (wanted == "all" or self.cards[n].view == wanted)]
        able = sorted(n for n in names if self.cards[n].samples > 0 and bool(self.cards[n].informs.any()))
        if not able:
            raise ConfigError("no site that may train has labelled samples")
        return able

    def draw(self) -> list[SiteId]:
        """Draw the sites of the coming round, seeded by run and round."""
        able = self.trainers()
        share = self.recipe.settings.participation
        # The small step back is for products such as 0.55 * 100, which floating point puts just above 55.
        number = share if isinstance(share, int) else max(1, math.ceil(share * len(able) - 1e-9))
        if number >= len(able):
            return able
        rng = np.random.default_rng(derive(self.seed, "participation", self.state.round + 1))
        return sorted(able[i] for i in rng.choice(len(able), number, replace=False))

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
        answers = {}
        round_ = self.state.round + 1
        replies = self.engine.ask(task, {s: self.address(b, round_) for s, b in briefs.items()}, self.deadline)
        for site in sorted(replies):
            reply = replies[site]
            if isinstance(reply, Failure):
                self.drop(site, task, "", reply.reason, reply.trace)
            elif expected is not None and (problem := find_answer_problem(reply, expected, self.run, round_)):
                self.drop(site, task, problem.tensor, problem.reason)
            else:
                answers[site] = reply
        return answers

    def brief(self, site: SiteId, tensors: dict[str, Tensor]) -> Message:
        """Return what one site is told: the shared model, and what the recipe adds."""
        recipe = self.recipe
        told = recipe.brief(self, self.cards[site]) if recipe.brief else Message()
        # A new message: a recipe may tell every site the same one, or something it keeps.
        shared = recipe.sharing.outgoing(self.layout, tensors, self.cards[site].informs)
        return Message(shared | told.tensors, dict(told.numbers), dict(told.words))

    def admit(self, answers: dict[SiteId, Message]) -> Replies | None:
        """Check every reply and gather the good ones; None when there is none."""
        recipe, tensors = self.recipe, self.tensors
        good: dict[SiteId, Message] = {}
        for site, reply in answers.items():
            if SILENT in reply.words:
                continue
            wanted = recipe.sharing.expected(self.layout, tensors, self.cards[site].informs)
            wanted |= recipe.extras(self, self.cards[site]) if recipe.extras else {}
            problem = find_problem(reply, wanted, self.run, self.state.round + 1, self.cards[site].samples)
            if problem:
                self.drop(site, "train", problem.tensor, problem.reason)
            else:
                good[site] = reply
        self.replies = self._gather(good) if good else None
        if self.replies is not None and recipe.defence:
            self.replies = recipe.defence(self, self.replies)
        return self.replies

    def admit_figures(self, answers: dict[SiteId, Message]) -> dict[SiteId, Message]:
        """Return the sites' answers to `evaluate` that can be written down as they are."""
        good = {}
        for site, answer in answers.items():
            problem = find_figures_problem(answer, self.run, self.state.round + 1)
            if problem:
                self.drop(site, "evaluate", problem.tensor, problem.reason)
            else:
                good[site] = answer
        return good

    def combine(self, replies: Replies | None) -> None:
        """Make the next model; without replies it stays as it is."""
        if replies is None or len(replies) == 0 or self.recipe.aggregator is None:
            return
        model = self.recipe.aggregator(replies)
        if not all_finite(model):
            broken = next(n for n, t in self.layout.named(model).items() if not all_finite(t))
            self.drop("", "combine", broken, "the combined model is not finite, so the old one is kept")
            return
        self.state.model = model
        # A counter cannot be averaged, and its value is irrelevant with fixed momentum: the first site's is taken.
        self.state.counters = {
            name: replies.messages[0].tensors.get(f"{MODEL}/{name}", old).clone()
            for name, old in self.state.counters.items()
        }

    def _gather(self, good: dict[SiteId, Message]) -> Replies:
        sites, sharing, tensors = tuple(sorted(good)), self.recipe.sharing, self.tensors
        at = {slot.name: slice(slot.start, slot.stop) for slot in self.layout.slots}
        matrix = torch.empty(len(sites), self.layout.size)
        if len(sharing.names(self.layout)) < len(at) + len(self.layout.counters):
            matrix[:] = self.state.model
        for row, site in enumerate(sites):
            whole = sharing.incoming(self.layout, good[site].tensors, tensors, self.cards[site].informs)
            for name, tensor in whole.items():
                if name in at:
                    matrix[row, at[name]] = tensor.reshape(-1)
        return Replies(
            sites=sites,
            messages=tuple(good[s] for s in sites),
            matrix=matrix,
            weights=torch.tensor([good[s].numbers["samples"] for s in sites], dtype=torch.float64),
            informs=torch.stack([self.cards[s].informs for s in sites]),
            previous=self.state.model,
            layout=self.layout,
        )

    def drop(self, site: SiteId, task: str, tensor: str, reason: str, trace: str = "") -> None:
        """Note that something of a site did not reach the model, and why."""
        self.dropped.append(Dropped(self.state.round + 1, site, task, tensor, reason, trace))

