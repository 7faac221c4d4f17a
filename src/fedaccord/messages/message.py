"""The one thing that crosses the boundary between server and site."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as safetensors_load
from safetensors.torch import save as safetensors_save
from torch import Tensor

from fedaccord.errors import MessageError

SiteId = str
Number = int | float
_HEADER = "fedaccord"
_EMPTY = "fedaccord.empty"  # safetensors refuses a file without tensors
_LONGEST_LINE = 500  # signs
# The order of a document's tensors, last kind first, and what each is called there.
_KINDS = (
    (torch.bool, "BOOL"),
    (torch.uint8, "U8"),
    (torch.int8, "I8"),
    (torch.float8_e5m2, "F8_E5M2"),
    (torch.float8_e4m3fn, "F8_E4M3"),
    (torch.int16, "I16"),
    (torch.uint16, "U16"),
    (torch.float16, "F16"),
    (torch.bfloat16, "BF16"),
    (torch.int32, "I32"),
    (torch.uint32, "U32"),
    (torch.float32, "F32"),
    (torch.complex64, "C64"),
    (torch.float64, "F64"),
    (torch.int64, "I64"),
    (torch.uint64, "U64"),
)
_RANK = {dtype: rank for rank, (dtype, _) in enumerate(_KINDS)}


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
    """A site that gave no reply: who, at which task, why; `trace` is for the log only.

    The reason may be a site's own words, so it is made one line.
    """

    site: SiteId
    task: str
    reason: str
    trace: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", one_line(self.reason))


def one_line(text: str) -> str:
    """Make what may be a site's own words one line of readable text, cut where it is long.

    So it can be written to any file, and cannot pass for another line of the log.
    """
    line = " ".join("".join(sign if sign.isprintable() else " " for sign in text[: 8 * _LONGEST_LINE]).split())
    return line if len(line) <= _LONGEST_LINE else line[: _LONGEST_LINE - 1] + "…"


def to_bytes(message: Message) -> bytes:
    """Encode a message as one safetensors document whose header carries numbers and words as JSON."""
    _check_content(message.tensors.keys(), message.numbers, message.words)
    # One entry only: safetensors writes several in a random order, and equal messages are to be equal bytes.
    header = {_HEADER: json.dumps({"numbers": message.numbers, "words": message.words})}
    return safetensors_save(_apart(message.tensors) or {_EMPTY: torch.zeros(0)}, metadata=header)


def encoded_size(message: Message) -> int:
    """Return how many bytes `to_bytes` makes of a message, without making them."""
    form = tuple([(name, tensor.dtype, tensor.shape) for name, tensor in message.tensors.items()])
    try:
        table, data = _form_size(form)
    except KeyError:  # of a dtype whose place in a document we do not know
        return len(to_bytes(message))
    inner = json.dumps({"numbers": message.numbers, "words": message.words})
    header = table + len(inner) + inner.count('"') + inner.count("\\") + len('""')  # as JSON writes it once more
    return 8 + -(-header // 8) * 8 + data  # the header's length, the header filled up to a multiple of 8, the tensors


@lru_cache(maxsize=4096)  # a round's messages have few forms
def _form_size(form: tuple[tuple[str, torch.dtype, tuple[int, ...]], ...]) -> tuple[int, int]:
    """Return the length of a header without our own entry, and that of the tensors behind it."""
    table: dict[str, Any] = {"__metadata__": {_HEADER: ""}}
    end = 0
    for name, dtype, shape in sorted(form or ((_EMPTY, torch.float32, (0,)),), key=lambda t: (-_RANK[t[1]], t[0])):
        start, end = end, end + math.prod(shape) * dtype.itemsize
        table[name] = {"dtype": _KINDS[_RANK[dtype]][1], "shape": list(shape), "data_offsets": [start, end]}
    return len(json.dumps(table, separators=(",", ":"), ensure_ascii=False).encode()) - len('""'), end


def from_bytes(data: bytes) -> Message:
    """Decode what `to_bytes` made; anything else is a MessageError. No pickle is ever involved."""
    try:
        size = int.from_bytes(data[:8], "little")
        header = json.loads(json.loads(data[8 : 8 + size])["__metadata__"][_HEADER])
        numbers, words = header["numbers"], header["words"]
        tensors = dict(sorted(safetensors_load(data).items()))  # they come in a random order
        tensors.pop(_EMPTY, None)
        _check_content(tensors.keys(), numbers, words)
        return Message(tensors, numbers, words)
    except (SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise MessageError(f"not a FedAccord message: {error}") from None


def _check_content(tensors: Iterable[str], numbers: Any, words: Any) -> None:
    """Refuse what a message may not hold; what was decoded was written by somebody else, so nothing is sure."""
    for name in {_EMPTY, "__metadata__"}.intersection(tensors):
        raise MessageError(f"a tensor of a message cannot be named '{name}'")
    if not isinstance(numbers, dict) or not isinstance(words, dict):
        raise MessageError("the numbers and the words of a message are tables")
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise MessageError(f"number '{name}' of a message is a {type(value).__name__}, not an int or a float")
    for name, value in words.items():
        if not isinstance(value, str):
            raise MessageError(f"word '{name}' of a message is a {type(value).__name__}, not a string")


def _apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors with memory of their own: safetensors refuses two names for one memory."""
    apart, seen = {}, set()
    for name, tensor in tensors.items():
        flat = tensor.detach().cpu().contiguous()
        memory = flat.untyped_storage().data_ptr()
        apart[name] = flat.clone() if memory in seen else flat
        seen.add(memory)
    return apart
