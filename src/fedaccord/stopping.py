"""Early stopping: a metric that no longer improves, a time budget, or a signal."""

from __future__ import annotations

import signal
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from fedaccord.config import Stop
from fedaccord.errors import ConfigError, FedAccordError, did_you_mean

# Losses, errors, and signed differences between groups.
BEST_AT_ZERO = {"nll", "hamming", "correlation_error", "matrix_error", "matrix_change"}
BEST_AT_ZERO |= {f"{name}{by}" for name in ("eod", "spd") for by in ("", "_candidate")}


class Stopped(FedAccordError):
    """A signal stopped the run; a checkpoint of the last finished round was written."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.exit_code = 128 + number


class Signals:
    """Raises SIGINT and SIGTERM as `Stopped`: at once, or after a round that is being written."""

    def __init__(self) -> None:
        self._caught = 0
        self._deferring = False

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Defer signals to the end of this block."""
        self._deferring = True
        try:
            yield
        finally:
            self._deferring = False
        # Also raise a signal whose exception was lost earlier: in a destructor, or in a user's `except`.
        if self._caught:
            raise Stopped(self._caught)

    def ignore(self) -> None:
        """Ignore all further signals."""
        self._deferring = True

    def arrive(self, number: int, frame: FrameType | None = None) -> None:
        """Handle a signal."""
        self._caught = self._caught or number
        if not self._deferring:
            raise Stopped(number)


@contextmanager
def signals_stop() -> Iterator[Signals]:
    """Raise SIGINT and SIGTERM as `Stopped` inside this block; do nothing outside the main thread."""
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
    """Measures the seconds of a run, including those before it was resumed."""

    def __init__(self, before: float = 0.0) -> None:
        self._start = time.perf_counter() - before

    def seconds(self) -> float:
        """Return the elapsed seconds."""
        return time.perf_counter() - self._start


class Stopping:
    """Decides when to stop early, following `[stop]` of the experiment file."""

    def __init__(self, settings: Stop, clock: Clock) -> None:
        self.settings, self.clock = settings, clock
        self.best: float | None = None
        self.waited = 0

    def look(self, figures: dict[str, Any]) -> None:
        """Update with the metrics of an evaluation, by scope as in `summary.json`.

        Raise ConfigError if the first evaluation lacks the metric; if a later one lacks it, it counts as no
        improvement.
        """
        metric = self.settings.metric
        if metric is None:
            return
        value = figure(figures, metric)
        if value is None and self.best is None:
            raise unknown_metric("stop.metric", metric, figures)
        worth = float("-inf") if value is None else gain(metric, value)
        if self.best is None or worth > self.best + self.settings.min_delta:
            self.best, self.waited = worth, 0
        else:
            self.waited += 1

    def out_of_time(self) -> bool:
        """Return whether the time budget is used up."""
        return self.settings.seconds is not None and self.clock.seconds() >= self.settings.seconds

    def reason(self) -> str:
        """Return why the run should stop now, or an empty string."""
        settings = self.settings
        if settings.metric is not None and self.waited >= settings.patience:
            return f"{settings.metric} did not improve in {self.waited} evaluations"
        if settings.seconds is not None and self.out_of_time():
            return f"the time budget of {settings.seconds:g} s is used up"
        return ""


def gain(metric: str, value: float) -> float:
    """Return a number that grows as a metric improves: its value, or minus its magnitude if the best value is zero."""
    return -abs(value) if metric.rpartition(".")[2] in BEST_AT_ZERO else value


def figure(figures: dict[str, Any], metric: str) -> float | None:
    """Return a metric by its dotted name, or None: `global.M`, `sites.mean.M`, `sites.median.M`, `sites.each.SITE.M`.

    One site can shift a mean, within the range of the metric; it cannot shift a median.
    """
    scope, _, name = metric.rpartition(".")
    if scope == "sites.median":
        values = [metrics[name] for metrics in figures["sites"]["each"].values() if name in metrics]
        return statistics.median(values) if values else None
    if scope.startswith("sites.each."):  # the name of a site may contain dots
        place = figures["sites"]["each"].get(scope.removeprefix("sites.each."), {})
    else:
        place = {"global": figures["global"], "sites.mean": figures["sites"]["mean"]}.get(scope, {})
    return place.get(name)


def unknown_metric(where: str, metric: str, figures: dict[str, Any]) -> ConfigError:
    """Return the error for a metric that is not measured, with the closest one that is."""
    return ConfigError(f"{where}: unknown metric '{metric}'; {did_you_mean(metric, metric_names(figures))}")


def metric_names(figures: dict[str, Any]) -> list[str]:
    """Return the dotted names of all measured metrics."""
    over = [f"sites.{which}.{k}" for which in ("mean", "median") for k in figures["sites"]["mean"]]
    each = [f"sites.each.{site}.{name}" for site, metrics in figures["sites"]["each"].items() for name in metrics]
    return [f"global.{k}" for k in figures["global"]] + over + each
