"""Run independent jobs in parallel processes; a job and its answer are one line of JSON each.

One process per core runs many jobs, so that torch is imported once per core and not once per job.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from typing import Any

from fedaccord.engines.crew import WORKER_ENVIRONMENT, search_path
from fedaccord.errors import FedAccordError

Job = dict[str, Any]


def run_jobs(jobs: Sequence[Job], workers: int, serving: str, path: Sequence[str] = ()) -> Generator[tuple[int, Job]]:
    """Yield the index of each job and its answer, in the order of completion.

    `serving` is the "module:function" that calls `serve` in a process. An answer is {"result": ...} or {"error": ...}.
    Closing the generator ends the processes and discards the jobs that they run. `path` extends their search path.
    """
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    answers: queue.SimpleQueue[tuple[int, Job]] = queue.SimpleQueue()
    for index in range(len(jobs)):
        waiting.put(index)
    lanes = list[_Lane]()
    try:
        for _ in range(min(workers, len(jobs))):
            lanes.append(_Lane(jobs, waiting, answers, serving, path))
        for _ in jobs:
            yield answers.get()
    finally:
        for lane in lanes:
            lane.end()


def serve(run: Callable[[Job], Any]) -> None:
    """Answer the jobs on stdin until it closes; a failed job is answered with the reason, its traceback is printed."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # output printed by a user's model must not mix with the answers
    jobs: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(jobs,), daemon=True).start()
    while True:
        try:
            answer: Job = {"result": run(json.loads(jobs.get()))}
        except FedAccordError as error:
            answer = {"error": str(error)}
        except Exception as error:  # one job must not end the others
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


def _read(jobs: queue.SimpleQueue[str]) -> None:
    for line in sys.stdin:
        jobs.put(line)
    os._exit(0)  # the process that started us has ended, however it ended, so nobody waits for the running job


class _Lane:
    """A thread with a process; if the process dies, its job fails and the next one gets a new process."""

    def __init__(
        self,
        jobs: Sequence[Job],
        waiting: queue.SimpleQueue[int],
        answers: queue.SimpleQueue[tuple[int, Job]],
        serving: str,
        path: Sequence[str],
    ) -> None:
        self.jobs, self.waiting, self.answers, self.serving, self.path = jobs, waiting, answers, serving, path
        self.process = self._start()
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()

    def end(self) -> None:
        """Kill the process; the running job is discarded, so there is nothing to wait for."""
        while True:  # empty the queue first, so that no lane starts another process
            try:
                self.waiting.get_nowait()
            except queue.Empty:
                break
        self.process.kill()
        self.thread.join()
        _close(self.process)

    def _work(self) -> None:
        while True:
            try:
                index = self.waiting.get_nowait()
            except queue.Empty:
                return
            if self.process.poll() is not None:
                _close(self.process)
                self.process = self._start()
            self.answers.put((index, self._ask(self.jobs[index])))

    def _ask(self, job: Job) -> Job:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        line = ""
        with suppress(OSError):
            print(json.dumps(job), file=self.process.stdin, flush=True)
            line = self.process.stdout.readline()
        try:
            return dict(json.loads(line))
        except ValueError:
            return {"error": f"its process ended with exit code {self.process.wait()}"}

    def _start(self) -> subprocess.Popen[str]:
        module, _, function = self.serving.partition(":")
        return subprocess.Popen(
            [sys.executable, "-P", "-c", f"from {module} import {function}; {function}()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | WORKER_ENVIRONMENT | {"PYTHONPATH": os.pathsep.join([*search_path(), *self.path])},
            process_group=0,  # Ctrl-C reaches only the process that ends its workers
        )


def _close(process: subprocess.Popen[str]) -> None:
    """Wait for an ended process and close its pipes."""
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with suppress(OSError):  # unwritten data has no reader
                stream.close()
