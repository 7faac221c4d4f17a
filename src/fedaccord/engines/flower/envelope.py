"""Messages as Flower records: one record of bytes and strings, without pickle.

    question  task, run, site | brief: a message's bytes | version: memory to start from, keep: memories to keep
    answer    site            | reply: a message's bytes | version: the new memory     or   reason: why it failed

A message is sent as the output of `to_bytes`, so it arrives bit for bit. `memory` replaces the versions if the engine
stores the sites' memories.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from flwr.app import ConfigRecord, RecordDict

from fedaccord.errors import MessageError

if TYPE_CHECKING:
    from fedaccord.messages.message import Message

WHO, TASK = "query.who", "train.task"  # Flower's message types
_RECORD = "fedaccord"
Fields = dict[str, str | bytes]


def seal(fields: Fields) -> RecordDict:
    """Return a Flower record of the fields."""
    return RecordDict({_RECORD: ConfigRecord(dict(fields))})


def open_sealed(content: Any) -> Fields:
    """Return the fields of a record that `seal` made; raise MessageError for anything else."""
    record = content.get(_RECORD) if isinstance(content, RecordDict) else None
    if not isinstance(record, ConfigRecord):
        raise MessageError("the answer is not from a FedAccord site")
    fields: Fields = {}
    for name, value in record.items():
        if not isinstance(value, str | bytes):
            raise MessageError(f"field '{name}' of an answer is a {type(value).__name__}, not a string or bytes")
        fields[name] = value
    return fields


def text(fields: Fields, name: str) -> str:
    """Return a field as a string, empty if it is missing."""
    value = fields.get(name, "")
    return value if isinstance(value, str) else ""


def data(fields: Fields, name: str) -> bytes:
    """Return a field as bytes; raise MessageError if it is missing."""
    value = fields.get(name)
    if not isinstance(value, bytes):
        raise MessageError(f"the answer has no {name}")
    return value


def cloned(message: Message) -> Message:
    """Return a decoded message with cloned tensors.

    Decoded tensors may be unaligned, and the rounding of a sum depends on alignment.
    """
    return dataclasses.replace(message, tensors={name: tensor.clone() for name, tensor in message.tensors.items()})
