"""Progress of a run: a live line in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Column, Table
from rich.text import Text

from fedaccord.config import Experiment
from fedaccord.data.sites import FederationData
from fedaccord.federation.round import Evaluation, RoundRecord
from fedaccord.federation.round import Progress as FurtherProgress
from fedaccord.labels.headlines import shown_headlines
from fedaccord.labels.views import View
from fedaccord.recording import Watcher
from fedaccord.runs.gains import Gain, find_gains
from fedaccord.runs.page import NOTHING, measure_name
from fedaccord.runs.reading import read_federation, read_resamples, read_summary

SECONDS_BETWEEN_LINES = 5.0


class RemainingTime(ProgressColumn):
    """Estimates the remaining time from the latest rounds of this process, as soon as two are finished.

    rich's own estimate looks at the last 30 seconds, in which a long round never ends.
    """

    def __init__(self, rounds: int, budget: float | None = None) -> None:
        """Store the number of rounds and the time budget of the run in seconds, if it has one."""
        super().__init__(_whole("0:00:00 left"))
        self.rounds, self.budget, self._start = rounds, budget, time.monotonic()
        self._ends: deque[tuple[int, float]] = deque(maxlen=21)  # rounds and when they ended

    def finished(self, number: int, now: float) -> None:
        """Take note that a round ended; the first one is only a starting point, because it includes the start-up."""
        self._ends.append((number, now))

    def restart(self, rounds: int) -> None:
        """Forget the finished rounds, because others follow that take another time."""
        self.rounds = rounds
        self._ends.clear()

    def seconds(self, now: float) -> float | None:
        """Return the estimated remaining seconds; None if fewer than two rounds are finished."""
        if len(self._ends) < 2:
            return None
        (first, began), (last, ended) = self._ends[0], self._ends[-1]
        left = (ended - began) / (last - first) * (self.rounds - last) - (now - ended)
        if self.budget is not None:
            left = min(left, self.budget - (now - self._start))
        return max(left, 0.0)

    def render(self, task: Task) -> Text:
        """Return the remaining time as h:mm:ss."""
        seconds = self.seconds(time.monotonic())
        if seconds is None:
            return Text("")
        minutes, rest = divmod(round(seconds), 60)
        return Text(f"{minutes // 60}:{minutes % 60:02d}:{rest:02d} left", "cyan")


def _whole(longest: str) -> Column:
    """Return a column that a narrow terminal does not shorten; the bar gives way."""
    return Column(no_wrap=True, min_width=len(longest))


class Display:
    """Shows rounds, the remaining time and the main metrics."""

    def __init__(self, experiment: Experiment, console: Console) -> None:
        self.experiment, self.console = experiment, console
        self.rounds = experiment.settings.rounds
        self.figures = ""
        self.views: dict[str, View] = {}
        self._printed = 0.0  # time of the last plain line
        title, figures = TextColumn("[bold]{task.description}[/]"), TextColumn("{task.fields[figures]}")
        last = f"round {self.rounds} of {self.rounds}"
        number = TextColumn("round {task.completed} of {task.total}", table_column=_whole(last))
        self._remaining = RemainingTime(self.rounds, experiment.stop.seconds)
        columns = title, BarColumn(), number, self._remaining, figures
        self._progress = Progress(*columns, console=console, disable=not console.is_terminal)

    def __enter__(self) -> Self:
        self._progress.start()
        self._task = self._progress.add_task(self._title(), total=self.rounds, figures="preparing")
        if not self.console.is_terminal:
            self._print(f"{self._title()}: preparing")
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def watcher(self) -> Watcher:
        """Return the callbacks for the run."""
        return Watcher(started=self.started, round=self.round, progress=self.further, note=self.note)

    def started(self, data: FederationData) -> None:
        """Print the size of the federation."""
        self.views = data.views
        sizes = [len(site.train) for site in data.sites.values()]
        self._print(
            f"{self._title()}: {len(sizes)} sites, {sum(sizes):,} training samples, {len(data.space)} labels, "
            f"{self.rounds} rounds"
        )

    def round(self, record: RoundRecord) -> None:
        """Show a finished round."""
        if record.evaluation is not None:
            self.figures = _figures(record.evaluation, self.views)
        for text in [*record.events(), *map(str, record.dropped)]:
            self._print(f"  {text}")
        if self.console.is_terminal:
            self._remaining.finished(record.round, time.monotonic())
            self._progress.update(self._task, completed=record.round, figures=self.figures)
        elif record.round == self.rounds or time.monotonic() - self._printed > SECONDS_BETWEEN_LINES:
            self._printed = time.monotonic()
            self._print(f"{self._title()}: round {record.round}/{self.rounds}  {self.figures}")

    def further(self, progress: FurtherProgress) -> None:
        """Show a finished round after the last one of the run."""
        done, total = progress.done, progress.total
        if self.console.is_terminal:
            if done == 1:
                self._remaining.restart(total)
            self._remaining.finished(done, time.monotonic())
            self._progress.update(self._task, completed=done, total=total, figures=progress.doing)
        elif done == total or time.monotonic() - self._printed > SECONDS_BETWEEN_LINES:
            self._printed = time.monotonic()
            self._print(f"{self._title()}: {progress.doing}, round {done}/{total}")

    def note(self, text: str) -> None:
        """Print a message for the user."""
        self._print(f"{self._title()}: {text}")

    def warn(self, text: str) -> None:
        """Print a warning."""
        self.console.print(Text.assemble(("warning:", "yellow"), f" {text}"), soft_wrap=True)

    def _title(self) -> str:
        return f"{self.experiment.name} ({self.experiment.method_name})"

    def _print(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)


def show_outcome(folder: Path, alone: Path | None, console: Console) -> None:
    """Print the verdict on a finished run and, beside a run without federation, what federation brought each site."""
    summary = read_summary(folder)
    console.print(summary.verdict.text, highlight=False, soft_wrap=True)
    if alone is None:
        return
    table = Table("site", "figure", "alone", "together", "gain, points", "95 % interval")
    for column in table.columns[2:]:
        column.justify = "right"
    for site, gain in find_gains(summary, read_federation(folder), read_resamples(folder), alone).items():
        shares = [f"{share:.1%}" for share in (gain.alone, gain.together)]
        points = f"{100 * (gain.together - gain.alone):+.1f}"
        table.add_row(Text(site), measure_name(gain.measure), *shares, points, _interval(gain))
    console.print("\nWhat federation brought each site, on its own task", highlight=False)
    console.print(table)


def _interval(gain: Gain) -> str:
    estimate = None if gain.difference is None else gain.difference.estimate
    if estimate is None or estimate.low is None or estimate.high is None:
        return NOTHING
    return f"{100 * estimate.low:+.1f} to {100 * estimate.high:+.1f}"


def _figures(figures: Evaluation, views: Mapping[str, View]) -> str:
    """Return the headline metrics: of the global model, and the mean over sites."""
    spread, headlines = figures.over_sites(), shown_headlines(views, figures.sites)
    mean = spread["mean"]
    whole = [f"{_name(m)}{figures.global_[m]:.1%}" for m in headlines if m in figures.global_]
    each = [f"{_name(m)}{mean[m]:.1%} ± {100 * spread['std'][m]:.1f}" for m in headlines if m in mean]
    parts = [("global", whole), ("sites", each)]
    return ", ".join(f"{scope} {', '.join(found)}" for scope, found in parts if found)


def _name(metric: str) -> str:
    """Return the name of a metric before its value; accuracy needs none."""
    return "" if metric == "accuracy" else f"{measure_name(metric)} "
