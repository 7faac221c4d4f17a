"""Processes that are about to be workers; importable without torch.

Most of a short run's time is importing torch, here and in every worker. A command that knows it will need workers
begins them before it imports anything itself, so that all do so side by side.
"""

from __future__ import annotations

import gc
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

# One thread for each process. glibc's allocator keeps the memory it has instead of giving it back after every step: the
# page faults of getting it again are a sixth of a convolution's time.
WORKER_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MALLOC_MMAP_THRESHOLD_": str(2**24),  # what a step needs is below, what stays (data) above
    "MALLOC_TRIM_THRESHOLD_": str(2**28),
}

# Looking for garbage among what torch imports finds none and takes a seventh of the time. Not `-m`: the package may
# have imported that module already, and runpy warns about that.
_PROGRAM = "import gc; gc.disable(); from fedaccord.engines.worker import main; main()"


@dataclass
class Begun:
    """A process that waits for its engine: it is told by `control`, and ends when the other end of `lifeline` does."""

    process: subprocess.Popen[bytes]
    control: socket.socket
    lifeline: socket.socket

    def end(self, grace: float = 0.0) -> int:
        """Wait `grace` seconds for the process to end, kill it if it has not, and return its exit code."""
        try:
            code = self.process.wait(grace)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        self.control.close()
        self.lifeline.close()
        return code


_ahead: list[Begun] = []


@contextmanager
def begun_ahead(workers: int, preload: str = "") -> Iterator[None]:
    """Begin workers that an engine made within takes over; `preload` is a module they import meanwhile."""
    try:
        for _ in range(workers):
            _ahead.append(_begin(preload))
        yield
    finally:
        end_spare()


def end_spare() -> None:
    """End what was begun ahead and is not needed."""
    while _ahead:
        _ahead.pop().end()


@contextmanager
def importing() -> Iterator[None]:
    """Import without looking for garbage; what is there at the end is never looked at again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


def take() -> Begun:
    """Return a process that was begun ahead, or begin one."""
    return _ahead.pop() if _ahead else _begin()


def _begin(preload: str = "") -> Begun:
    ours, control = socket.socketpair()
    our_lifeline, lifeline = socket.socketpair()
    fds = [control.fileno(), lifeline.fileno()]
    with control, lifeline:
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", _PROGRAM, *map(str, fds), preload],
            env=os.environ | WORKER_ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(search_path())},
            pass_fds=fds,
            stdin=subprocess.DEVNULL,
            stdout=2,  # stdout is the caller's; what a host prints goes to stderr
            process_group=0,  # out of reach of a Ctrl-C that comes before the worker can ignore it
        )
    return Begun(process, ours, our_lifeline)


def search_path() -> list[str]:
    """Return where this process looks for modules, for another one in whatever folder."""
    return [os.path.abspath(entry) for entry in sys.path]
