"""A site's memories between rounds, on its own disk, because Flower's node state is lost when a node restarts.

    memory/<run>/<version>.memory     SHA-256 of the rest | a message that names its run and its site

The version id is the digest, so a memory of another run or site, or a damaged one, is detected. Files are never
overwritten; the server, which knows its checkpoints, decides which versions are removed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

from fedaccord.engines.flower.site_folder import SiteFolder, write_site_file
from fedaccord.errors import EngineError, MessageError
from fedaccord.messages.message import Message, from_bytes, to_bytes

_RUN, _SITE = "fedaccord.run", "fedaccord.site"
_DIGEST = 32


class SiteMemories:
    """The memories of one site in one run."""

    def __init__(self, folder: SiteFolder, run: str) -> None:
        if not re.fullmatch(r"\w[\w.-]*", run):
            raise MessageError(f"'{run}' is not a valid name of a run")
        self._folder, self._run = folder, run
        self._all = folder.path / "memory"
        self._place = self._all / run

    def load(self, version: str) -> Message:
        """Return the memory of a version id; the empty id is an empty memory."""
        if not version:
            return Message()
        if not re.fullmatch(r"[0-9a-f]{64}", version):
            raise MessageError(f"'{version}' is not a version id of a memory")
        try:
            sealed = (self._place / f"{version}.memory").read_bytes()
        except OSError as error:
            others = self._other_runs()
            hint = f"; memories of other runs ({', '.join(others)}) are not used" if others else ""
            self._folder.log(f"memory {version[:12]} of run {self._run}, which the server asked for, is missing{hint}")
            raise EngineError(f"its memory from the last round cannot be read: {error.strerror}") from None
        if hashlib.sha256(sealed[_DIGEST:]).hexdigest() != version or sealed[:_DIGEST].hex() != version:
            self._folder.log(f"memory {version[:12]} of run {self._run} is damaged and was not used")
            raise EngineError("its memory from the last round is damaged")
        memory = from_bytes(sealed[_DIGEST:])
        if (memory.words.pop(_RUN, ""), memory.words.pop(_SITE, "")) != (self._run, self._folder.site):
            self._folder.log(f"memory {version[:12]} belongs to another run or site and was not used")
            raise EngineError("its memory from the last round belongs to another run or site")
        return memory

    def store(self, memory: Message) -> str:
        """Write a memory atomically and return its version id; an empty memory has no file."""
        if memory.is_empty():
            return ""
        words = memory.words | {_RUN: self._run, _SITE: self._folder.site}
        content = to_bytes(Message(memory.tensors, memory.numbers, words))
        digest = hashlib.sha256(content)
        path = self._place / f"{digest.hexdigest()}.memory"
        if not path.exists():
            if not self._place.exists():
                for other in self._other_runs():
                    self._folder.log(f"run {self._run} starts without memory: memory/{other} belongs to another run")
            self._place.mkdir(parents=True, exist_ok=True)
            write_site_file(path, digest.digest() + content)
        return digest.hexdigest()

    def remove_all_but(self, versions: Iterable[str]) -> None:
        """Remove all memories of this run except these versions."""
        names = {f"{version}.memory" for version in versions}
        for path in self._place.glob("*"):
            if path.name not in names:
                path.unlink(missing_ok=True)

    def _other_runs(self) -> list[str]:
        return sorted(path.name for path in self._all.glob("*") if path.is_dir() and path.name != self._run)


def stored_memories(folder: SiteFolder) -> list[tuple[str, str]]:
    """Return the run and the version id of every memory in a site's folder, newest first."""
    files = sorted((folder.path / "memory").glob("*/*.memory"), key=lambda path: path.stat().st_mtime_ns, reverse=True)
    return [(path.parent.name, path.stem) for path in files]
