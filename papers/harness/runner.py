"""Run the unfinished cells of a table in parallel processes, and store each result when it arrives."""

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
from papers.harness.cells import Cell, FinishedCells, Results

# Not `-m`: runpy warns if the package has already imported the module.
# Ctrl-C reaches workers too: they ignore it, since the runner ends them, and print no traceback.
_PROGRAM = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); from papers.harness.worker import main; main()"
_CLONE = str(Path(__file__).parents[2])  # so that workers can import `papers` from any folder


def run_cells(
    cells: Sequence[Cell],
    finished: FinishedCells,
    workers: int,
    advance: Callable[[Cell, bool], None] = lambda cell, ran: None,
    device: str = "cpu",
) -> Results:
    """Return the results of all cells; call `advance(cell, ran)` for each, `ran` False if it was finished before.

    The device is not part of a cell, so a result from another device is used. An interrupt discards the running cells
    and keeps the finished ones.
    """
    results, missing = Results(), []
    for cell in cells:
        found = finished.find(cell)
        if found is None:
            missing.append(cell)
        else:
            results.add(cell, found)
            advance(cell, False)
    waiting: queue.SimpleQueue[Cell] = queue.SimpleQueue()
    answers: queue.SimpleQueue[tuple[Cell, dict[str, Any]]] = queue.SimpleQueue()
    for cell in missing:
        waiting.put(cell)
    lanes = [_Lane(waiting, answers, device) for _ in range(min(workers, len(missing)))]
    try:
        for _ in missing:
            cell, answer = answers.get()
            if "result" in answer:
                finished.add(cell, answer["result"])
                results.add(cell, answer["result"])
            else:
                results.failed[cell.key] = answer["error"]
            advance(cell, True)
    finally:
        for lane in lanes:
            lane.end()
    return results


class _Lane:
    """A thread with a worker process; if the process dies, its cell fails and the next one gets a new process."""

    def __init__(self, waiting: queue.SimpleQueue[Cell], answers: queue.SimpleQueue[Any], device: str) -> None:
        self.waiting, self.answers, self.device = waiting, answers, device
        self.process = _start()
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def end(self) -> None:
        """Kill the process; the running cell is discarded, so there is nothing to wait for."""
        while True:  # empty the queue first, so that no lane starts another process
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
    """Wait for an ended process and close its pipes."""
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with suppress(OSError):  # unwritten data has no reader
                stream.close()
