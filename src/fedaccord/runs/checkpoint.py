"""A checkpoint is one message: the server's state and every site's memory."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from fedaccord.errors import MessageError, RunFolderError
from fedaccord.messages.message import Message, SiteId, from_bytes, to_bytes

FORMAT = 1
_DIGEST = 32  # bytes of SHA-256 in front of a checkpoint, so that damage anywhere is noticed


def pack(state: Message, memories: Mapping[SiteId, Message]) -> Message:
    """Put state and memories into one message; sites are numbered, so that a name may hold any character."""
    whole = Message(numbers={"format": FORMAT})
    parts = {"state": state} | {f"site-{i}": memories[site] for i, site in enumerate(sorted(memories))}
    for prefix, part in parts.items():
        whole.put(prefix, part.tensors)
        whole.numbers.update({f"{prefix}/{name}": value for name, value in part.numbers.items()})
        whole.words.update({f"{prefix}/{name}": value for name, value in part.words.items()})
    whole.words.update({f"name/site-{i}": site for i, site in enumerate(sorted(memories))})
    return whole


def unpack(whole: Message) -> tuple[Message, dict[SiteId, Message]]:
    """Take apart what `pack` made."""
    if whole.numbers.get("format") != FORMAT:
        raise RunFolderError(f"the checkpoint has format {whole.numbers.get('format')}, this version reads {FORMAT}")

    def part(prefix: str) -> Message:
        cut = len(prefix) + 1
        return Message(
            whole.select(prefix),
            {name[cut:]: value for name, value in whole.numbers.items() if name.startswith(prefix + "/")},
            {name[cut:]: value for name, value in whole.words.items() if name.startswith(prefix + "/")},
        )

    names = {key.removeprefix("name/"): site for key, site in whole.words.items() if key.startswith("name/")}
    return part("state"), {site: part(prefix) for prefix, site in names.items()}


def seal(whole: Message) -> bytes:
    """Return the bytes of a checkpoint file."""
    data = to_bytes(whole)
    return hashlib.sha256(data).digest() + data


def unseal(data: bytes) -> Message:
    """Read what `seal` made; a file that was cut or altered is refused."""
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
