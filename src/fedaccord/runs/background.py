"""One piece of work at a time beside the run, such as writing a checkpoint while the next round trains."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Background:
    """Does what it is given in a thread; an error there is raised by the next `do` or `wait`."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def do(self, work: Callable[[], None]) -> None:
        """Begin a piece of work, after the one before it has ended."""
        self.wait()
        self._thread = threading.Thread(target=self._run, args=(work,), name="fedaccord background")
        self._thread.start()

    def wait(self) -> None:
        """Wait until nothing is under way."""
        self.rest()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def rest(self) -> None:
        """Wait until nothing is under way, and say nothing of errors."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self._error = error
