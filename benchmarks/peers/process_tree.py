"""Measure the memory and processor time of a process and its descendants, from /proc."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from pathlib import Path

TICK, PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")


def tree(root: int) -> list[int]:
    """Return a process and its descendants."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                children.setdefault(int(_fields(int(entry))[1]), []).append(int(entry))
    found, todo = [], [root]
    while todo:
        found.append(todo.pop())
        todo += children.get(found[-1], [])
    return found


def kill_tree(root: int) -> None:
    """End a process and its descendants."""
    for pid in tree(root):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def busy_seconds() -> float:
    """Return the processor time that the whole machine has used since it started."""
    times = [int(v) for v in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(times) - times[3] - times[4]) / TICK


class Sampler(threading.Thread):
    """Sample the peak memory and the processor time of a process tree until `finish`."""

    def __init__(self, root: int) -> None:
        super().__init__(daemon=True)
        self.root, self._over = root, threading.Event()
        self.rss = self.pss = self.processes = 0
        self._cpu: list[tuple[float, float]] = [(time.time(), 0.0)]

    def run(self) -> None:
        """Sample until `finish` is called."""
        samples = 0
        while not self._over.wait(0.1):
            pids = tree(self.root)
            self.rss = max(self.rss, sum(map(_rss, pids)))
            self.processes = max(self.processes, len(pids))
            self._cpu.append((time.time(), sum(map(_cpu, pids))))
            if samples % 5 == 4:  # slow, since it walks all pages
                self.pss = max(self.pss, sum(map(_pss, pids)))
            samples += 1

    def finish(self) -> None:
        """Stop sampling."""
        self._over.set()
        self.join()

    def cpu_seconds(self) -> float:
        """Return the processor time of the tree."""
        return max(seconds for _, seconds in self._cpu)

    def cpu_between(self, start: float, stop: float) -> float:
        """Return the processor time between two times."""
        return self._cpu_at(stop) - self._cpu_at(start)

    def _cpu_at(self, moment: float) -> float:
        before = [c for c in self._cpu if c[0] <= moment] or self._cpu[:1]
        after = [c for c in self._cpu if c[0] > moment] or self._cpu[-1:]
        (t0, c0), (t1, c1) = before[-1], after[0]
        return c0 if t1 <= t0 else c0 + (c1 - c0) * (moment - t0) / (t1 - t0)


def _fields(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the name, which may contain any character."""
    text = Path(f"/proc/{pid}/stat").read_text()
    return text[text.rindex(")") + 2 :].split()


def _rss(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE
    except OSError:
        return 0


def _cpu(pid: int) -> float:
    try:
        return sum(int(v) for v in _fields(pid)[11:15]) / TICK  # includes children that it waited for
    except OSError:
        return 0.0


def _pss(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)
