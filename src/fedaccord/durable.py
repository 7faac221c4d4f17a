"""Files that are there whole or not at all, and still there after a power cut."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def whole_file(target: Path, mark: str = "") -> Iterator[BinaryIO]:
    """Open a file for writing, of which either the old or the new content is there, whatever happens.

    Who has the old content open or mapped keeps it. Processes that may write one file at a time need a `mark` each.
    """
    temporary = target.with_name(f".{target.name}{mark}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
        sync(target.parent)
    except OSError:
        with contextlib.suppress(OSError):  # nothing can be removed from a read-only folder
            temporary.unlink(missing_ok=True)
        raise


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    if path.is_dir() and os.name == "nt":
        return  # there a folder cannot be opened
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
