"""The run folder: the complete record of a run, written so that a crash loses no finished round."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedaccord.durable import sync, write_file
from fedaccord.errors import FolderTakenError, RunFolderError
from fedaccord.messages.message import Message
from fedaccord.plain_text import printable
from fedaccord.runs.checkpoint import pack, seal

KEPT_CHECKPOINTS = 2
_TRIES = 10  # to take the lock of a folder
try:
    import fcntl
except ImportError:  # only Unix has locks that end with their process
    fcntl = None  # type: ignore[assignment]


class NotWritten(RunFolderError):
    """A file of a run could not be written; earlier files are complete, and the run can be resumed."""


class RunFolder:
    """The folder of a run, locked for writing by this process."""

    def __init__(self, path: Path, reopen: bool = False, overwrite: bool = False) -> None:
        """Open a new folder, or with `reopen` that of a run; `overwrite` removes all content of a folder first."""
        self.path = path
        if reopen:
            if not (path / "config.toml").is_file():
                raise RunFolderError(f"'{path}' is not a run folder: it has no config.toml")
            self._lock = FolderLock(path)
            for left in [*path.glob(".*.tmp"), *path.glob("*/.*.tmp"), *path.glob("*/*/.*.tmp")]:
                with contextlib.suppress(OSError):
                    left.unlink()  # of a killed process
            return
        try:
            path.mkdir(parents=True, exist_ok=True)
            if any(path.iterdir()) and not overwrite:
                raise FolderTakenError(f"the folder '{path}' is not empty; give another one with --out")
            self._lock = FolderLock(path)  # before anything is removed: another process may be writing
            self._clear()
            (path / "checkpoints").mkdir()
            (path / "model").mkdir()
        except OSError as error:
            if isinstance(error, RunFolderError):
                raise
            raise RunFolderError(f"the run folder '{path}' cannot be created: {error.strerror}") from None

    def _clear(self) -> None:
        """Remove everything but the lock."""
        for entry in self.path.iterdir():
            if entry.name == self._lock.path.name:
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()

    def write(self, name: str, content: str | bytes) -> None:
        """Write a file atomically, and make its folder."""
        with self._checked(name) as target:
            target.parent.mkdir(exist_ok=True)
        write_file(target, content, NotWritten)

    def write_json(self, name: str, table: Mapping[str, Any]) -> None:
        """Write a JSON file atomically."""
        self.write(name, json.dumps(table, indent=2, ensure_ascii=False, allow_nan=False) + "\n")

    def append_metrics(self, lines: list[dict[str, Any]]) -> None:
        """Append the lines of a round to metrics.jsonl."""
        texts = [json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n" for line in lines]
        self._append("metrics.jsonl", "".join(texts))

    def log(self, text: str) -> None:
        """Append a line to log.txt, with the time."""
        self._append("log.txt", f"{time.strftime('%Y-%m-%d %H:%M:%S')} {printable(text)}\n")

    def write_checkpoint(self, state: Message, memories: Mapping[str, Message]) -> None:
        """Write a checkpoint, and remove all but the last few.

        metrics.jsonl is flushed to disk first, so that a checkpoint is never newer than its lines.
        """
        round_ = int(state.numbers["round"])
        with self._checked("metrics.jsonl") as metrics:
            if metrics.exists():
                sync(metrics)
                sync(self.path)
        self.write(f"checkpoints/round-{round_:06d}.checkpoint", seal(pack(state, memories)))
        self.drop_old_checkpoints()

    def drop_old_checkpoints(self) -> None:
        """Remove all but the last few checkpoints."""
        for old in sorted((self.path / "checkpoints").glob("round-*.checkpoint"))[:-KEPT_CHECKPOINTS]:
            with contextlib.suppress(OSError):  # an extra checkpoint does no harm
                old.unlink()

    def set_aside(self, name: str) -> None:
        """Rename an unusable checkpoint, so that it is ignored but not deleted."""
        path = self.path / "checkpoints" / name
        try:
            path.replace(path.with_name(f"{name}.refused"))
        except OSError as error:
            raise RunFolderError(f"'{path}' cannot be renamed: {error.strerror}") from None

    def trim_metrics(self, lines: list[dict[str, Any]]) -> None:
        """Replace metrics.jsonl by these lines."""
        self.write("metrics.jsonl", "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))

    def close(self) -> None:
        """Release the lock."""
        self._lock.release()

    def discard(self) -> None:
        """Remove the folder of a run that ended before its first round; it was empty before, so this is safe."""
        if not (self.path / "metrics.jsonl").exists():
            shutil.rmtree(self.path, ignore_errors=True)

    def _append(self, name: str, text: str) -> None:
        with self._checked(name) as target, target.open("a", encoding="utf-8") as file:
            file.write(text)

    @contextlib.contextmanager
    def _checked(self, name: str) -> Iterator[Path]:
        target = self.path / name
        try:
            yield target
        except OSError as error:
            raise NotWritten(f"'{target}' cannot be written: {error.strerror}") from None


def free_folder(parent: Path, name: str) -> Path:
    """Return `parent/name`, or the first of name-2, name-3, ... that does not exist."""
    candidate, number = parent / name, 2
    while candidate.exists():
        candidate, number = parent / f"{name}-{number}", number + 1
    return candidate


def is_locked(folder: Path) -> bool:
    """Return whether a process is writing this run; False where the system has no such locks."""
    if fcntl is not None:
        try:
            with (folder / ".lock").open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            return isinstance(error, BlockingIOError)  # otherwise there is no lock, or it may not be read
    return False


class FolderLock:
    """A lock on a run folder; the operating system releases it when the process ends."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / ".lock"
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise RunFolderError(f"the run folder '{folder}' cannot be written: {error.strerror}") from None
        self.release = weakref.finalize(self, os.close, fd)  # may be called more than once
        if fcntl is not None:
            try:
                self._take(fd)
            except OSError:
                holder = os.read(fd, 100).decode() or "it has just started"
                self.release()
                raise RunFolderError(f"the run in '{folder}' is being written by another process ({holder})") from None
        try:
            os.truncate(fd, 0)
            os.write(fd, f"process {os.getpid()}".encode())
        except OSError as error:
            self.release()
            raise RunFolderError(f"the run folder '{folder}' cannot be written: {error.strerror}") from None

    @staticmethod
    def _take(fd: int) -> None:
        """Take the lock; wait a moment for `is_locked`, which holds it while it looks."""
        for left in reversed(range(_TRIES)):
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if not left:
                    raise
            time.sleep(0.02)
