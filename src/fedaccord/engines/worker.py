"""A worker process: the engine's handle for it, and its main function.

The worker builds the host once and then runs the jobs it is sent in order. Jobs and their tensors arrive in the brief
block, replies leave in the worker's reply blocks; the control socket only carries offsets.
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
from fedaccord.errors import MessageError, described
from fedaccord.messages.message import Message, SiteId

# Maximum number of jobs of a worker: one running and one queued, so that it never waits for the next. It has as many
# reply blocks and uses them in turn. A block is only reused after the engine has sent another job, which it does after
# copying the replies: so no reply is overwritten, and a block is never larger than the replies of the largest job.
JOBS_PER_WORKER = 2
_STARTED = 0  # the mark, in the first reply block, that holds the number of the job started last


@dataclass
class AssignedJob:
    """A job of a worker: its number and its sites."""

    number: int
    sites: list[SiteId]


class WorkerProcess:
    """The engine's handle for one worker process."""

    def __init__(self, data: SharedBlock, described_at: tuple[int, int], briefs: SharedBlock) -> None:
        self.replies = [SharedBlock() for _ in range(JOBS_PER_WORKER)]
        self.jobs: deque[AssignedJob] = deque()  # in the order of execution
        self.ready = False
        self._inbox = bytearray()
        self._started = crew.take()
        self.process, self.control = self._started.process, self._started.control
        fds = [data.fd, briefs.fd, *(block.fd for block in self.replies)]
        with contextlib.suppress(ConnectionError):  # `receive` notices that the process has ended
            socket.send_fds(self.control, [b"!"], fds)
            self.control.sendall(to_frame({"host": described_at, "path": crew.search_path()}))
        self.control.setblocking(False)

    def has_started(self, number: int) -> bool:
        """Return whether a job was the last one started, even if the process has ended."""
        return self.replies[0].marked(_STARTED) == number

    def send(self, chunk_at: tuple[int, int]) -> None:
        """Send the offset and length of the next jobs; `receive` notices that the process has ended."""
        # Short enough for the socket's buffer, so that engine and worker never wait for each other.
        with contextlib.suppress(ConnectionError):
            self.control.sendall(to_frame(chunk_at))

    def receive(self) -> tuple[list[dict[str, Any]], bool]:
        """Return the received frames, and whether the connection is open."""
        try:
            data = self.control.recv(1 << 16)
        except ConnectionError:
            data = b""
        self._inbox += data
        return take_frames(self._inbox), bool(data)

    def end(self, grace: float) -> str:
        """Wait `grace` seconds for the process to exit, kill it if it has not, and return how it ended."""
        code = self._started.end(grace)
        for block in self.replies:
            block.close()
        if code >= 0:
            return f"ended with exit code {code}"
        return f"was killed by signal {-code}" + (" (did it write to site data?)" if code == -signal.SIGSEGV else "")


def main() -> None:
    """Run a worker; the arguments are the descriptors of control socket and lifeline, and a module to import."""
    control_fd, lifeline_fd = map(int, sys.argv[1:3])
    for fd in (control_fd, lifeline_fd):
        os.set_inheritable(fd, False)  # a child process of the host must not keep them open after we have ended
    threading.Thread(target=_exit_with_engine, args=(lifeline_fd,), daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the engine ends its workers
    faulthandler.enable()
    torch.set_num_threads(1)
    if sys.argv[3]:
        importlib.import_module(sys.argv[3])

    control = socket.socket(fileno=control_fd)
    _, fds, _, _ = socket.recv_fds(control, 1, 2 + JOBS_PER_WORKER)
    if not fds:
        return  # the engine does not need this worker
    for fd in fds:
        os.set_inheritable(fd, False)
    data_fd, briefs_fd, *reply_fds = fds
    data, frames = SharedBlock(data_fd, writable=False), _frames(control)
    try:
        setup = next(frames)
        sys.path[:] = setup["path"]
        description = json.loads(data.read_bytes(*setup["host"]))
        host = build_host(description["entry"], description["spec"], data.read(description["tensors"]))
    except (Exception, SystemExit) as error:
        control.sendall(to_frame({"broken": described(error), "trace": traceback.format_exc()}))
        return
    gc.freeze()  # all current objects stay alive, so collections can skip them
    gc.enable()
    with contextlib.suppress(ConnectionError):  # the engine has ended
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
            replies[0].mark(_STARTED, number)
            index = next(turn)
            jobs = list(_unpacked(packed, chunk["headers"], briefs))
            # One frame for all sites of a job: sites that trained together reply together or not at all.
            control.sendall(_frame(index, list(_run(host, chunk["task"], jobs, replies[index]))))


def _frame(index: int, answers: list[dict[str, Any]]) -> bytes:
    with contextlib.suppress(MessageError):
        return to_frame({"block": index, "answers": answers})
    for position, answer in enumerate(answers):  # an answer that cannot be encoded fails only its site
        try:
            to_json(answer)
        except MessageError as error:
            answers[position] = _failure(error)
    return to_frame({"block": index, "answers": answers})


def _unpacked(packed: list[Any], headers: list[Any], briefs: SharedBlock) -> Iterator[Job]:
    tensors: dict[int, dict[str, Tensor]] = {}  # copied once per header
    for site, header, numbers, words, memory in packed:
        if header not in tensors:
            tensors[header] = briefs.copy(headers[header])
        yield site, Message(dict(tensors[header]), numbers, words), unpack(briefs, memory) if memory else Message()


def _run(host: Host, task: str, jobs: list[Job], block: SharedBlock) -> Iterator[dict[str, Any]]:
    """Run one job, for one site or several, and yield the packed answer of each site."""
    block.reset()
    for answer in handle_jobs(host, task, jobs):
        try:
            if isinstance(answer, BaseException):
                raise answer
            reply, memory = answer
            yield {"reply": pack(block, reply), "memory": None if memory.is_empty() else pack(block, memory)}
        except (Exception, SystemExit) as error:
            yield _failure(error)


def _frames(control: socket.socket) -> Iterator[Any]:
    inbox = bytearray()
    while data := control.recv(1 << 16):
        inbox += data
        yield from take_frames(inbox)


def _exit_with_engine(lifeline_fd: int) -> None:
    # Only the engine's process holds the other end, and it never writes: the read returns when that process has ended,
    # however it ended and whatever the host is doing.
    os.read(lifeline_fd, 1)
    os._exit(1)


def _failure(error: BaseException) -> dict[str, Any]:
    return {"reason": described(error), "trace": "".join(traceback.format_exception(error))}
