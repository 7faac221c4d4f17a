"""Whatever way a test session ends, no process that it started stays behind.

As a plugin of pytest: every process of the session carries a mark in its environment, also one that detached itself,
and a keeper waits beside the session. As a script: the keeper, which ends all marked processes when the session is
gone, be it finished, interrupted or killed. It needs /proc; elsewhere it does nothing.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

MARK = "FEDACCORD_TESTS"  # marks of sessions within sessions stand side by side in it
GRACE = 1.0  # seconds in which processes may end by themselves, and then on being asked
PATIENCE = 30.0  # seconds until the keeper gives up

keepers: list[subprocess.Popen] = []


def marked(mark: str) -> list[int]:
    """Return the processes whose environment holds a mark, this one excepted."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark.encode() in path.read_bytes() and int(path.parent.name) != os.getpid():
                found.append(int(path.parent.name))
    return found


def pytest_configure(config):
    """Mark the session and start its keeper; workers of xdist inherit the mark."""
    if hasattr(config, "workerinput") or not Path("/proc/self/environ").exists():
        return
    mark = uuid.uuid4().hex
    # In a session of its own the keeper hears no Ctrl-C. It does not carry the mark, but those of sessions around it.
    keeper = subprocess.Popen(
        [sys.executable, "-S", __file__, mark, str(os.getpid()), str(os.getppid())],
        stdin=subprocess.PIPE,
        start_new_session=True,
    )
    keepers.append(keeper)
    os.environ[MARK] = " ".join(filter(None, [os.environ.get(MARK), mark]))
    if config.getoption("numprocesses", None):
        # At once, since a process that holds a pipe of a worker would keep the session waiting for it.
        signal.signal(signal.SIGINT, end_all_and_interrupt)


def pytest_unconfigure():
    """Have ended what is left, and wait until it is gone."""
    if keepers:
        end_all()
        keeper = keepers.pop()
        keeper.stdin.close()
        keeper.wait(PATIENCE + 5)
        os.environ[MARK] = os.environ[MARK].rpartition(" ")[0]


def end_all():
    """Tell the keeper; closing its pipe would say nothing while a fork holds it open as well."""
    for keeper in keepers:
        with contextlib.suppress(OSError):
            os.write(keeper.stdin.fileno(), b"!")


def end_all_and_interrupt(number, frame):
    end_all()
    signal.default_int_handler(number, frame)


def keep(mark: str, session: int, above: int) -> None:
    """Wait for the end of the session, then end every marked process."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while os.getppid() == session and not select.select([0], [], [], 0.5)[0]:
        # A `make` that was killed cannot tell its pytest, which then has another parent.
        if "MAKELEVEL" in os.environ and parent_of(session) not in (above, None):
            os.kill(session, signal.SIGTERM)
            break
    began = time.monotonic()
    while (left := marked(mark)) and (waited := time.monotonic() - began) < PATIENCE:
        for pid in left if waited > GRACE else []:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM if waited < 2 * GRACE else signal.SIGKILL)
        time.sleep(0.1)


def parent_of(pid: int) -> int | None:
    """Return the parent of a process, None if the process is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


if __name__ == "__main__":
    keep(sys.argv[1], *map(int, sys.argv[2:]))
