"""A site's node: keeps Flower's SuperNode running and the site's host loaded until a signal ends it.

    python -m fedaccord.engines.flower.node SITE_FOLDER

The folder's `link.json` has the server's address and the port of the loopback interface for the node.

The SuperNode is a process of its own, which is restarted if it ends. The node also runs the keeper, which keeps the
host loaded meanwhile:

    SuperNode --question--> keeper.sock --> host --> answer        (without a keeper the SuperNode runs the task itself)

The socket is in the site's folder and only its owner can use it. It carries the same fields as the network.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from fedaccord.engines.flower.environment import flower_environment
from fedaccord.engines.flower.site_folder import SiteFolder
from fedaccord.errors import EngineError

if TYPE_CHECKING:
    from fedaccord.engines.flower.envelope import Fields

_RETRY = 15.0  # seconds; after a crash the server lists the old node for a minute and rejects the new one
_LENGTH = struct.Struct("<Q")
_LONGEST = 100  # bytes in the path of a socket; the kernel's limit is 107


def main() -> None:
    """Run a site's node."""
    folder = SiteFolder.open(Path(sys.argv[1]).resolve())
    os.environ.update(flower_environment(folder.path))
    ending = threading.Event()
    node: list[subprocess.Popen[bytes]] = []

    def end(number: int, frame: FrameType | None) -> None:
        ending.set()
        for process in node:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    threading.Thread(target=_run_keeper, args=(folder,), daemon=True).start()
    command = [sys.executable, "-m", "fedaccord.engines.flower.supernode", str(folder.path)]
    while not ending.is_set():
        node[:] = [subprocess.Popen(command, stdin=subprocess.DEVNULL)]
        code = node[0].wait()
        if not ending.is_set():
            retry = float(os.environ.get("RETRY_SECONDS", _RETRY))
            folder.log(f"the node ended with exit code {code}; it restarts in {retry:g} s")
            ending.wait(retry)


def _run_keeper(folder: SiteFolder) -> None:
    from fedaccord.engines.flower.client import answer

    # Opened again for each question, because its owner may have rewritten it.
    run_keeper(folder.path, lambda question: answer(SiteFolder.open(folder.path), question))


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


if __name__ == "__main__":
    main()
