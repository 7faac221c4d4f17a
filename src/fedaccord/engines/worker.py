"""A worker process: the engine's end of it, and what runs inside.

Inside, the host is built once and then does the jobs it is sent, one after the other. The jobs and their tensors come
through the brief block, replies leave through the worker's own blocks; the control socket only says where they are.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import itertools
import json
import os
import signal
import socket
import sys
import threading
import traceback
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedaccord.engines import crew
from fedaccord.engines.engine import Host, Job, build_host, handle_jobs
from fedaccord.engines.shared_block import SharedBlock, pack, take_frames, to_frame, to_json, unpack
from fedaccord.errors import MessageError
from fedaccord.messages.message import Message, SiteId

# Jobs a worker holds at most: one to do, and one more, so that it need not wait for the next. It has as many reply
# blocks and fills them in turn. A block comes round again only when the engine has sent another job, which it does
# after copying a job's replies: so none is overwritten, and a block is never larger than the largest job's replies.
AHEAD = 2
_BEGUN = 0  # the mark, in the first reply block, with the number of the job begun last


@dataclass
class Dealt:
    """A job that a worker has: its number, and the sites it owes an answer of."""

    number: int
    sites: list[SiteId]


class WorkerProcess:
    """The engine's end of one worker process."""

    def __init__(self, data: SharedBlock, described_at: tuple[int, int], briefs: SharedBlock) -> None:
        self.replies = [SharedBlock() for _ in range(AHEAD)]
        self.jobs: deque[Dealt] = deque()  # in the order they are done
        self.ready = False
        self._inbox = bytearray()
        self._begun = crew.take()
        self.process, self.control = self._begun.process, self._begun.control
        fds = [data.fd, briefs.fd, *(block.fd for block in self.replies)]
        with contextlib.suppress(ConnectionError):  # that it is gone already is found out by `receive`
            socket.send_fds(self.control, [b"!"], fds)
            self.control.sendall(to_frame({"host": described_at, "path": crew.search_path()}))
        self.control.setblocking(False)

    def has_begun(self, number: int) -> bool:
        """Say whether the job was the last to be begun, also when the process is dead."""
        return self.replies[0].marked(_BEGUN) == number

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
        code = self._begun.end(grace)
        for block in self.replies:
            block.close()
        if code >= 0:
            return f"ended with exit code {code}"
        return f"was killed by signal {-code}" + (" (did it write to site data?)" if code == -signal.SIGSEGV else "")


def main() -> None:
    """Be a worker; the arguments are two descriptors, the control socket and the lifeline, and a module to import."""
    control_fd, lifeline_fd = map(int, sys.argv[1:3])
    for fd in (control_fd, lifeline_fd):
        os.set_inheritable(fd, False)  # a process the host starts must not keep our channels open after our death
    threading.Thread(target=_end_with_engine, args=(lifeline_fd,), daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the engine decides
    faulthandler.enable()
    torch.set_num_threads(1)
    if sys.argv[3]:
        importlib.import_module(sys.argv[3])

    control = socket.socket(fileno=control_fd)
    _, fds, _, _ = socket.recv_fds(control, 1, 2 + AHEAD)
    if not fds:
        return  # the engine needs no worker after all
    for fd in fds:
        os.set_inheritable(fd, False)
    data_fd, briefs_fd, *reply_fds = fds
    data, frames = SharedBlock(data_fd, writable=False), _frames(control)
    try:
        told = next(frames)
        sys.path[:] = told["path"]
        described = json.loads(data.read_bytes(*told["host"]))
        host = build_host(described["entry"], described["spec"], data.read(described["tensors"]))
    except (Exception, SystemExit) as error:
        control.sendall(to_frame({"broken": _reason(error), "trace": traceback.format_exc()}))
        return
    gc.freeze()  # what is there now stays, so that nobody need look for garbage in it
    gc.enable()
    with contextlib.suppress(ConnectionError):  # the engine is gone
        control.sendall(to_frame({"ready": True}))
        blocks = [SharedBlock(fd) for fd in reply_fds]
        _serve(control, frames, host, SharedBlock(briefs_fd, writable=False), blocks)


def _serve(
    control: socket.socket, frames: Iterator[Any], host: Host, briefs: SharedBlock, replies: list[SharedBlock]
) -> None:
    turn = itertools.cycle(range(len(replies)))
    for chunk_at in frames:
        chunk = json.loads(briefs.read_bytes(*chunk_at))
        for number, packed in chunk["jobs"]:
            replies[0].mark(_BEGUN, number)
            index = next(turn)
            jobs = list(_unpacked(packed, chunk["headers"], briefs))
            # One frame for all sites of a job: whoever trained together is heard together, or not at all.
            control.sendall(_frame(index, list(_do(host, chunk["task"], jobs, replies[index]))))


def _frame(index: int, answers: list[dict[str, Any]]) -> bytes:
    with contextlib.suppress(MessageError):
        return to_frame({"block": index, "answers": answers})
    for at, answer in enumerate(answers):  # what cannot be sent costs its own site only
        try:
            to_json(answer)
        except MessageError as error:
            answers[at] = _failure(error)
    return to_frame({"block": index, "answers": answers})


def _unpacked(packed: list[Any], headers: list[Any], briefs: SharedBlock) -> Iterator[Job]:
    told: dict[int, dict[str, Tensor]] = {}  # what several sites are told is read once
    for site, which, numbers, words, kept in packed:
        if which not in told:
            told[which] = briefs.copy(headers[which])
        yield site, Message(dict(told[which]), numbers, words), unpack(briefs, kept) if kept else Message()


def _do(host: Host, task: str, jobs: list[Job], block: SharedBlock) -> Iterator[dict[str, Any]]:
    """Do one job, of one site or of several, and yield what is to be said of each site."""
    block.reset()
    for answer in handle_jobs(host, task, jobs):
        try:
            if isinstance(answer, BaseException):
                raise answer
            reply, kept = answer
            yield {"reply": pack(block, reply), "memory": None if kept.is_empty() else pack(block, kept)}
        except (Exception, SystemExit) as error:
            yield _failure(error)


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


def _failure(error: BaseException) -> dict[str, Any]:
    return {"reason": _reason(error), "trace": "".join(traceback.format_exception(error))}


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
