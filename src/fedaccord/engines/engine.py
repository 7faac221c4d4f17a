"""The interfaces of an engine: `Engine` towards the server's loop, `Host` towards the sites.

    server loop --ask--> Engine --handle--> Host (one task of one site) --reply, memory--> Engine --> server loop

An engine transports messages and stores the sites' memories; it is independent of the method.
"""

from __future__ import annotations

import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, Self, cast

from torch import Tensor

from fedaccord.errors import described, did_you_mean
from fedaccord.messages.message import Failure, Message, SiteId
from fedaccord.messages.names import NOT_BATCHED

Job = tuple[SiteId, Message, Message]
"""A task of one site: its name, its brief and its memory."""

Answer = tuple[Message, Message]
"""The result of a task: the reply and the site's new memory."""

Cohorts = Callable[[str, list[SiteId]], list[list[SiteId]]]
"""A function of a task and site names (sorted) that returns the groups of sites that a host handles together.

It may depend on its arguments alone; otherwise results would depend on the engine through rounding.
"""


OUR_HOST = "fedaccord.hosting:build_host"
"""The entry of the hosts that experiments describe."""


class Engine(Protocol):
    """Runs tasks at sites."""

    def sites(self) -> list[SiteId]:
        """Return the names of all sites, sorted."""

    def ask(
        self, task: str, briefs: Mapping[SiteId, Message], deadline: float | None = None
    ) -> dict[SiteId, Message | Failure]:
        """Run `task` at every site with a brief; return one entry per brief, in the order of site names.

        A site that has not replied `deadline` seconds after the call is a `Failure`. Raise ValueError for a brief for
        an unknown site.
        """

    def memories(self) -> dict[SiteId, Message]:
        """Return the sites' memories between rounds, without empty ones.

        The memories returned last can always be restored; earlier ones can if `checkpointed` was called with them.
        """

    def restore(self, memories: Mapping[SiteId, Message]) -> None:
        """Restore memories that `memories` returned; the memory of a site that is missing becomes empty."""

    def checkpointed(self, memories: Mapping[SiteId, Message]) -> None:
        """Confirm that a checkpoint contains these memories, from which a run may be resumed."""

    def close(self) -> None:
        """Release processes and memory; may be called more than once."""


class NamedSites(ABC):
    """The common part of engines: names and memories of the sites, and a `with` block that closes the engine."""

    def __init__(self, sites: Sequence[SiteId]) -> None:
        if len(set(sites)) < len(sites):
            raise ValueError("two sites have the same name; names must be unique")
        self._sites = sorted(sites)
        self._memories: dict[SiteId, Message] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Release processes and memory; may be called more than once."""

    def sites(self) -> list[SiteId]:
        """Return the names of all sites, sorted."""
        return list(self._sites)

    def memories(self) -> dict[SiteId, Message]:
        """Return the sites' memories between rounds, without empty ones; the caller must not modify them."""
        return {site: memory for site, memory in sorted(self._memories.items()) if not memory.is_empty()}

    def _check_sites(self, what: str, given: Mapping[SiteId, Message]) -> None:
        for site in sorted(given.keys() - set(self._sites)):
            raise ValueError(f"there is no site '{site}' for this {what}; {did_you_mean(site, self._sites)}")


class Host(Protocol):
    """Runs one task of one site.

    The result may only depend on the arguments and the site's data, because any copy of the host may handle any site
    at any time. State between tasks is passed as `memory`. A host that handles several sites faster together also has
    `handle_together(task, jobs)`, which returns the results of `handle` in order; the briefs of its jobs may share
    tensors, which it must not modify.
    """

    def handle(self, task: str, site: SiteId, brief: Message, memory: Message) -> Answer:
        """Return the reply and the new memory; `brief` and `memory` are copies that the host may modify."""


@dataclass(frozen=True)
class HostSpec:
    """How a process builds the host, without pickle.

    `entry` is "package.module:function", called as `function(spec, tensors)`; `spec` is JSON. The tensors are
    read-only: the kernel ends a worker process that writes to them. Global settings of torch (default dtype,
    deterministic algorithms) are not transferred; the function sets those it needs.
    """

    entry: str
    spec: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)


def handle_jobs(host: Host, task: str, jobs: Sequence[Job]) -> Iterator[Answer | BaseException]:
    """Yield the result or the exception of each job, in order; a failed job does not affect the others.

    A result is valid until the next one is requested. If jobs fail together, but not alone, replies say why.
    """
    together, reason = getattr(host, "handle_together", None), ""
    if len(jobs) > 1 and together is not None:
        try:
            copies = [(site, brief, _copied(memory)) for site, brief, memory in jobs]
            yield from list(together(task, copies))
            return
        except (Exception, SystemExit) as error:  # handled one by one below, to find the site that fails
            reason = described(error)
    for site, brief, memory in jobs:
        if len(jobs) > 1:  # jobs may share tensors, and `handle` may modify its brief
            brief = _copied(brief)
        try:
            answer = host.handle(task, site, brief, memory)
            if reason:
                answer[0].words[NOT_BATCHED] = reason
            yield answer
        except (Exception, SystemExit) as error:
            yield error


def _copied(message: Message) -> Message:
    return Message({n: t.clone() for n, t in message.tensors.items()}, dict(message.numbers), dict(message.words))


def build_host(entry: str, spec: dict[str, Any], tensors: dict[str, Tensor]) -> Host:
    """Call the function that `entry` names; raise ValueError unless it reads "package.module:function"."""
    module, _, function = entry.partition(":")
    if not (module and function):
        raise ValueError(f"the entry of a host must read 'package.module:function', not '{entry}'")
    return cast(Host, pkgutil.resolve_name(entry)(spec, tensors))
