"""The keeper, a process that keeps a site's host loaded.

Flower starts a process for every question, and importing torch alone takes it seconds.

    ClientApp --question--> keeper.sock --> host --> answer        (without a keeper the ClientApp runs the task itself)

The socket is in the site's folder and only its owner can use it. It carries the same fields as the network.
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
_LONGEST = 100  # bytes in the path of a socket; the kernel's limit is 107


def run_keeper(folder: Path, answer: Callable[[Fields], Fields]) -> None:
    """Answer questions in turn, without end."""
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
        new.replace(path)  # only now can clients find it
        while True:
            client, _ = listener.accept()
            with client, contextlib.suppress(OSError):  # the client may have ended
                client.sendall(_pack(answer(_unpack(client))))


def ask_keeper(folder: Path, question: Fields) -> Fields | None:
    """Return the keeper's answer, or None without a keeper; raise EngineError if the keeper crashes."""
    path = _socket(folder)
    if path is None or not path.exists():
        return None
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(str(path))
        except OSError:
            return None  # the socket of a keeper that has ended
        try:
            client.sendall(_pack(question))
            return _unpack(client)
        except OSError:
            raise EngineError("the process that keeps the site's host loaded crashed") from None


def _socket(folder: Path) -> Path | None:
    path = folder / "keeper.sock"
    return path if hasattr(socket, "AF_UNIX") and len(os.fsencode(path)) <= _LONGEST else None


def _pack(fields: Fields) -> bytes:
    parts = [value.encode() if isinstance(value, str) else value for value in fields.values()]
    values = zip(fields.items(), parts, strict=True)
    header = json.dumps([[name, isinstance(value, str), len(part)] for (name, value), part in values]).encode()
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
