"""The one thing that crosses the boundary between server and site."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field

import torch
from safetensors import SafetensorError
from safetensors.torch import load as safetensors_load
from safetensors.torch import save as safetensors_save
from torch import Tensor

from fedaccord.errors import MessageError

SiteId = str
Number = int | float
_EMPTY = "fedaccord.empty"  # safetensors refuses a file without tensors


@dataclass
class Message:
    """Named tensors, numbers and short strings, and nothing else."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    numbers: dict[str, Number] = field(default_factory=dict)
    words: dict[str, str] = field(default_factory=dict)

    def is_empty(self) -> bool:
        """Say whether there is nothing in it."""
        return not (self.tensors or self.numbers or self.words)

    def select(self, prefix: str) -> dict[str, Tensor]:
        """Return the tensors under `prefix/`, with the prefix taken off."""
        return {name[len(prefix) + 1 :]: t for name, t in self.tensors.items() if name.startswith(prefix + "/")}

    def put(self, prefix: str, tensors: dict[str, Tensor]) -> None:
        """Add tensors under `prefix/`."""
        self.tensors.update({f"{prefix}/{name}": t for name, t in tensors.items()})


@dataclass(frozen=True)
class Failure:
    """A site that gave no reply: who, at which task, why; `trace` is for the log only."""

    site: SiteId
    task: str
    reason: str
    trace: str = ""


def to_bytes(message: Message) -> bytes:
    """Encode a message as one safetensors document whose header carries numbers and words as JSON."""
    tensors = {name: t.detach().cpu().contiguous() for name, t in message.tensors.items()}
    header = {"numbers": _json(message.numbers), "words": json.dumps(message.words)}
    return safetensors_save(tensors or {_EMPTY: torch.zeros(0)}, metadata=header)


def from_bytes(data: bytes) -> Message:
    """Decode what `to_bytes` made; anything else is a MessageError. No pickle is ever involved."""
    try:
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + size])["__metadata__"]
        tensors = safetensors_load(data)
        tensors.pop(_EMPTY, None)
        return Message(tensors, json.loads(header["numbers"]), json.loads(header["words"]))
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise MessageError(f"not a FedAccord message: {error}") from None


def _json(numbers: dict[str, Number]) -> str:
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise MessageError(f"number '{name}' of a message is a {type(value).__name__}, not an int or a float")
    return json.dumps({k: v if math.isfinite(v) else float(v) for k, v in numbers.items()})
