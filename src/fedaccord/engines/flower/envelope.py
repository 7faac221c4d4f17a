"""What crosses the wire in Flower's own form: one record of bytes and words, no pickle.

    question  task, run, site | brief: a message's bytes | version, keep: which memory the site works with
    answer    site            | reply: a message's bytes | version: the memory it made     or   reason: why it has none

A message travels as the bytes `to_bytes` makes of it, the form in which it also rests on a disk: what arrives is what
was sent to the last bit. `memory` replaces the versions where the engine keeps the sites' memories itself.
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
    """Put words and bytes into Flower's record."""
    return RecordDict({_RECORD: ConfigRecord(dict(fields))})


def open_sealed(content: Any) -> Fields:
    """Take out what `seal` put in; whatever else somebody sent is a `MessageError`."""
    record = content.get(_RECORD) if isinstance(content, RecordDict) else None
    if not isinstance(record, ConfigRecord):
        raise MessageError("not an answer of a FedAccord site")
    fields: Fields = {}
    for name, value in record.items():
        if not isinstance(value, str | bytes):
            raise MessageError(f"'{name}' of an answer is a {type(value).__name__}, not text or bytes")
        fields[name] = value
    return fields


def text(fields: Fields, name: str) -> str:
    """Return one word of an envelope, empty where it is missing."""
    value = fields.get(name, "")
    return value if isinstance(value, str) else ""


def data(fields: Fields, name: str) -> bytes:
    """Return the bytes under a name; none is a `MessageError`."""
    value = fields.get(name)
    if not isinstance(value, bytes):
        raise MessageError(f"the answer holds no {name}")
    return value


def own(message: Message) -> Message:
    """Return a decoded message with its tensors in memory of their own.

    Decoded tensors lie where the bytes put them, and a sum over memory that is aligned otherwise may round otherwise.
    """
    return dataclasses.replace(message, tensors={name: tensor.clone() for name, tensor in message.tensors.items()})
