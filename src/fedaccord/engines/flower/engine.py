"""The engine whose sites are Flower nodes.

    ask --envelope--> grid --> node --> ClientApp: host.handle --> grid --poll--> reply

A site is known by its name: a node that turns up is asked once whose it is, and where the sites' keys are known, a node
is believed only if it holds that site's key. Node ids mean nothing here, so a node may go and come back under another.
A message is answered once: what comes after the deadline, or a second time, is asked for by nobody.

Where sites keep their memories themselves, the engine holds only a version of each: a question names the version the
site works from, the answer the one it made, and the new one counts only when the answer was taken. So a site whose
answer came too late works from its old memory in the next round, as in the embedded engine, and a question may be put
a second time without harm.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import flwr.app

from fedaccord import __version__
from fedaccord.engines.flower.envelope import TASK, WHO, Fields, data, open_sealed, own, seal, text
from fedaccord.errors import EngineError, MessageError, did_you_mean
from fedaccord.messages.message import Failure, Message, SiteId, from_bytes, one_line, to_bytes

if TYPE_CHECKING:
    from flwr.serverapp import Grid

VERSION = "version"  # the word under which a memory that lies at its site stands in a checkpoint
_KEPT_BY_CHECKPOINTS = 2
_POLL = 0.1  # seconds between looks for answers
_LOOK = 2.0  # seconds between looks at which nodes are there
_SLACK = 5.0  # a question outlives its deadline by so many seconds, for clocks that differ
_GONE = (3, 4, 5)  # Flower's codes for a node that cannot be reached, or did not answer while the question lived


@dataclass(frozen=True)
class Roll:
    """Who may take part: the sites' names, where known their public keys, and what marks the deployment."""

    sites: tuple[SiteId, ...]
    keys: Mapping[SiteId, bytes] = field(default_factory=dict)
    deployment: str = ""


class FlowerEngine:
    """Runs sites behind a Flower grid.

    `part` is how many of them should be asked at a time where replies need not be seen together.

    With `carries_memories` the sites' memories are kept here and travel with every question, as the simulation needs;
    without, they stay at the sites. At the first `ask` it waits `patience` seconds for sites that are not there yet;
    later a round never waits for a site that is not connected. `note` is told what a person should know of the nodes;
    `alive` raises once the grid can answer no more.
    """

    part = 512

    def __init__(
        self,
        grid: Grid,
        roll: Roll,
        *,
        carries_memories: bool,
        patience: float = 60.0,
        note: Callable[[str], None] = lambda text: None,
        close: Callable[[], None] = lambda: None,
        alive: Callable[[], None] = lambda: None,
    ) -> None:
        if len(set(roll.sites)) < len(roll.sites):
            raise ValueError("two sites have the same name; every site needs its own")
        self.note = note
        self._grid, self._roll, self._close, self._alive = grid, roll, close, alive
        self._carries = carries_memories
        self._patience = patience
        self._nodes = _Nodes(grid, roll, lambda text: self.note(one_line(text)))
        self._memories: dict[SiteId, Message] = {}  # carried: whole; otherwise their versions only
        self._told: dict[SiteId, str] = {}  # versions that `memories` returned last
        self._settled: list[dict[SiteId, str]] = []  # versions that the last checkpoints name

    def __enter__(self) -> FlowerEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def sites(self) -> list[SiteId]:
        """Return the names of all sites, sorted."""
        return sorted(self._roll.sites)

    def ask(
        self, task: str, briefs: Mapping[SiteId, Message], deadline: float | None = None
    ) -> dict[SiteId, Message | Failure]:
        """Have every site with a brief do `task`; one entry per brief, in the order of site names.

        Waiting for nodes at the first ask does not count against `deadline`. A site whose node goes away is asked again
        if it comes back while others still work.
        """
        self._check_sites("brief", briefs)
        if self._patience:
            self._nodes.gather(self._roll.sites, self._patience, self._alive)
            self._patience = 0.0
        ask = _Ask(task, {site: briefs[site] for site in sorted(briefs)}, deadline)
        while ask.is_open():
            self._alive()
            self._nodes.look()
            self._send(ask)
            self._receive(ask)
            if ask.seconds_left() <= 0:
                ask.fail_rest(lambda site: f"no reply within {deadline:g} s")
            elif not ask.sent and not self._nodes.unsure:
                ask.fail_rest(self._nodes.why_absent)
            elif ask.is_open():
                time.sleep(_POLL)
        self._memories.update(ask.kept)
        return {site: ask.replies[site] for site in ask.briefs}

    def memories(self) -> dict[SiteId, Message]:
        """Return what the sites keep, or where it stays with them, a word that names it; not to be altered."""
        kept = {site: memory for site, memory in sorted(self._memories.items()) if not memory.is_empty()}
        self._told = _versions(kept)  # a checkpoint may yet be made of it, and the sites are to keep it until then
        return kept

    def restore(self, memories: Mapping[SiteId, Message]) -> None:
        """Put back what `memories` returned; a site that is left out keeps nothing from now on."""
        self._check_sites("memory", memories)
        for site, memory in memories.items():
            if (VERSION in memory.words) == self._carries:
                held = "lie at the sites" if self._carries else "were kept by the server"
                raise EngineError(f"the checkpoint's memories {held}, as that of site '{site}'; go on where it began")
        self._memories = dict(memories)
        self.checkpointed(memories)

    def checkpointed(self, memories: Mapping[SiteId, Message]) -> None:
        """Take note that a checkpoint names these memories, so that the sites keep them."""
        self._settled = [*self._settled, _versions(memories)][-_KEPT_BY_CHECKPOINTS:]

    def close(self) -> None:
        """Let go of the grid; may be called more than once."""
        self._close()

    def _check_sites(self, what: str, given: Mapping[SiteId, Message]) -> None:
        for site in sorted(given.keys() - set(self._roll.sites)):
            raise ValueError(f"there is no site '{site}' for this {what}; {did_you_mean(site, self.sites())}")

    def _question(self, task: str, site: SiteId, brief: Message) -> Fields:
        memory = self._memories.get(site, Message())
        fields: Fields = {"task": task, "site": site, "run": brief.words.get("run", ""), "brief": to_bytes(brief)}
        if self._carries:
            return fields | {"memory": to_bytes(memory)}
        version = memory.words.get(VERSION, "")
        kept = {version, *(versions.get(site, "") for versions in (self._told, *self._settled))} - {""}
        return fields | {"version": version, "keep": ",".join(sorted(kept))}

    def _send(self, ask: _Ask) -> None:
        for site in ask.waiting():
            node = self._nodes.of_site(site)
            if node is not None:
                left = ask.seconds_left()
                ttl = None if ask.deadline is None else left + _SLACK
                # One at a time: Flower gives an id for each question it took, and for no other.
                content = seal(self._question(ask.task, site, ask.briefs[site]))
                ids = list(self._grid.push_messages([flwr.app.Message(content, node, TASK, ttl=ttl)]))
                if ids:
                    ask.sent[ids[0]] = site
                else:
                    self._nodes.forget(node)

    def _receive(self, ask: _Ask) -> None:
        if not ask.sent:
            return
        for answer in self._grid.pull_messages(list(ask.sent)):
            # By our own id of the question: errors that Flower makes up do not say which node they are about.
            site = ask.sent.pop(answer.metadata.reply_to_message_id, None)
            if site is None or site in ask.replies:
                continue
            if answer.has_error():
                self._take_error(ask, site, answer.error.code, str(answer.error.reason or ""))
            else:
                self._take(ask, site, answer.content)

    def _take_error(self, ask: _Ask, site: SiteId, code: int, reason: str) -> None:
        if code in _GONE:
            self.note(f"site '{site}': its node went away while it was at {ask.task} (Flower's code {code})")
            self._nodes.lose(site)  # it may come back, and is then asked again
        else:
            ask.fail(site, f"its node answered with Flower's code {code}: {reason}")

    def _take(self, ask: _Ask, site: SiteId, content: object) -> None:
        try:
            fields = open_sealed(content)
            if text(fields, "site") != site:
                raise MessageError(f"the answer is that of site '{text(fields, 'site')}'")
            if reason := text(fields, "reason"):
                ask.fail(site, reason)
                return
            reply = own(from_bytes(data(fields, "reply")))
            if self._carries:
                kept = own(from_bytes(data(fields, "memory")))
            else:
                version = text(fields, "version")
                kept = Message(words={VERSION: version}) if version else Message()
        except MessageError as error:
            ask.fail(site, str(error))
            return
        ask.replies[site], ask.kept[site] = reply, kept


class _Nodes:
    """Which node is which site's, as far as it is known."""

    def __init__(self, grid: Grid, roll: Roll, note: Callable[[str], None]) -> None:
        self._grid, self._roll, self._note = grid, roll, note
        self._site: dict[int, SiteId] = {}  # by node, of those that said whose they are
        self._asked: dict[str, int] = {}  # questions on their way, and to which node
        self._refused: set[int] = set()
        self._faults: dict[int, str] = {}  # by node, why it is nobody's
        self._keys: dict[int, bytes] = {}
        self._looked = float("-inf")

    @property
    def unsure(self) -> bool:
        """Whether some node has yet to say whose it is; one that could not is asked again, but not waited for."""
        return any(node not in self._faults for node in self._asked.values())

    def why_absent(self, site: SiteId) -> str:
        """Say why a site has no node: what is wrong with the one that holds its key, or that there is none."""
        faults = (fault for node, fault in self._faults.items() if self._owner(node) == site)
        return next(faults, "its node is not connected")

    def gather(self, sites: Iterable[SiteId], patience: float, alive: Callable[[], None]) -> None:
        """Wait until all sites are there, but no longer than `patience` seconds."""
        end = time.monotonic() + patience
        while time.monotonic() < end:
            alive()
            self.look()
            if all(self.of_site(site) is not None for site in sites):
                return
            time.sleep(_POLL)
        missing = [site for site in sites if self.of_site(site) is None]
        self._note(f"not connected after {patience:g} s: {', '.join(sorted(missing))}")

    def of_site(self, site: SiteId) -> int | None:
        """Return a site's node."""
        return next((node for node, name in self._site.items() if name == site), None)

    def lose(self, site: SiteId) -> None:
        """Forget a site's node: whoever comes next is asked again."""
        node = self.of_site(site)
        if node is not None:
            self.forget(node)

    def forget(self, node: int) -> None:
        """Forget whose a node is."""
        self._site.pop(node, None)
        self._looked = time.monotonic()  # Flower may list it for another moment

    def look(self) -> None:
        """See which nodes came and went, and ask the new ones whose they are."""
        if self._asked:
            for answer in self._grid.pull_messages(list(self._asked)):
                node = self._asked.pop(answer.metadata.reply_to_message_id, None)
                if node is not None and answer.has_error():
                    self._hear_error(node, answer.error.code, str(answer.error.reason or ""))
                elif node is not None:
                    self._hear(node, answer.content)
        if time.monotonic() - self._looked < _LOOK:
            return
        self._looked = time.monotonic()
        online = self._online()
        self._site = {node: site for node, site in self._site.items() if node in online}
        self._refused &= online
        self._faults = {node: fault for node, fault in self._faults.items() if node in online}
        self._asked = {question: node for question, node in self._asked.items() if node in online}
        for node in sorted(online - self._site.keys() - self._refused - set(self._asked.values())):
            for question in self._grid.push_messages([flwr.app.Message(seal({"task": "who"}), node, WHO)]):
                self._asked[question] = node

    def _online(self) -> set[int]:
        if not self._roll.keys:
            return set(self._grid.get_node_ids())
        self._keys = {node.node_id: bytes(node.public_key) for node in self._grid.get_nodes()}
        return set(self._keys)

    def _hear(self, node: int, content: object) -> None:
        try:
            fields = open_sealed(content)
        except MessageError as error:
            self._refuse(node, str(error))
            return
        site = text(fields, "site")
        if site not in self._roll.sites:
            self._refuse(node, f"a node says it is '{site}', which is no site of this run")
        elif self._roll.keys and self._keys.get(node) != self._roll.keys.get(site):
            self._refuse(node, f"a node says it is '{site}', but does not hold that site's key")
        elif text(fields, "deployment") != self._roll.deployment:
            self._refuse(node, f"the folder of site '{site}' was written by another `fedaccord deploy`")
        elif (version := text(fields, "fedaccord")) != __version__:
            self._refuse(node, f"site '{site}' has fedaccord {version:.20}, the server {__version__}; install the same")
        elif (other := self.of_site(site)) is not None and other != node:
            self._refuse(node, f"two nodes say they are '{site}'; the first is believed")
        else:
            self._site[node] = site
            self._faults.pop(node, None)

    def _hear_error(self, node: int, code: int, reason: str) -> None:
        fault = f"its node cannot say whose it is, with Flower's code {code}: {reason}"
        if code not in _GONE and self._faults.get(node) != fault:
            self._faults[node] = fault
            owner = self._owner(node)
            self._note(f"site '{owner}': {fault}" if owner else fault.replace("its", "a", 1))

    def _owner(self, node: int) -> SiteId | None:
        """Return the site whose key a node holds, where keys are known."""
        key = self._keys.get(node)
        return next((site for site, its in self._roll.keys.items() if its == key), None)

    def _refuse(self, node: int, reason: str) -> None:
        self._refused.add(node)
        self._faults[node] = reason
        self._note(reason)


class _Ask:
    """One ask on its way."""

    def __init__(self, task: str, briefs: dict[SiteId, Message], deadline: float | None) -> None:
        self.task, self.briefs, self.deadline = task, briefs, deadline
        self.sent: dict[str, SiteId] = {}  # by the id of the question
        self.replies: dict[SiteId, Message | Failure] = {}
        self.kept: dict[SiteId, Message] = {}
        self._began = time.monotonic()

    def seconds_left(self) -> float:
        return float("inf") if self.deadline is None else self._began + self.deadline - time.monotonic()

    def is_open(self) -> bool:
        return len(self.replies) < len(self.briefs)

    def waiting(self) -> Sequence[SiteId]:
        under_way = set(self.sent.values())
        return [site for site in self.briefs if site not in self.replies and site not in under_way]

    def fail(self, site: SiteId, reason: str) -> None:
        self.replies[site] = Failure(site, self.task, reason)

    def fail_rest(self, why: Callable[[SiteId], str]) -> None:
        for site in self.briefs.keys() - self.replies.keys():
            self.fail(site, why(site))


def _versions(memories: Mapping[SiteId, Message]) -> dict[SiteId, str]:
    return {site: memory.words.get(VERSION, "") for site, memory in memories.items()}
