"""A site's host, kept ready: Flower starts a process for every question, and torch alone takes it seconds to import.

    ClientApp --question--> keeper.sock --> host --> answer        (or the ClientApp does it itself, if nobody is there)

The socket lies in the site's folder, for its owner alone. What passes is the same words and bytes as on the wire.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path

from fedaccord.engines.flower.envelope import Fields
from fedaccord.errors import EngineError

_LENGTH = struct.Struct("<Q")
_LONGEST = 100  # bytes in the path of a socket; the kernel takes 107


def keep(folder: Path, answer: Callable[[Fields], Fields]) -> None:
    """Answer questions one after the other, for ever."""
    path = _socket(folder)
    if path is None:
        return
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    before = os.umask(0o177)
    try:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(new))
    finally:
        os.umask(before)
    with listener:
        listener.listen()
        new.replace(path)  # whoever finds it is heard
        while True:
            asker, _ = listener.accept()
            with asker, contextlib.suppress(OSError):  # a process that was ended needs no answer
                asker.sendall(_pack(answer(_unpack(asker))))


def ask_keeper(folder: Path, question: Fields) -> Fields | None:
    """Have the keeper answer; None if there is none. One that breaks down over the question is an `EngineError`."""
    path = _socket(folder)
    if path is None or not path.exists():
        return None
    with socket.socket(socket.AF_UNIX) as asker:
        try:
            asker.connect(str(path))
        except OSError:
            return None  # left behind by a keeper that is gone
        try:
            asker.sendall(_pack(question))
            return _unpack(asker)
        except OSError:
            raise EngineError("the process that keeps the site's host ready broke down over it") from None


def _socket(folder: Path) -> Path | None:
    path = folder / "keeper.sock"
    return path if hasattr(socket, "AF_UNIX") and len(os.fsencode(path)) <= _LONGEST else None


def _pack(fields: Fields) -> bytes:
    parts = [value.encode() if isinstance(value, str) else value for value in fields.values()]
    values = zip(fields.items(), parts, strict=True)
    told = [[name, isinstance(value, str), len(part)] for (name, value), part in values]
    header = json.dumps(told).encode()
    return b"".join([_LENGTH.pack(len(header)), header, *parts])


def _unpack(source: socket.socket) -> Fields:
    with source.makefile("rb") as file:

        def exactly(length: int) -> bytes:
            data = file.read(length)
            if len(data) < length:
                raise ConnectionError
            return data

        header = json.loads(exactly(_LENGTH.unpack(exactly(_LENGTH.size))[0]))
        fields: Fields = {}
        for name, is_text, length in header:
            data = exactly(length)
            fields[name] = data.decode() if is_text else data
        return fields
