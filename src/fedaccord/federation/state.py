"""Everything the server needs to go on after a crash."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedaccord.messages.message import Message


@dataclass
class RunState:
    """The model, the method's own state and the number of finished rounds.

    There is no random state: every stream is derived from the run's seed, a purpose, a site and a round.
    """

    model: Tensor  # the flat vector
    counters: dict[str, Tensor]  # integer buffers, which no average is taken of
    round: int = 0
    method: Message = field(default_factory=Message)

    def to_message(self) -> Message:
        """Return the state as one message, as a checkpoint stores it."""
        message = Message({"model": self.model}, {"round": self.round})
        message.put("counter", self.counters)
        message.put("method", self.method.tensors)
        message.numbers.update({f"method/{k}": v for k, v in self.method.numbers.items()})
        message.words.update({f"method/{k}": v for k, v in self.method.words.items()})
        return message

    @classmethod
    def from_message(cls, message: Message) -> RunState:
        """Read back what `to_message` made."""
        cut = len("method/")
        numbers = {k[cut:]: v for k, v in message.numbers.items() if k.startswith("method/")}
        words = {k[cut:]: v for k, v in message.words.items() if k.startswith("method/")}
        method = Message(message.select("method"), numbers, words)
        return cls(message.tensors["model"], message.select("counter"), int(message.numbers["round"]), method)


def model_digest(model: Tensor) -> str:
    """Return the SHA-256 of a flat vector: what parity tests compare."""
    return hashlib.sha256(model.detach().to(torch.float32).contiguous().cpu().numpy().tobytes()).hexdigest()
