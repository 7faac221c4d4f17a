"""Runs sites on this machine: in this process or in worker processes.

    brief --pack--> brief block --> worker: host.handle --> its reply blocks --copy--> reply
                    (one, shared)                           (two per worker)

Any worker may run any site: all workers share a block with the sites' data, and the engine sends a site's memory with
the job. If a worker dies, only the site that it was running fails.

A job may contain several sites (`Cohorts`). If it fails, its sites are run one by one, so that only the site that
caused the failure fails.
"""

from __future__ import annotations

import json
import os
import selectors
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor

from fedaccord.engines import crew
from fedaccord.engines import shared_block as wire
from fedaccord.engines.ask import Ask, ReplyInBlock
from fedaccord.engines.engine import Cohorts, Host, HostSpec, Job, NamedSites, build_host, handle_jobs
from fedaccord.engines.worker import JOBS_PER_WORKER, AssignedJob, WorkerProcess
from fedaccord.errors import EngineError
from fedaccord.messages.message import Failure, Message, SiteId

_START_TRIES = 3
_WATCH = 1.0  # seconds between checks that silent workers are alive
_GRACE = 1.0  # seconds for a worker to exit before it is killed


class EmbeddedEngine(NamedSites):
    """Runs sites in worker processes, or in this process with `workers=0`, where exceptions of a site propagate.

    Replies are bit-identical for any number of workers. The tensors of `host` are moved into a shared block one by one,
    so that at most one of them is in memory twice; `tensors` are read-only views of that block.
    """

    def __init__(self, host: HostSpec, sites: Sequence[SiteId], workers: int, cohorts: Cohorts | None = None) -> None:
        if workers < 0:
            raise ValueError(f"the number of workers must be 0 or more, not {workers}")
        super().__init__(sites)
        self._workers, self._cohorts = workers, cohorts
        self._data, self._briefs = wire.SharedBlock(), wire.SharedBlock()
        header = self._data.take_over(host.tensors)
        self.tensors: dict[str, Tensor] = self._data.read(header)
        description = {"entry": host.entry, "spec": host.spec, "tensors": header}
        self._described_at = self._data.write_bytes(wire.to_json(description))
        if workers:
            self._data.unload_pages()  # only the workers read them
        self._host: Host | None = None
        self._crew: list[WorkerProcess] = []
        self._selector = selectors.DefaultSelector()
        self._failed_starts = 0  # in a row
        self._jobs = 0  # number of the last job
        self._release = weakref.finalize(
            self, _release, os.getpid(), self._crew, self._selector, (self._data, self._briefs)
        )

    def start(self) -> None:
        """Build the host, or start all workers and wait for them; otherwise the first `ask` does."""
        with self._no_workers_left_on_error():
            self._make_ready(all)

    def ask(
        self, task: str, briefs: Mapping[SiteId, Message], deadline: float | None = None
    ) -> dict[SiteId, Message | Failure]:
        """Run `task` at every site with a brief; return one entry per brief, in the order of site names.

        The time to start workers does not count towards `deadline`. With a deadline no site is queued behind another on
        a worker, so a slow site delays no other; workers that are busy at the deadline are killed and replaced.
        """
        return dict(self.stream(task, briefs, deadline))

    def stream(
        self, task: str, briefs: Mapping[SiteId, Message], deadline: float | None = None, as_views: bool = False
    ) -> Iterator[tuple[SiteId, Message | Failure]]:
        """Yield the entries of `ask`, each as soon as it and all earlier ones have arrived.

        The sites' memories are updated after the last reply; closing the iterator earlier ends all running jobs. With
        `as_views` the tensors of a reply are not copied and are valid until the next reply is requested.
        """
        self._check_sites("brief", briefs)
        with self._no_workers_left_on_error():
            self._make_ready(any)
            ask = Ask(task, {site: briefs[site] for site in sorted(briefs)}, deadline, self._cohorts)
            for _ in self._run_here(ask) if self._workers == 0 else self._run_in_workers(ask):
                yield from ask.in_order(as_views)
            yield from ask.in_order(as_views)
        self._memories.update(ask.memories)

    def restore(self, memories: Mapping[SiteId, Message]) -> None:
        """Restore memories that `memories` returned; the memory of a site that is missing becomes empty."""
        self._check_sites("memory", memories)
        self._memories = {site: self._over_the_wire(memory) for site, memory in memories.items()}

    def checkpointed(self, memories: Mapping[SiteId, Message]) -> None:
        """Do nothing, because a checkpoint contains the memories themselves."""

    def close(self) -> None:
        """End the workers and free their memory; may be called more than once."""
        self._host = None
        self._release()

    def _make_ready(self, enough: Callable[[Iterable[bool]], bool]) -> None:
        if not self._release.alive:
            raise EngineError("the engine is closed")
        if self._workers:
            self._start_workers()
            while not enough(worker.ready for worker in self._crew):
                self._listen(Ask("start", {}, None), _WATCH)
        elif self._host is None:
            description = json.loads(self._data.read_bytes(*self._described_at))
            with _as_in_a_worker():
                self._host = build_host(description["entry"], description["spec"], dict(self.tensors))

    # Sites in this process

    def _run_here(self, ask: Ask) -> Iterator[None]:
        host = cast(Host, self._host)
        while ask.pending and ask.seconds_left() > 0:
            sites = ask.pending.popleft()
            jobs = list(self._jobs_here(ask, sites))
            with _as_in_a_worker():
                for site, answer in zip(sites, handle_jobs(host, ask.task, jobs), strict=True):
                    if isinstance(answer, BaseException):
                        raise answer
                    if ask.seconds_left() > 0:  # copied before the next site overwrites the model
                        ask.answer(site, *map(self._over_the_wire, answer))
            yield
        ask.time_out()

    def _jobs_here(self, ask: Ask, sites: list[SiteId]) -> Iterator[Job]:
        copies: dict[tuple[tuple[str, int], ...], Message] = {}
        for site in sites:
            brief, memory = ask.briefs[site], self._memories.get(site, Message())
            key = _identity(brief)
            if key not in copies:
                copies[key] = self._over_the_wire(brief)
            copy = Message(dict(copies[key].tensors), dict(brief.numbers), dict(brief.words))
            yield site, copy, self._over_the_wire(memory)

    def _over_the_wire(self, message: Message) -> Message:
        if message.is_empty():
            return Message()
        # Encode and decode as for a worker, so that a host here sees the same values and shares no tensor.
        self._briefs.reset()
        return wire.unpack(self._briefs, json.loads(wire.to_json(wire.pack(self._briefs, message))))

    # Sites in worker processes

    def _run_in_workers(self, ask: Ask) -> Iterator[None]:
        self._briefs.reset()
        while ask.unanswered:
            self._assign(ask)
            self._listen(ask, max(0.0, min(_WATCH, ask.seconds_left())))
            if ask.seconds_left() <= 0:
                self._listen(ask, 0.0)  # replies that arrived in time
                ask.time_out()
                for worker in [worker for worker in self._crew if worker.jobs]:
                    ask.copy_out_of(worker.replies)
                    self._end_worker(worker)
                self._start_workers()
            yield

    def _assign(self, ask: Ask) -> None:
        ready = [worker for worker in self._crew if worker.ready]
        open_jobs = len(ask.pending) + sum(len(worker.jobs) for worker in ready)
        # The last jobs are shared evenly.
        share = min(JOBS_PER_WORKER if ask.deadline is None else 1, -(-open_jobs // max(1, len(ready))))
        for worker in ready:
            chunk: list[Any] = []
            headers: wire.SharedHeaders = {}
            while ask.pending and len(worker.jobs) < share:
                sites = ask.pending.popleft()
                self._jobs += 1
                worker.jobs.append(AssignedJob(self._jobs, sites))
                chunk.append([self._jobs, [self._packed(site, ask, headers) for site in sites]])
            if chunk:
                ask.copy_out_of(worker.replies)  # the worker may overwrite them from now on
                document = {"task": ask.task, "headers": [header for _, header in headers.values()], "jobs": chunk}
                worker.send(self._briefs.write_bytes(wire.to_json(document)))

    def _packed(self, site: SiteId, ask: Ask, headers: wire.SharedHeaders) -> list[Any]:
        memory, brief = self._memories.get(site, Message()), ask.briefs[site]
        packed = None if memory.is_empty() else wire.pack(self._briefs, memory, ask.written)
        # Most sites receive the same tensors, whose header is then sent once.
        key = _identity(brief)
        if key not in headers:
            headers[key] = len(headers), self._briefs.write(brief.tensors, ask.written)
        return [site, headers[key][0], brief.numbers, brief.words, packed]

    def _listen(self, ask: Ask, timeout: float) -> None:
        events = self._selector.select(timeout)
        for key, _ in events:
            worker: WorkerProcess = key.data
            frames, is_open = worker.receive()
            for frame in frames:
                self._take(worker, frame, ask)
            if not is_open:
                self._replace(worker, ask)
        if not events:  # a child process of the host may keep the socket of a dead worker open
            for worker in [worker for worker in self._crew if worker.process.poll() is not None]:
                self._replace(worker, ask)

    def _take(self, worker: WorkerProcess, frame: dict[str, Any], ask: Ask) -> None:
        if "ready" in frame:
            worker.ready, self._failed_starts = True, 0
        elif "broken" in frame:
            error = EngineError(f"a worker process could not build its host: {frame['broken']}")
            error.add_note(frame["trace"])
            raise error
        else:
            block = worker.replies[frame["block"]]
            for site, answer in zip(worker.jobs.popleft().sites, frame["answers"], strict=True):
                if "reason" in answer:
                    ask.fail(site, answer["reason"], answer["trace"])
                    continue
                memory = wire.unpack(block, answer["memory"]) if answer["memory"] else Message()
                ask.answer(site, ReplyInBlock(block, answer["reply"]), memory)

    def _replace(self, worker: WorkerProcess, ask: Ask) -> None:
        ask.copy_out_of(worker.replies)
        was_busy = bool(worker.jobs) and worker.has_started(worker.jobs[0].number)
        end = self._end_worker(worker, _GRACE)
        if was_busy:
            job = worker.jobs.popleft()
            if len(job.sites) == 1:
                ask.fail(job.sites[0], f"its worker process {end}")
            else:  # run them one by one, to find the site that fails
                ask.pending.extend([site] for site in job.sites)
        ask.pending.extend(job.sites for job in worker.jobs)
        if not worker.ready:
            self._failed_starts += 1
            if self._failed_starts == _START_TRIES:
                raise EngineError(f"a worker process {end} before it was ready, {_START_TRIES} times in a row")
        self._start_workers()

    def _start_workers(self) -> None:
        while len(self._crew) < self._workers:
            worker = WorkerProcess(self._data, self._described_at, self._briefs)
            self._crew.append(worker)
            self._selector.register(worker.control, selectors.EVENT_READ, worker)
        crew.end_spare()

    def _end_worker(self, worker: WorkerProcess, grace: float = 0.0) -> str:
        self._crew.remove(worker)
        self._selector.unregister(worker.control)
        return worker.end(grace)

    @contextmanager
    def _no_workers_left_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:  # KeyboardInterrupt too: unfinished jobs must not reach the next ask
            for worker in list(self._crew):
                self._end_worker(worker)
            self._failed_starts = 0
            raise


def _identity(brief: Message) -> tuple[tuple[str, int], ...]:
    """Return a key that is equal for briefs with the same tensors."""
    return tuple([(name, id(tensor)) for name, tensor in brief.tensors.items()])


def _release(
    owner: int, crew: list[WorkerProcess], selector: selectors.BaseSelector, blocks: tuple[wire.SharedBlock, ...]
) -> None:
    if os.getpid() != owner:  # a forked child must not end the workers of its parent
        return
    for worker in crew:
        worker.process.terminate()
    for worker in crew:
        worker.end(_GRACE)
    crew.clear()
    selector.close()
    for block in blocks:
        block.close()


@contextmanager
def _as_in_a_worker() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.inference_mode(False), torch.enable_grad():
            yield
    finally:
        torch.set_num_threads(threads)
