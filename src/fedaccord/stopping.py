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

# Losses, errors, and differences between groups, of which either sign is one.
BEST_AT_ZERO = {"nll", "hamming", "correlation_error", "matrix_error", "matrix_change"}
BEST_AT_ZERO |= {f"{name}{by}" for name in ("eod", "spd") for by in ("", "_candidate")}


class Stopped(FedAccordError):
    """A signal asked the run to end; a checkpoint of the last finished round was written."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.exit_code = 128 + number


class Signals:
    """SIGINT and SIGTERM of a run: raised as `Stopped` at once, but not in the middle of writing a round down."""

    def __init__(self) -> None:
        self._caught = 0
        self._held = False

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let a signal wait for the end of this block."""
        self._held = True
        try:
            yield
        finally:
            self._held = False
        # Also one that was raised before, where nobody could hear it: in a destructor, or under a user's `except`.
        if self._caught:
            raise Stopped(self._caught)

    def ignore(self) -> None:
        """Let no further signal disturb how the run ends."""
        self._held = True

    def arrive(self, number: int, frame: FrameType | None = None) -> None:
        """Take a signal: the handler."""
        self._caught = self._caught or number
        if not self._held:
            raise Stopped(number)


@contextmanager
def signals_stop() -> Iterator[Signals]:
    """Turn SIGINT and SIGTERM into `Stopped` while a run goes; outside the main thread signals are not ours."""
    signals = Signals()
    if threading.current_thread() is not threading.main_thread():
        yield signals
        return
    before = {number: signal.signal(number, signals.arrive) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield signals
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
        """Take the figures of an evaluation into account, by scope as in `summary.json`.

        A figure that the first evaluation does not have is an unknown one; later it may be missing, and nothing is won.
        """
        metric = self.settings.metric
        if metric is None:
            return
        value = figure(figures, metric)
        if value is None and self.best is None:
            raise unknown_figure("stop.metric", metric, figures)
        worth = float("-inf") if value is None else gain(metric, value)
        if self.best is None or worth > self.best + self.settings.min_delta:
            self.best, self.waited = worth, 0
        else:
            self.waited += 1

    def out_of_time(self) -> bool:
        """Say whether the time budget is used up."""
        return self.settings.seconds is not None and self.clock.seconds() >= self.settings.seconds

    def reason(self) -> str:
        """Return why the run should end now, or nothing."""
        settings = self.settings
        if settings.metric is not None and self.waited >= settings.patience:
            return f"{settings.metric} did not improve in {self.waited} evaluations"
        if settings.seconds is not None and self.out_of_time():
            return f"the time budget of {settings.seconds:g} s is used up"
        return ""


def gain(metric: str, value: float) -> float:
    """Return a number that grows as a figure improves: the figure, or where the best is zero, minus its distance."""
    return -abs(value) if metric.rpartition(".")[2] in BEST_AT_ZERO else value


def figure(figures: dict[str, Any], metric: str) -> float | None:
    """Return a figure by its dotted name, if there is one: `global.F`, `sites.mean.F` or `sites.each.SITE.F`."""
    scope, _, name = metric.rpartition(".")
    if scope.startswith("sites.each."):  # a site's name may have dots in it
        place = figures["sites"]["each"].get(scope.removeprefix("sites.each."), {})
    else:
        place = {"global": figures["global"], "sites.mean": figures["sites"]["mean"]}.get(scope, {})
    return place.get(name)


def unknown_figure(where: str, metric: str, figures: dict[str, Any]) -> ConfigError:
    """Return the error that tells a figure nobody measures, and the closest one that is."""
    return ConfigError(f"{where}: there is no figure '{metric}'; {did_you_mean(metric, known(figures))}")


def known(figures: dict[str, Any]) -> list[str]:
    """Return the dotted names of all figures that can be watched."""
    each = [f"sites.each.{site}.{name}" for site, metrics in figures["sites"]["each"].items() for name in metrics]
    return [f"global.{k}" for k in figures["global"]] + [f"sites.mean.{k}" for k in figures["sites"]["mean"]] + each
