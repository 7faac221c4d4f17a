"""Sites on this machine: in this process, or dealt out to worker processes.

    brief --pack--> brief block --> worker: host.handle --> its reply blocks --copy--> reply
                    (one, shared)                           (two per worker)

Any worker may be given any site: the sites' data is in a block that all of them see, and a site's memory is kept here
and travels with the job. A worker that dies costs the reply of the site it was busy with, and nothing else.

A job may be several sites' (`Cohorts`). If it fails, they are done one by one, so that it costs only who is to blame.
"""

from __future__ import annotations

import json
import os
import selectors
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from fedaccord.engines import crew
from fedaccord.engines import shared_block as wire
from fedaccord.engines.engine import Cohorts, Host, HostSpec, build_host, handle_jobs
from fedaccord.engines.worker import AHEAD, Dealt, WorkerProcess
from fedaccord.errors import EngineError, did_you_mean
from fedaccord.messages.message import Failure, Message, SiteId

_START_TRIES = 3
_WATCH = 1.0  # seconds between looks at workers whose sockets are silent
_GRACE = 1.0  # seconds a worker has to end by itself


class EmbeddedEngine:
    """Runs sites here (`workers=0`, where a site's exception surfaces as it is) or in worker processes.

    Replies are the same, bit for bit, for any number of workers. The host's tensors are taken out of `host` one by one,
    so that no more than one is there twice if nobody else holds them; `tensors` has them as views of the engine's own
    block, which nobody may write to.
    """

    def __init__(self, host: HostSpec, sites: Sequence[SiteId], workers: int, cohorts: Cohorts | None = None) -> None:
        if workers < 0:
            raise ValueError(f"the number of workers is 0 or more, not {workers}")
        if len(set(sites)) < len(sites):
            raise ValueError("two sites have the same name; every site needs its own")
        self._sites = sorted(sites)
        self._workers, self._cohorts = workers, cohorts
        self._memories: dict[SiteId, Message] = {}
        self._data, self._briefs = wire.SharedBlock(), wire.SharedBlock()
        header = self._data.take_over(host.tensors)
        self.tensors: dict[str, Tensor] = self._data.read(header)
        described = {"entry": host.entry, "spec": host.spec, "tensors": header}
        self._described_at = self._data.write_bytes(wire.to_json(described))
        if workers:
            self._data.let_go()  # it is the workers who read it
        self._host: Host | None = None
        self._crew: list[WorkerProcess] = []
        self._selector = selectors.DefaultSelector()
        self._stillborn = 0
        self._jobs = 0
        self._release = weakref.finalize(
            self, _release, os.getpid(), self._crew, self._selector, (self._data, self._briefs)
        )

    def __enter__(self) -> EmbeddedEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def sites(self) -> list[SiteId]:
        """Return the names of all sites, sorted."""
        return list(self._sites)

    def start(self) -> None:
        """Build the host, or start all workers and wait for them; without it the first `ask` pays for that."""
        with self._no_workers_left_on_error():
            self._make_ready(all)

    def ask(
        self, task: str, briefs: Mapping[SiteId, Message], deadline: float | None = None
    ) -> dict[SiteId, Message | Failure]:
        """Have every site with a brief do `task`; one entry per brief, in the order of site names.

        Starting workers does not count against `deadline`. With a deadline no site waits behind another, so that a slow
        one holds up nobody but itself; workers still busy by then are killed and replaced.
        """
        return dict(self.stream(task, briefs, deadline))

    def stream(
        self, task: str, briefs: Mapping[SiteId, Message], deadline: float | None = None, lent: bool = False
    ) -> Iterator[tuple[SiteId, Message | Failure]]:
        """Yield what `ask` returns, each reply as soon as it and all before it are there.

        What sites keep is taken over with the last reply; whoever stops listening before ends all that is under way.
        The tensors of a `lent` reply are there only until the next one is asked for, which saves copying them.
        """
        self._check_sites("brief", briefs)
        with self._no_workers_left_on_error():
            self._make_ready(any)
            ask = _Ask(task, {site: briefs[site] for site in sorted(briefs)}, deadline, self._cohorts)
            for _ in self._do_here(ask) if self._workers == 0 else self._do_in_workers(ask):
                yield from ask.in_order(lent)
            yield from ask.in_order(lent)
        self._memories.update(ask.kept)

    def memories(self) -> dict[SiteId, Message]:
        """Return what the sites keep between rounds, not to be altered; a site that keeps nothing is left out."""
        return {site: memory for site, memory in sorted(self._memories.items()) if not memory.is_empty()}

    def restore(self, memories: Mapping[SiteId, Message]) -> None:
        """Put back what `memories` returned; a site that is left out keeps nothing from now on."""
        self._check_sites("memory", memories)
        self._memories = {site: self._over_the_wire(memory) for site, memory in memories.items()}

    def checkpointed(self, memories: Mapping[SiteId, Message]) -> None:
        """Do nothing: a checkpoint holds the memories whole."""

    def close(self) -> None:
        """End the workers and give back their memory; may be called more than once."""
        self._host = None
        self._release()

    def _check_sites(self, what: str, given: Mapping[SiteId, Message]) -> None:
        for site in sorted(given.keys() - set(self._sites)):
            raise ValueError(f"there is no site '{site}' for this {what}; {did_you_mean(site, self._sites)}")

    def _make_ready(self, enough: Callable[[Iterable[bool]], bool]) -> None:
        if not self._release.alive:
            raise EngineError("the engine is closed")
        if self._workers:
            self._hire()
            while not enough(worker.ready for worker in self._crew):
                self._listen(_Ask("start", {}, None), _WATCH)
        elif self._host is None:
            described = json.loads(self._data.read_bytes(*self._described_at))
            with _as_in_a_worker():
                self._host = build_host(described["entry"], described["spec"], dict(self.tensors))

    # Sites in this process

    def _do_here(self, ask: _Ask) -> Iterator[None]:
        host = cast(Host, self._host)
        while ask.pending and ask.seconds_left() > 0:
            sites = ask.pending.popleft()
            jobs = [
                (site, self._over_the_wire(ask.briefs[site]), self._over_the_wire(self._memories.get(site, Message())))
                for site in sites
            ]
            with _as_in_a_worker():
                answers = list(handle_jobs(host, ask.task, jobs))
            for site, answer in zip(sites, answers, strict=True):
                if isinstance(answer, BaseException):
                    raise answer
                if ask.seconds_left() > 0:
                    ask.answer(site, *map(self._over_the_wire, answer))
            yield
        ask.give_up()

    def _over_the_wire(self, message: Message) -> Message:
        # The way to a worker, so that a host here gets and gives what it would there, and no tensor is shared.
        self._briefs.reset()
        return wire.unpack(self._briefs, json.loads(wire.to_json(wire.pack(self._briefs, message))))

    # Sites in worker processes

    def _do_in_workers(self, ask: _Ask) -> Iterator[None]:
        self._briefs.reset()
        while ask.is_open():
            self._deal(ask)
            self._listen(ask, max(0.0, min(_WATCH, ask.seconds_left())))
            if ask.seconds_left() <= 0:
                self._listen(ask, 0.0)  # replies that were there in time
                ask.give_up()
                for worker in [worker for worker in self._crew if worker.jobs]:
                    ask.take_out_of(worker.replies)
                    self._dismiss(worker)
                self._hire()
            yield

    def _deal(self, ask: _Ask) -> None:
        ready = [worker for worker in self._crew if worker.ready]
        open_jobs = len(ask.pending) + sum(len(worker.jobs) for worker in ready)
        # At the end of an ask nobody is given more than an even share.
        share = min(AHEAD if ask.deadline is None else 1, -(-open_jobs // max(1, len(ready))))
        for worker in ready:
            chunk: list[Any] = []
            told: wire.Told = {}
            while ask.pending and len(worker.jobs) < share:
                sites = ask.pending.popleft()
                self._jobs += 1
                worker.jobs.append(Dealt(self._jobs, sites))
                chunk.append([self._jobs, [self._packed(site, ask, told) for site in sites]])
            if chunk:
                ask.take_out_of(worker.replies)  # the worker may now fill them again
                headers = [header for _, header in told.values()]
                document = {"task": ask.task, "headers": headers, "jobs": chunk}
                worker.send(self._briefs.write_bytes(wire.to_json(document)))

    def _packed(self, site: SiteId, ask: _Ask, told: wire.Told) -> list[Any]:
        memory, brief = self._memories.get(site, Message()), ask.briefs[site]
        kept = None if memory.is_empty() else wire.pack(self._briefs, memory, ask.written)
        # Most sites are told the very same tensors; where these stand is then said once.
        key = tuple((name, id(tensor)) for name, tensor in brief.tensors.items())
        if key not in told:
            told[key] = len(told), self._briefs.write(brief.tensors, ask.written)
        return [site, told[key][0], brief.numbers, brief.words, kept]

    def _listen(self, ask: _Ask, timeout: float) -> None:
        events = self._selector.select(timeout)
        for key, _ in events:
            worker: WorkerProcess = key.data
            frames, is_open = worker.receive()
            for frame in frames:
                self._take(worker, frame, ask)
            if not is_open:
                self._replace(worker, ask)
        if not events:  # a process that a host started may hold a dead worker's socket open
            for worker in [worker for worker in self._crew if worker.process.poll() is not None]:
                self._replace(worker, ask)

    def _take(self, worker: WorkerProcess, frame: dict[str, Any], ask: _Ask) -> None:
        if "ready" in frame:
            worker.ready, self._stillborn = True, 0
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
                kept = wire.unpack(block, answer["memory"]) if answer["memory"] else Message()
                ask.answer(site, _InBlock(block, answer["reply"]), kept)

    def _replace(self, worker: WorkerProcess, ask: _Ask) -> None:
        ask.take_out_of(worker.replies)
        was_busy = bool(worker.jobs) and worker.has_begun(worker.jobs[0].number)
        end = self._dismiss(worker, _GRACE)
        if was_busy:
            begun = worker.jobs.popleft()
            if len(begun.sites) == 1:
                ask.fail(begun.sites[0], f"its worker process {end}")
            else:  # it will show which of them it was
                ask.pending.extend([site] for site in begun.sites)
        ask.pending.extend(job.sites for job in worker.jobs)
        if not worker.ready:
            self._stillborn += 1
            if self._stillborn == _START_TRIES:
                raise EngineError(f"a worker process {end} before it was ready, {_START_TRIES} times in a row")
        self._hire()

    def _hire(self) -> None:
        while len(self._crew) < self._workers:
            worker = WorkerProcess(self._data, self._described_at, self._briefs)
            self._crew.append(worker)
            self._selector.register(worker.control, selectors.EVENT_READ, worker)
        crew.end_spare()

    def _dismiss(self, worker: WorkerProcess, grace: float = 0.0) -> str:
        self._crew.remove(worker)
        self._selector.unregister(worker.control)
        return worker.end(grace)

    @contextmanager
    def _no_workers_left_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:  # KeyboardInterrupt too: what is half done must not reach the next ask
            for worker in list(self._crew):
                self._dismiss(worker)
            self._stillborn = 0
            raise


class _InBlock(NamedTuple):
    """A reply that still stands in the block of the worker that gave it."""

    block: wire.SharedBlock
    packed: list[Any]

    def message(self, lent: bool = False) -> Message:
        return (wire.look if lent else wire.unpack)(self.block, self.packed)


class _Ask:
    """One ask on its way: what is still to be dealt, what has come back."""

    def __init__(
        self, task: str, briefs: dict[SiteId, Message], deadline: float | None, cohorts: Cohorts | None = None
    ) -> None:
        self.task, self.briefs, self.deadline = task, briefs, deadline
        # With a deadline every site is on its own, so that a slow one holds up nobody but itself.
        together = None if deadline is not None else cohorts
        self.pending = deque(together(task, list(briefs)) if together else [[site] for site in briefs])
        self.written: wire.Written = {}
        self._order = deque(briefs)  # who has not been told of
        self._replies: dict[SiteId, Message | Failure | _InBlock] = {}  # of these
        self._answered: set[SiteId] = set()
        self.kept: dict[SiteId, Message] = {}
        self._began = time.monotonic()

    def seconds_left(self) -> float:
        return float("inf") if self.deadline is None else self._began + self.deadline - time.monotonic()

    def is_open(self) -> bool:
        return len(self._answered) < len(self.briefs)

    def in_order(self, lent: bool) -> Iterator[tuple[SiteId, Message | Failure]]:
        while self._order and self._order[0] in self._replies:
            site = self._order.popleft()
            reply = self._replies.pop(site)
            yield site, reply.message(lent) if isinstance(reply, _InBlock) else reply

    def take_out_of(self, blocks: Sequence[wire.SharedBlock]) -> None:
        for site, reply in self._replies.items():
            if isinstance(reply, _InBlock) and reply.block in blocks:
                self._replies[site] = reply.message()

    def answer(self, site: SiteId, reply: Message | _InBlock, kept: Message) -> None:
        self._answered.add(site)
        self._replies[site], self.kept[site] = reply, kept

    def fail(self, site: SiteId, reason: str, trace: str = "") -> None:
        self._answered.add(site)
        self._replies[site] = Failure(site, self.task, reason, trace)

    def give_up(self) -> None:
        for site in self.briefs.keys() - self._answered:
            self.fail(site, f"no reply within {self.deadline:g} s")


def _release(
    owner: int, crew: list[WorkerProcess], selector: selectors.BaseSelector, blocks: tuple[wire.SharedBlock, ...]
) -> None:
    if os.getpid() != owner:  # a forked copy of the engine's process must not end its workers
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
