"""The message type that server and sites exchange, and its encoding."""

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
from fedaccord.plain_text import one_line

SiteId = str
Number = int | float
_HEADER = "fedaccord"
_EMPTY = "fedaccord.empty"  # safetensors refuses a file without tensors
# Dtypes with their safetensors names, in reverse of the order in which safetensors writes them.
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
    """Named tensors, numbers and short strings."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    numbers: dict[str, Number] = field(default_factory=dict)
    words: dict[str, str] = field(default_factory=dict)

    def is_empty(self) -> bool:
        """Return whether the message has no content."""
        return not (self.tensors or self.numbers or self.words)

    def select(self, prefix: str) -> dict[str, Tensor]:
        """Return the tensors under `prefix/`, named without the prefix."""
        return {name[len(prefix) + 1 :]: t for name, t in self.tensors.items() if name.startswith(prefix + "/")}

    def put(self, prefix: str, tensors: dict[str, Tensor]) -> None:
        """Add tensors under `prefix/`."""
        self.tensors.update({f"{prefix}/{name}": t for name, t in tensors.items()})


@dataclass(frozen=True)
class Failure:
    """A task for which a site gave no reply; `trace` is for the log only.

    The reason may be text from the site, so it is reduced to one line.
    """

    site: SiteId
    task: str
    reason: str
    trace: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", one_line(self.reason))


def to_bytes(message: Message) -> bytes:
    """Encode a message as one safetensors document, with numbers and words as JSON in its header."""
    _check_content(message.tensors.keys(), message.numbers, message.words)
    # A single entry, because safetensors writes several in random order and equal messages must give equal bytes.
    header = {_HEADER: json.dumps({"numbers": message.numbers, "words": message.words})}
    return safetensors_save(_unshared(message.tensors) or {_EMPTY: torch.zeros(0)}, metadata=header)


def encoded_size(message: Message) -> int:
    """Return the number of bytes that `to_bytes` would produce, without encoding the message."""
    form = tuple([(name, tensor.dtype, tensor.shape) for name, tensor in message.tensors.items()])
    try:
        table, data = _form_size(form)
    except KeyError:  # a dtype that is not in _KINDS
        return len(to_bytes(message))
    inner = json.dumps({"numbers": message.numbers, "words": message.words})
    header = table + len(inner) + inner.count('"') + inner.count("\\") + len('""')  # escaped a second time
    return 8 + -(-header // 8) * 8 + data  # length field, header padded to a multiple of 8, tensors


@lru_cache(maxsize=4096)  # the messages of a round have few distinct forms
def _form_size(form: tuple[tuple[str, torch.dtype, tuple[int, ...]], ...]) -> tuple[int, int]:
    """Return the length in bytes of a header without the message's JSON, and of the tensors."""
    table: dict[str, Any] = {"__metadata__": {_HEADER: ""}}
    end = 0
    for name, dtype, shape in sorted(form or ((_EMPTY, torch.float32, (0,)),), key=lambda t: (-_RANK[t[1]], t[0])):
        start, end = end, end + math.prod(shape) * dtype.itemsize
        table[name] = {"dtype": _KINDS[_RANK[dtype]][1], "shape": list(shape), "data_offsets": [start, end]}
    return len(json.dumps(table, separators=(",", ":"), ensure_ascii=False).encode()) - len('""'), end


def from_bytes(data: bytes) -> Message:
    """Decode the output of `to_bytes`; raise MessageError for anything else. Pickle is never used."""
    try:
        size = int.from_bytes(data[:8], "little")
        header = json.loads(json.loads(data[8 : 8 + size])["__metadata__"][_HEADER])
        numbers, words = header["numbers"], header["words"]
        tensors = dict(sorted(safetensors_load(data).items()))  # safetensors returns them in random order
        tensors.pop(_EMPTY, None)
        _check_content(tensors.keys(), numbers, words)
        return Message(tensors, numbers, words)
    except (SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise MessageError(f"not a FedAccord message: {error}") from None


def _check_content(tensors: Iterable[str], numbers: Any, words: Any) -> None:
    """Raise MessageError for forbidden content; decoded messages are untrusted."""
    for name in {_EMPTY, "__metadata__"}.intersection(tensors):
        raise MessageError(f"a tensor of a message cannot be named '{name}'")
    if not isinstance(numbers, dict) or not isinstance(words, dict):
        raise MessageError("the numbers and the words of a message must be tables")
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise MessageError(f"number '{name}' of a message is a {type(value).__name__}, not an int or a float")
    for name, value in words.items():
        if not isinstance(value, str):
            raise MessageError(f"word '{name}' of a message is a {type(value).__name__}, not a string")


def _unshared(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors with separate storages, because safetensors rejects shared ones."""
    unshared, seen = {}, set()
    for name, tensor in tensors.items():
        flat = tensor.detach().cpu().contiguous()
        storage = flat.untyped_storage().data_ptr()
        unshared[name] = flat.clone() if storage in seen else flat
        seen.add(storage)
    return unshared
