"""What a site keeps between rounds, on its own disk: Flower's state of a node is lost when the node restarts.

    memory/<run>/<version>.memory     SHA-256 of the rest | a message that names its run and its site

A version is the digest, so a memory of another run or site, or a damaged one, cannot be taken for the one asked for.
Nothing is ever overwritten; which versions may go is said by the server, which knows what its checkpoints name.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

from fedaccord.engines.flower.site_folder import SiteFolder, write_whole
from fedaccord.errors import EngineError, MessageError
from fedaccord.messages.message import Message, from_bytes, to_bytes

_RUN, _SITE = "fedaccord.run", "fedaccord.site"
_DIGEST = 32


class SiteMemories:
    """The memories of one site in one run."""

    def __init__(self, folder: SiteFolder, run: str) -> None:
        if not re.fullmatch(r"\w[\w.-]*", run):
            raise MessageError(f"'{run}' is no name of a run")
        self._folder, self._run = folder, run
        self._all = folder.path / "memory"
        self._place = self._all / run

    def load(self, version: str) -> Message:
        """Return a memory; the version is "" for a site that keeps nothing yet."""
        if not version:
            return Message()
        if not re.fullmatch(r"[0-9a-f]{64}", version):
            raise MessageError(f"'{version}' is no version of a memory")
        try:
            sealed = (self._place / f"{version}.memory").read_bytes()
        except OSError as error:
            self._explain_absence(version)
            raise EngineError(f"the memory it should go on from is not there: {error.strerror}") from None
        if hashlib.sha256(sealed[_DIGEST:]).hexdigest() != version or sealed[:_DIGEST].hex() != version:
            self._folder.log(f"memory {version[:12]} of run {self._run} is damaged and was not used")
            raise EngineError("the memory it should go on from is damaged")
        memory = from_bytes(sealed[_DIGEST:])
        if (memory.words.pop(_RUN, ""), memory.words.pop(_SITE, "")) != (self._run, self._folder.site):
            self._folder.log(f"memory {version[:12]} is that of another run or site and was not used")
            raise EngineError("the memory it should go on from is that of another run or site")
        return memory

    def store(self, memory: Message) -> str:
        """Write a memory down, whole or not at all, and return its version; an empty one needs no file."""
        if memory.is_empty():
            return ""
        words = memory.words | {_RUN: self._run, _SITE: self._folder.site}
        content = to_bytes(Message(memory.tensors, memory.numbers, words))
        digest = hashlib.sha256(content)
        path = self._place / f"{digest.hexdigest()}.memory"
        if not path.exists():
            if not self._place.exists():
                self._tell_of_others()
            self._place.mkdir(parents=True, exist_ok=True)
            write_whole(path, digest.digest() + content)
        return digest.hexdigest()

    def keep(self, versions: Iterable[str]) -> None:
        """Remove all memories of this run but these."""
        wanted = {f"{version}.memory" for version in versions}
        for path in self._place.glob("*"):
            if path.name not in wanted:
                path.unlink(missing_ok=True)

    def _tell_of_others(self) -> None:
        for other in self._others():
            self._folder.log(f"run {self._run} begins without memory: what lies in memory/{other} is of another run")

    def _explain_absence(self, version: str) -> None:
        others = self._others()
        there = f"; there are memories of other runs ({', '.join(others)}), which are not used" if others else ""
        self._folder.log(f"the server asked for memory {version[:12]} of run {self._run}, which is not here{there}")

    def _others(self) -> list[str]:
        return sorted(path.name for path in self._all.glob("*") if path.is_dir() and path.name != self._run)
