"""Starts the processes that become workers; importable without torch.

Importing torch, here and in every worker, takes most of the time of a short run. A command that needs workers starts
them before its own imports, so that all processes import in parallel.
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

# One thread per process. The thresholds make glibc's allocator keep freed memory: otherwise page faults take a sixth of
# the time of a convolution.
WORKER_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MALLOC_MMAP_THRESHOLD_": str(2**24),  # activations of a step are smaller, data are larger
    "MALLOC_TRIM_THRESHOLD_": str(2**28),
}

# Garbage collection while importing torch finds nothing and takes a seventh of the time. Not `-m`, because runpy warns
# if the package has already imported the module.
_PROGRAM = "import gc; gc.disable(); from fedaccord.engines.worker import main; main()"


@dataclass
class StartedProcess:
    """A process that waits for its engine on `control` and exits when our end of `lifeline` closes."""

    process: subprocess.Popen[bytes]
    control: socket.socket
    lifeline: socket.socket

    def end(self, grace: float = 0.0) -> int:
        """Wait `grace` seconds for the process to exit, kill it if it has not, and return its exit code."""
        try:
            code = self.process.wait(grace)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        self.control.close()
        self.lifeline.close()
        return code


_ahead: list[StartedProcess] = []


@contextmanager
def started_ahead(workers: int, preload: str = "") -> Iterator[None]:
    """Start processes for an engine created in this block; they import the module `preload` while they wait."""
    try:
        for _ in range(workers):
            _ahead.append(_start(preload))
        yield
    finally:
        end_spare()


def end_spare() -> None:
    """End the processes that were started ahead and are not needed."""
    while _ahead:
        _ahead.pop().end()


@contextmanager
def importing() -> Iterator[None]:
    """Disable garbage collection while importing, and exclude the imported objects from later collections."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


def take() -> StartedProcess:
    """Return a process that was started ahead, or start one."""
    return _ahead.pop() if _ahead else _start()


def _start(preload: str = "") -> StartedProcess:
    ours, control = socket.socketpair()
    our_lifeline, lifeline = socket.socketpair()
    fds = [control.fileno(), lifeline.fileno()]
    with control, lifeline:
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", _PROGRAM, *map(str, fds), preload],
            env=os.environ | WORKER_ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(search_path())},
            pass_fds=fds,
            stdin=subprocess.DEVNULL,
            stdout=2,  # hosts print to stderr, because stdout belongs to the caller
            process_group=0,  # protects it from a Ctrl-C before it can ignore signals
        )
    return StartedProcess(process, ours, our_lifeline)


def search_path() -> list[str]:
    """Return this process's module search path as absolute paths, for a process in another folder."""
    return [os.path.abspath(entry) for entry in sys.path]
