"""The engine whose sites are Flower nodes.

    ask --envelope--> grid --> node --> ClientApp: host.handle --> grid --poll--> reply

Sites are identified by name (`nodes.py`), so a node may reconnect under another id. Answers after the deadline and
duplicate answers are ignored.

If sites store their memories themselves, the engine only stores version ids: a question names the version that the site
starts from, the answer the version that it created. The new version is used once the answer has been accepted. So a
site whose answer was late starts from its old memory in the next round, as in the embedded engine, and a question may
safely be sent twice.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import flwr.app

from fedaccord.engines.ask import Ask
from fedaccord.engines.engine import NamedSites
from fedaccord.engines.flower.envelope import TASK, Fields, cloned, data, open_sealed, seal, text
from fedaccord.engines.flower.nodes import UNREACHABLE, Nodes, Roster
from fedaccord.errors import EngineError, MessageError
from fedaccord.messages.message import Failure, Message, SiteId, encoded_size, from_bytes, to_bytes
from fedaccord.plain_text import one_line

if TYPE_CHECKING:
    from flwr.serverapp import Grid

VERSION = "version"  # the word in a checkpoint that holds the version id of a memory stored at its site
_CHECKPOINTS = 2  # checkpoints whose memories the sites keep
_POLL = 0.1  # seconds between checks for answers
_SPARE, _TIMES = 2**26, 8  # an answer has at most `_SPARE` bytes more than `_TIMES` those of its question
_SLACK = 5.0  # seconds that a question lives longer than its deadline, to allow for clock differences


class FlowerEngine(NamedSites):
    """Runs sites behind a Flower grid.

    `part` is the number of sites to ask at a time if replies are processed one by one.

    With `carries_memories`, for simulations, the engine stores the sites' memories and sends them with every question;
    otherwise the sites store them. The first `ask` waits up to `patience` seconds for sites to connect; later ones do
    not wait for a site that is not connected. `note` receives messages about nodes for the user; `alive` raises if the
    grid has ended.
    """

    part = 512

    def __init__(
        self,
        grid: Grid,
        roster: Roster,
        *,
        carries_memories: bool,
        patience: float = 60.0,
        note: Callable[[str], None] = lambda text: None,
        close: Callable[[], None] = lambda: None,
        alive: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(roster.sites)
        self.note = note
        self._grid, self._close, self._alive = grid, close, alive
        self._carries, self._patience = carries_memories, patience
        self._nodes = Nodes(grid, roster, lambda text: self.note(one_line(text)))
        self._returned: dict[SiteId, str] = {}  # versions that `memories` returned last
        self._checkpointed: list[dict[SiteId, str]] = []  # versions in the last checkpoints

    def ask(
        self, task: str, briefs: Mapping[SiteId, Message], deadline: float | None = None
    ) -> dict[SiteId, Message | Failure]:
        """Run `task` at every site with a brief; return one entry per brief, in the order of site names.

        The time that the first call waits for nodes does not count towards `deadline`. A site whose node disconnects is
        asked again if it reconnects while others are still running.
        """
        self._check_sites("brief", briefs)
        if self._patience:
            self._nodes.gather(self._sites, self._patience, self._alive)
            self._patience = 0.0
        ask = Ask(task, {site: briefs[site] for site in sorted(briefs)}, deadline)
        sent: dict[str, SiteId] = {}  # unanswered questions by id
        while ask.unanswered:
            self._alive()
            self._nodes.look()
            self._send(ask, sent)
            self._receive(ask, sent)
            if ask.seconds_left() <= 0:
                ask.time_out()
            elif not sent and not self._nodes.unsure:
                for site in list(ask.unanswered):
                    ask.fail(site, self._nodes.why_absent(site))
            elif ask.unanswered:
                time.sleep(_POLL)
        self._memories.update(ask.memories)
        return dict(ask.in_order())

    def memories(self) -> dict[SiteId, Message]:
        """Return the sites' memories, or their version ids if the sites store them; not to be modified."""
        memories = super().memories()
        self._returned = _versions(memories)  # the sites must keep these, since a checkpoint may be written of them
        return memories

    def restore(self, memories: Mapping[SiteId, Message]) -> None:
        """Restore memories that `memories` returned; the memory of a site that is missing becomes empty."""
        self._check_sites("memory", memories)
        for site, memory in memories.items():
            if (VERSION in memory.words) == self._carries:
                where = "at the site" if self._carries else "at the server"
                raise EngineError(
                    f"the run of this checkpoint stored the memory of site '{site}' {where}; "
                    "resume it with the engine that started it"
                )
        self._memories = dict(memories)
        self.checkpointed(memories)

    def checkpointed(self, memories: Mapping[SiteId, Message]) -> None:
        """Confirm that a checkpoint names these memories, so that the sites keep them."""
        self._checkpointed = [*self._checkpointed, _versions(memories)][-_CHECKPOINTS:]

    def close(self) -> None:
        """Release the grid; may be called more than once."""
        self._close()

    def _question(self, task: str, site: SiteId, brief: Message) -> Fields:
        memory = self._memories.get(site, Message())
        fields: Fields = {"task": task, "site": site, "run": brief.words.get("run", ""), "brief": to_bytes(brief)}
        if self._carries:
            return fields | {"memory": to_bytes(memory)}
        version = memory.words.get(VERSION, "")
        needed = {version, *(versions.get(site, "") for versions in (self._returned, *self._checkpointed))} - {""}
        return fields | {"version": version, "keep": ",".join(sorted(needed))}

    def _send(self, ask: Ask, sent: dict[str, SiteId]) -> None:
        for site in sorted(ask.unanswered - set(sent.values())):
            node = self._nodes.of_site(site)
            if node is not None:
                ttl = None if ask.deadline is None else ask.seconds_left() + _SLACK
                # One at a time, because Flower returns ids only of the questions that it accepted.
                content = seal(self._question(ask.task, site, ask.briefs[site]))
                ids = list(self._grid.push_messages([flwr.app.Message(content, node, TASK, ttl=ttl)]))
                if ids:
                    sent[ids[0]] = site
                else:
                    self._nodes.forget(node)

    def _receive(self, ask: Ask, sent: dict[str, SiteId]) -> None:
        if not sent:
            return
        for answer in self._grid.pull_messages(list(sent)):
            # By the id of the question, because errors made by Flower do not name the node.
            site = sent.pop(answer.metadata.reply_to_message_id, None)
            if site is None or site not in ask.unanswered:
                continue
            if not answer.has_error():
                self._take(ask, site, answer.content)
            elif (code := answer.error.code) in UNREACHABLE:
                self.note(f"site '{site}': its node disconnected during {ask.task} (Flower error code {code})")
                self._nodes.lose(site)  # it is asked again if it reconnects
            else:
                ask.fail(site, f"its node answered with Flower error code {code}: {answer.error.reason or ''}")

    def _take(self, ask: Ask, site: SiteId, content: object) -> None:
        try:
            fields = open_sealed(content)
            if text(fields, "site") != site:
                raise MessageError(f"the answer is from site '{text(fields, 'site')}'")
            if reason := text(fields, "reason"):
                ask.fail(site, reason)
                return
            self._check_size(fields, ask.briefs[site])
            reply = cloned(from_bytes(data(fields, "reply")))
            if self._carries:
                memory = cloned(from_bytes(data(fields, "memory")))
            else:
                version = text(fields, "version")
                if not re.fullmatch(r"([0-9a-f]{64})?", version):
                    raise MessageError(f"'{one_line(version[:80])}' is not a version id of a memory")
                memory = Message(words={VERSION: version}) if version else Message()
            ask.answer(site, reply, memory)
        except MessageError as error:
            ask.fail(site, str(error))

    def _check_size(self, fields: Fields, brief: Message) -> None:
        """Raise MessageError for an answer that is much longer than its question, before it is decoded."""
        size = sum(len(value) for name, value in fields.items() if name != "memory")  # this engine carried it there
        if size > (most := _SPARE + _TIMES * encoded_size(brief)):
            raise MessageError(f"the answer has {size} bytes, more than {most}")


def _versions(memories: Mapping[SiteId, Message]) -> dict[SiteId, str]:
    return {site: memory.words.get(VERSION, "") for site, memory in memories.items()}
