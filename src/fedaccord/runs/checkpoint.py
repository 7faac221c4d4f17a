"""Checkpoints: one message with the server's state and all sites' memories."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from fedaccord.errors import MessageError, RunFolderError
from fedaccord.messages.message import Message, SiteId, from_bytes, to_bytes

FORMAT = 1
_DIGEST = 32  # bytes of the SHA-256 digest before the message, which detects damaged files


def pack(state: Message, memories: Mapping[SiteId, Message]) -> Message:
    """Combine state and memories into one message; sites are numbered, because names may contain any character."""
    whole = Message(numbers={"format": FORMAT})
    parts = {"state": state} | {f"site-{i}": memories[site] for i, site in enumerate(sorted(memories))}
    for prefix, part in parts.items():
        whole.put(prefix, part.tensors)
        whole.numbers.update({f"{prefix}/{name}": value for name, value in part.numbers.items()})
        whole.words.update({f"{prefix}/{name}": value for name, value in part.words.items()})
    whole.words.update({f"name/site-{i}": site for i, site in enumerate(sorted(memories))})
    return whole


def unpack(whole: Message) -> tuple[Message, dict[SiteId, Message]]:
    """Return the state and memories of a message that `pack` made."""
    if whole.numbers.get("format") != FORMAT:
        raise RunFolderError(
            f"the checkpoint has format {whole.numbers.get('format')}, but this version reads format {FORMAT}"
        )

    def part(prefix: str) -> Message:
        start = len(prefix) + 1
        return Message(
            whole.select(prefix),
            {name[start:]: value for name, value in whole.numbers.items() if name.startswith(prefix + "/")},
            {name[start:]: value for name, value in whole.words.items() if name.startswith(prefix + "/")},
        )

    names = {key.removeprefix("name/"): site for key, site in whole.words.items() if key.startswith("name/")}
    return part("state"), {site: part(prefix) for prefix, site in names.items()}


def seal(whole: Message) -> bytes:
    """Return the bytes of a checkpoint file."""
    data = to_bytes(whole)
    return hashlib.sha256(data).digest() + data


def unseal(data: bytes) -> Message:
    """Decode the output of `seal`; raise MessageError for a truncated or altered file."""
    digest, rest = data[:_DIGEST], data[_DIGEST:]
    if hashlib.sha256(rest).digest() != digest:
        raise MessageError("its content does not match its digest")
    return from_bytes(rest)


def read_checkpoint(path: Path) -> tuple[Message, dict[SiteId, Message]]:
    """Read a checkpoint file."""
    try:
        whole = unseal(path.read_bytes())
    except OSError as error:
        raise RunFolderError(f"the checkpoint '{path}' cannot be read: {error.strerror}") from None
    except MessageError as error:
        raise RunFolderError(f"the checkpoint '{path}' is damaged: {error}") from None
    return unpack(whole)
