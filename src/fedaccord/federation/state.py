"""The state of a run at the server, from which it can be resumed."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from fedaccord.messages.message import Message, SiteId
from fedaccord.models.layout import Layout
from fedaccord.plain_text import one_line

MEANING, UNKNOWN = "meaning", "unknown"  # the word of a card whose coarse names have no declared correspondence


@dataclass(frozen=True)
class SiteCard:
    """The server's knowledge of a site: sample count, kind of view, and the labels that its annotations inform."""

    name: SiteId
    samples: int
    view: str
    informs: Tensor  # bool (labels,)
    names: str = ""  # of a coarse site: number and digest of its names, e.g. "10:0f3a"
    unexplained: bool = False  # a coarse site that does not declare what its names stand for

    @cached_property
    def teaches(self) -> bool:
        """Whether the site's annotations inform any label."""
        return bool(self.informs.any())

    def is_same(self, other: SiteCard) -> bool:
        """Return whether two cards are equal."""
        first, second = ((c.name, c.samples, c.view, c.names, c.unexplained, c.informs.tolist()) for c in (self, other))
        return first == second

    @property
    def answers(self) -> int:
        """Number of coarse names; 0 for sites without."""
        return int(self.names.partition(":")[0] or 0)


@dataclass(frozen=True)
class Dropped:
    """A reply that was not used, and the reason; text from the site is reduced to one line."""

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
        what = f"{self.tensor}: {self.reason}".removeprefix(": ")
        who = f"site '{self.site}' dropped from {self.task}" if self.site else f"{self.task} had no effect"
        return f"round {self.round}: {who}: {what}"

    def as_dict(self) -> dict[str, str | int]:
        """Return the fields as written to run folders."""
        return {"round": self.round, "site": self.site, "task": self.task, "tensor": self.tensor, "reason": self.reason}


@dataclass
class RunState:
    """The model, the state of the method, the number of finished rounds and the cards of all sites so far.

    There is no random state: every generator is seeded by the run's seed, a purpose, a site and a round.
    """

    model: Tensor  # flat vector, (parameters,)
    counters: dict[str, Tensor]  # integer buffers, which are not averaged
    round: int = 0
    method: Message = field(default_factory=Message)
    cards: dict[SiteId, SiteCard] = field(default_factory=dict)  # including sites that have left

    def tensors(self, layout: Layout) -> dict[str, Tensor]:
        """Return the model by tensor name: views of the flat vector, and the counters."""
        return layout.named(self.model) | self.counters

    def snapshot(self) -> RunState:
        """Return a shallow copy: a round replaces tensors and never modifies them."""
        method = Message(dict(self.method.tensors), dict(self.method.numbers), dict(self.method.words))
        return RunState(self.model, dict(self.counters), self.round, method, dict(self.cards))

    def to_message(self) -> Message:
        """Return the state as one message, for a checkpoint."""
        message = Message({"model": self.model}, {"round": self.round})
        message.put("counter", self.counters)
        message.put("method", self.method.tensors)
        message.numbers.update({f"method/{k}": v for k, v in self.method.numbers.items()})
        message.words.update({f"method/{k}": v for k, v in self.method.words.items()})
        message.put("card", {site: card.informs for site, card in self.cards.items()})
        message.numbers.update({f"card/{site}": card.samples for site, card in self.cards.items()})
        message.words.update({f"card/{site}": card.view for site, card in self.cards.items()})
        message.words.update({f"names/{site}": card.names for site, card in self.cards.items() if card.names})
        message.words.update({f"{MEANING}/{site}": UNKNOWN for site, card in self.cards.items() if card.unexplained})
        return message

    @classmethod
    def from_message(cls, message: Message) -> RunState:
        """Return the state from a message of `to_message`."""
        cut = len("method/")
        numbers = {k[cut:]: v for k, v in message.numbers.items() if k.startswith("method/")}
        words = {k[cut:]: v for k, v in message.words.items() if k.startswith("method/")}
        method = Message(message.select("method"), numbers, words)
        cards = {
            site: SiteCard(
                site,
                int(message.numbers[f"card/{site}"]),
                message.words[f"card/{site}"],
                informs,
                message.words.get(f"names/{site}", ""),
                f"{MEANING}/{site}" in message.words,
            )
            for site, informs in sorted(message.select("card").items())
        }
        return cls(message.tensors["model"], message.select("counter"), int(message.numbers["round"]), method, cards)


def model_digest(model: Tensor) -> str:
    """Return the SHA-256 digest of a flat vector, for comparisons of bits."""
    return hashlib.sha256(model.detach().to(torch.float32).contiguous().cpu().numpy().tobytes()).hexdigest()
