"""Runs the cells of a table that are not kept yet, some beside each other, and keeps each as it ends."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedaccord.engines.crew import WORKER_ENVIRONMENT, search_path
from papers.harness.cells import Cell, KeptCells, Results

# Not `-m`: the package may have imported the module already, and runpy warns about that.
_PROGRAM = "from papers.harness.worker import main; main()"
_CLONE = str(Path(__file__).parents[2])  # where workers find `papers`, whatever folder they start in


def run_cells(
    cells: Sequence[Cell],
    kept: KeptCells,
    workers: int,
    told: Callable[[Cell, bool], None] = lambda cell, ran: None,
    device: str = "cpu",
) -> Results:
    """Return the results of all cells; `told` hears of each, and whether it ran now or was kept.

    Where a cell ran is no part of it, so one that was kept on another device counts. An interrupt ends the cells under
    way; those that ended before are kept.
    """
    results, missing = Results(), []
    for cell in cells:
        found = kept.find(cell)
        if found is None:
            missing.append(cell)
        else:
            results.add(cell, found)
            told(cell, False)
    waiting: queue.SimpleQueue[Cell] = queue.SimpleQueue()
    answers: queue.SimpleQueue[tuple[Cell, dict[str, Any]]] = queue.SimpleQueue()
    for cell in missing:
        waiting.put(cell)
    lanes = [_Lane(waiting, answers, device) for _ in range(min(workers, len(missing)))]
    try:
        for _ in missing:
            cell, answer = answers.get()
            if "result" in answer:
                kept.keep(cell, answer["result"])
                results.add(cell, answer["result"])
            else:
                results.failed[cell.key] = answer["error"]
            told(cell, True)
    finally:
        for lane in lanes:
            lane.end()
    return results


class _Lane:
    """One process at a time that runs cells; one that dies fails its cell, and the next gets a new process."""

    def __init__(self, waiting: queue.SimpleQueue[Cell], answers: queue.SimpleQueue[Any], device: str) -> None:
        self.waiting, self.answers, self.device = waiting, answers, device
        self.process = _start()
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def end(self) -> None:
        """End the process; nothing of a cell under way is kept, so there is nothing to wait for."""
        while True:  # emptied first: a lane that finds nothing waiting starts no further process
            try:
                self.waiting.get_nowait()
            except queue.Empty:
                break
        self.process.kill()
        self.thread.join()
        _close(self.process)

    def _serve(self) -> None:
        while True:
            try:
                cell = self.waiting.get_nowait()
            except queue.Empty:
                return
            if self.process.poll() is not None:
                _close(self.process)
                self.process = _start()
            self.answers.put((cell, self._ask(cell)))

    def _ask(self, cell: Cell) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        line = ""
        with suppress(OSError):
            print(json.dumps({"table": cell.table, "device": self.device}), file=self.process.stdin, flush=True)
            line = self.process.stdout.readline()
        try:
            return dict(json.loads(line))
        except ValueError:
            return {"error": f"its process ended with exit code {self.process.wait()}"}


def _start() -> subprocess.Popen[str]:
    path = os.pathsep.join([*search_path(), _CLONE])
    return subprocess.Popen(
        [sys.executable, "-P", "-c", _PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | WORKER_ENVIRONMENT | {"PYTHONPATH": path},
    )


def _close(process: subprocess.Popen[str]) -> None:
    """Give back what an ended process held here."""
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with suppress(OSError):  # what was still to be written has nobody to read it
                stream.close()
