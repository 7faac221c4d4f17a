"""Everything the server needs to go on after a crash."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from fedaccord.messages.message import Message, SiteId


@dataclass(frozen=True)
class SiteCard:
    """What the server knows of a site: sizes, kind of view, and which labels its annotations inform."""

    name: SiteId
    samples: int
    view: str
    informs: Tensor  # bool (labels,)
    names: str = ""  # of a coarse site: how many names it uses, and a digest of them, as in "10:0f3a"

    @cached_property
    def teaches(self) -> bool:
        """Whether the site's annotations inform any label."""
        return bool(self.informs.any())

    def is_same(self, other: SiteCard) -> bool:
        """Say whether two cards say the same of a site."""
        ours, theirs = ((c.name, c.samples, c.view, c.names, c.informs.tolist()) for c in (self, other))
        return ours == theirs

    @property
    def answers(self) -> int:
        """How many coarse names the site uses; 0 for any other."""
        return int(self.names.partition(":")[0] or 0)


@dataclass
class RunState:
    """The model, the method's own state, the number of finished rounds, and who has joined so far.

    There is no random state: every stream is derived from the run's seed, a purpose, a site and a round.
    """

    model: Tensor  # the flat vector
    counters: dict[str, Tensor]  # integer buffers, which no average is taken of
    round: int = 0
    method: Message = field(default_factory=Message)
    cards: dict[SiteId, SiteCard] = field(default_factory=dict)  # also of sites that have left since

    def snapshot(self) -> RunState:
        """Return the state as it is now; a round replaces tensors and never writes into them."""
        method = Message(dict(self.method.tensors), dict(self.method.numbers), dict(self.method.words))
        return RunState(self.model, dict(self.counters), self.round, method, dict(self.cards))

    def to_message(self) -> Message:
        """Return the state as one message, as a checkpoint stores it."""
        message = Message({"model": self.model}, {"round": self.round})
        message.put("counter", self.counters)
        message.put("method", self.method.tensors)
        message.numbers.update({f"method/{k}": v for k, v in self.method.numbers.items()})
        message.words.update({f"method/{k}": v for k, v in self.method.words.items()})
        message.put("card", {site: card.informs for site, card in self.cards.items()})
        message.numbers.update({f"card/{site}": card.samples for site, card in self.cards.items()})
        message.words.update({f"card/{site}": card.view for site, card in self.cards.items()})
        message.words.update({f"names/{site}": card.names for site, card in self.cards.items() if card.names})
        return message

    @classmethod
    def from_message(cls, message: Message) -> RunState:
        """Read back what `to_message` made."""
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
            )
            for site, informs in sorted(message.select("card").items())
        }
        return cls(message.tensors["model"], message.select("counter"), int(message.numbers["round"]), method, cards)


def model_digest(model: Tensor) -> str:
    """Return the SHA-256 of a flat vector: what parity tests compare."""
    return hashlib.sha256(model.detach().to(torch.float32).contiguous().cpu().numpy().tobytes()).hexdigest()
