"""A lock that admits one process at a time to a run folder."""

from __future__ import annotations

import os
import weakref
from pathlib import Path

from fedaccord.errors import RunFolderError

try:
    import fcntl
except ImportError:  # only Unix has locks that end with their process
    fcntl = None  # type: ignore[assignment]


class FolderLock:
    """A lock on a run folder; the operating system releases it when the process ends."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / ".lock"
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise RunFolderError(f"the run folder '{folder}' cannot be written: {error.strerror}") from None
        self._close = weakref.finalize(self, os.close, fd)
        if fcntl is not None:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
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

    def release(self) -> None:
        """Release the lock; may be called more than once."""
        self._close()
