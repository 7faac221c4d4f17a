"""Atomic file writes that survive a power cut, and errors of files as sentences."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def atomic_write(target: Path, suffix: str = "") -> Iterator[BinaryIO]:
    """Open a file for writing and replace the target atomically at the end.

    Readers that have the old file open or mapped keep the old content. Processes that may write the same file
    concurrently need different values of `suffix`.
    """
    temporary = target.with_name(f".{target.name}{suffix}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
        sync(target.parent)
    except OSError:
        with contextlib.suppress(OSError):  # the folder may be read-only
            temporary.unlink(missing_ok=True)
        raise


def read_bytes(path: Path, error: type[Exception]) -> bytes:
    """Return the content of a file; raise `error` with a sentence if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as problem:
        raise error(f"'{path}' cannot be read: {problem.strerror}") from None


def write_file(path: Path, content: str | bytes, error: type[Exception]) -> Path:
    """Write a file atomically and return its path; raise `error` with a sentence if it cannot be written."""
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        with atomic_write(path) as file:
            file.write(content.encode() if isinstance(content, str) else content)
    except OSError as problem:
        raise error(f"'{path}' cannot be written: {problem.strerror}") from None
    return path


def sync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk."""
    if path.is_dir() and os.name == "nt":
        return  # Windows cannot open a folder
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
