"""The two contracts of an engine: what the server's loop asks of it, and what it asks of the sites' side.

    server loop --ask--> Engine --handle--> Host (one task of one site) --reply, memory--> Engine --> server loop

An engine moves messages and keeps the sites' memories; it knows nothing of any method.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from torch import Tensor

from fedaccord.messages.message import Failure, Message, SiteId

Job = tuple[SiteId, Message, Message]
"""A task of one site: who, what it is told, what it keeps."""

Answer = tuple[Message, Message]
"""What a task came to: the reply, and what the site keeps."""

Cohorts = Callable[[str, list[SiteId]], list[list[SiteId]]]
"""Which of the sites that are asked a task, sorted by name, are given to a host together.

It may depend on its arguments alone: results would otherwise depend on where sites run, if only by rounding.
"""


class Engine(Protocol):
    """Where sites run."""

    def sites(self) -> list[SiteId]:
        """Return the names of all sites, sorted."""
        ...

    def ask(
        self, task: str, briefs: Mapping[SiteId, Message], deadline: float | None = None
    ) -> dict[SiteId, Message | Failure]:
        """Have every site with a brief do `task`; one entry per brief, in the order of site names.

        A site without a reply after `deadline` seconds, counted for the whole ask, is a `Failure`. A brief for a site
        that is not there is a `ValueError`.
        """
        ...

    def memories(self) -> dict[SiteId, Message]:
        """Return what the sites keep between rounds; a site that keeps nothing is left out.

        What was returned last can be restored whatever is asked meanwhile; what was returned before, if it was settled.
        """
        ...

    def restore(self, memories: Mapping[SiteId, Message]) -> None:
        """Put back what `memories` returned; a site that is left out keeps nothing from now on."""
        ...

    def checkpointed(self, memories: Mapping[SiteId, Message]) -> None:
        """Take note that a checkpoint holds what `memories` returned: a run may go on from there."""
        ...

    def close(self) -> None:
        """Give back processes and memory; may be called more than once."""
        ...


class Host(Protocol):
    """The sites' side: runs one task of one site.

    Its answer may depend on its arguments and on the site data only, because any copy of the host may be given any
    site at any time. What a site has to keep goes through `memory`. A host that does several sites' tasks faster than
    one after the other also has `handle_together(task, jobs)`, which returns what `handle` would for each, in order;
    there the briefs of several sites may hold the same tensors, which nobody writes to.
    """

    def handle(self, task: str, site: SiteId, brief: Message, memory: Message) -> Answer:
        """Return the reply and the new memory; both arguments are the host's own copies."""
        ...


@dataclass(frozen=True)
class HostSpec:
    """How any process builds the host, without pickle.

    `entry` is "package.module:function", called as `function(spec, tensors)`; `spec` is JSON. The tensors a host is
    given are read-only: a worker process that writes to one is stopped by the kernel. Settings of torch itself
    (default dtype, deterministic algorithms) do not travel; the function sets what it needs.
    """

    entry: str
    spec: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)


def handle_jobs(host: Host, task: str, jobs: Sequence[Job]) -> Iterator[Answer | BaseException]:
    """Yield what each job came to, in order; one that fails costs no other its answer."""
    together = getattr(host, "handle_together", None)
    if len(jobs) > 1 and together is not None:
        try:
            yield from list(together(task, jobs))
            return
        except (Exception, SystemExit):  # one by one it shows which of them it was
            pass
    for site, brief, memory in jobs:
        if len(jobs) > 1:  # what several are told may be the same tensors, and a host may write to its own
            brief = Message({n: t.clone() for n, t in brief.tensors.items()}, dict(brief.numbers), dict(brief.words))
        try:
            yield host.handle(task, site, brief, memory)
        except (Exception, SystemExit) as error:
            yield error


def build_host(entry: str, spec: dict[str, Any], tensors: dict[str, Tensor]) -> Host:
    """Call the function that `entry` names; a name that is not "package.module:function" is a `ValueError`."""
    module, colon, function = entry.partition(":")
    if not (module and colon and function):
        raise ValueError(f"a host's entry reads 'package.module:function', not '{entry}'")
    return cast(Host, getattr(importlib.import_module(module), function)(spec, tensors))
