"""When a run ends before its last round: a figure that no longer improves, a time budget, or a signal."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from fedaccord.config import Stop
from fedaccord.errors import ConfigError, FedAccordError, did_you_mean


class Stopped(FedAccordError):
    """A signal asked the run to end; a checkpoint of the last finished round was written."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.exit_code = 128 + number


@contextmanager
def signals_stop() -> Iterator[None]:
    """Turn SIGINT and SIGTERM into `Stopped` while a run goes; outside the main thread signals are not ours."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise Stopped(number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Clock:
    """Counts the seconds of a run, over all its parts."""

    def __init__(self, before: float = 0.0) -> None:
        self._start = time.perf_counter() - before

    def seconds(self) -> float:
        """Return the seconds so far."""
        return time.perf_counter() - self._start


class Stopping:
    """Says when a run should end before its last round, as `[stop]` of the experiment file asks."""

    def __init__(self, settings: Stop, clock: Clock) -> None:
        self.settings, self.clock = settings, clock
        self.best: float | None = None
        self.waited = 0

    def look(self, figures: dict[str, Any]) -> None:
        """Take the figures of an evaluation into account, by scope as in `summary.json`."""
        metric = self.settings.metric
        if metric is None:
            return
        value = figure(figures, metric)
        # Likelihoods are told as losses: smaller is better.
        gain = -value if metric.rsplit(".", 1)[-1] == "nll" else value
        if self.best is None or gain > self.best + self.settings.min_delta:
            self.best, self.waited = gain, 0
        else:
            self.waited += 1

    def reason(self) -> str:
        """Return why the run should end now, or nothing."""
        settings = self.settings
        if settings.metric is not None and self.waited >= settings.patience:
            return f"{settings.metric} did not improve in {self.waited} evaluations"
        if settings.seconds is not None and self.clock.seconds() >= settings.seconds:
            return f"the time budget of {settings.seconds:g} s is used up"
        return ""


def figure(figures: dict[str, Any], metric: str) -> float:
    """Return a figure by its dotted name; an unknown one is an error that says what there is."""
    place: Any = figures
    for part in metric.split("."):
        if not isinstance(place, dict) or part not in place:
            known = [f"global.{k}" for k in figures["global"]] + [f"sites.mean.{k}" for k in figures["sites"]["mean"]]
            raise ConfigError(f"stop.metric: there is no figure '{metric}'; {did_you_mean(metric, known)}")
        place = place[part]
    return float(place)
