"""A worker process: the engine's end of it, and what runs inside.

Inside, the host is built once and then does the jobs it is sent, one after the other. The jobs and their tensors come
through the brief block, replies leave through the worker's own block; the control socket only says where they are.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch

from fedaccord.engines.engine import Host, build_host
from fedaccord.engines.shared_block import SharedBlock, pack, take_frames, to_frame, unpack
from fedaccord.messages.message import Message, SiteId

# Marks in a reply block: the job begun last (set by the worker), the job whose reply was copied last (by the engine).
BEGUN, COPIED = 0, 1

# Not `-m`: the package may have imported this module already, and runpy warns about that.
_PROGRAM = "from fedaccord.engines.worker import main; main()"


class WorkerProcess:
    """The engine's end of one worker process."""

    def __init__(self, data: SharedBlock, described_at: tuple[int, int], briefs: SharedBlock) -> None:
        self.replies = SharedBlock()
        self.jobs: deque[tuple[int, SiteId]] = deque()  # number and site, in the order they are done
        self.ready = False
        self._inbox = bytearray()
        self.control, control = socket.socketpair()
        self._lifeline, lifeline = socket.socketpair()
        fds = [control.fileno(), lifeline.fileno(), data.fd, briefs.fd, self.replies.fd]
        path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
        with control, lifeline:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", _PROGRAM, *map(str, [*fds, *described_at])],
                env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
                pass_fds=fds,
                stdin=subprocess.DEVNULL,
                stdout=2,  # stdout is the caller's; what a host prints goes to stderr
                process_group=0,  # out of reach of a Ctrl-C that comes before the worker can ignore it
            )
        self.control.setblocking(False)

    def send(self, chunk_at: tuple[int, int]) -> None:
        """Say where the next jobs are; that the process is gone is found out by `receive`."""
        # So short that it fits into the socket's buffer: we never wait here for a worker that waits for us.
        with contextlib.suppress(ConnectionError):
            self.control.sendall(to_frame(chunk_at))

    def receive(self) -> tuple[list[dict[str, Any]], bool]:
        """Return the frames that have arrived, and whether more can come."""
        try:
            data = self.control.recv(1 << 16)
        except ConnectionError:
            data = b""
        self._inbox += data
        return take_frames(self._inbox), bool(data)

    def end(self, grace: float) -> str:
        """Wait `grace` seconds for the process to end, kill it if it has not, and say how it ended."""
        try:
            code = self.process.wait(grace)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        self.control.close()
        self._lifeline.close()
        self.replies.close()
        if code >= 0:
            return f"ended with exit code {code}"
        return f"was killed by signal {-code}" + (" (did it write to site data?)" if code == -signal.SIGSEGV else "")


def main() -> None:
    """Be a worker; the arguments are descriptors and where in the data block the host is described."""
    control_fd, lifeline_fd, data_fd, briefs_fd, replies_fd, at, length = map(int, sys.argv[1:])
    for fd in (control_fd, lifeline_fd, data_fd, briefs_fd, replies_fd):
        os.set_inheritable(fd, False)  # a process the host starts must not keep our channels open after our death
    threading.Thread(target=_end_with_engine, args=(lifeline_fd,), daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the engine decides
    faulthandler.enable()
    torch.set_num_threads(1)

    control = socket.socket(fileno=control_fd)
    data = SharedBlock(data_fd, writable=False)
    try:
        described = json.loads(data.read_bytes(at, length))
        host = build_host(described["entry"], described["spec"], data.read(described["tensors"]))
    except (Exception, SystemExit) as error:
        control.sendall(to_frame({"broken": _reason(error), "trace": traceback.format_exc()}))
        return
    with contextlib.suppress(ConnectionError):  # the engine is gone
        control.sendall(to_frame({"ready": True}))
        _serve(control, host, SharedBlock(briefs_fd, writable=False), SharedBlock(replies_fd))


def _serve(control: socket.socket, host: Host, briefs: SharedBlock, replies: SharedBlock) -> None:
    last = 0  # the job whose reply was put into the block last
    for chunk_at in _frames(control):
        chunk = json.loads(briefs.read_bytes(*chunk_at))
        for number, site, brief, memory in chunk["jobs"]:
            replies.mark(BEGUN, number)
            try:
                kept = unpack(briefs, memory) if memory else Message()
                reply, kept = host.handle(chunk["task"], site, unpack(briefs, brief), kept)
                if (
                    replies.marked(COPIED) == last
                ):  # otherwise a reply is still to be copied, and this one goes behind it
                    replies.reset()
                answer = {"job": number, "reply": pack(replies, reply)}
                answer["memory"] = None if kept.is_empty() else pack(replies, kept)
                frame = to_frame(answer)
                last = number
            except (Exception, SystemExit) as error:
                frame = to_frame({"job": number, "reason": _reason(error), "trace": traceback.format_exc()})
            control.sendall(frame)


def _frames(control: socket.socket) -> Iterator[Any]:
    inbox = bytearray()
    while data := control.recv(1 << 16):
        inbox += data
        yield from take_frames(inbox)


def _end_with_engine(lifeline_fd: int) -> None:
    # Nobody but the engine's process holds the other end, and it never writes: this returns when that process is gone,
    # however it went and whatever the host is doing at that moment.
    os.read(lifeline_fd, 1)
    os._exit(1)


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
