"""A background thread for one task at a time, such as writing a checkpoint while the next round trains."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Background:
    """Runs a task in a thread; its error is raised by the next `start` or `wait`."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def start(self, task: Callable[[], None]) -> None:
        """Start a task after the previous one has ended."""
        self.wait()
        self._thread = threading.Thread(target=self._run, args=(task,), name="fedaccord background")
        self._thread.start()

    def wait(self) -> None:
        """Wait until the task has ended, and raise its error."""
        self.join()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def join(self) -> None:
        """Wait until the task has ended, without raising its error."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _run(self, task: Callable[[], None]) -> None:
        try:
            task()
        except BaseException as error:
            self._error = error
