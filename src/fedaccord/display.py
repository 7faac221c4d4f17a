"""Progress of a run: a live line in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Column, Table
from rich.text import Text

from fedaccord.config import Experiment
from fedaccord.data.sites import FederationData
from fedaccord.evaluation.differences import Gain
from fedaccord.federation.round import Evaluation, RoundRecord
from fedaccord.federation.round import Progress as FurtherProgress
from fedaccord.labels.headlines import shown_headlines
from fedaccord.labels.views import View
from fedaccord.recording import Watcher
from fedaccord.runs.gains import compared_gains
from fedaccord.runs.page import NOTHING, measure_name, percent
from fedaccord.runs.reading import read_federation, read_resamples, read_summary
from fedaccord.runs.verdict import in_words

SECONDS_BETWEEN_LINES = 5.0
MOST_SITES = 20  # in the table at the end


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
    """Print the verdict on a finished run and, if it can be compared with training alone, each site's gain.

    `alone` is the folder of a run without federation; without one, sites are compared with their own models alone.
    """
    summary, federation = read_summary(folder), read_federation(folder)
    console.print(summary.verdict.text, highlight=False, soft_wrap=True)
    gains = compared_gains(summary, federation, read_resamples(folder), alone)
    if gains is None:
        return
    shared = {} if alone is not None or summary.final.shared is None else summary.final.shared.each
    shown = dict(list(gains.items())[:MOST_SITES])
    for measure in dict.fromkeys(gain.measure for gain in shown.values()):
        table = _gain_table(bool(shared))
        for site, gain in shown.items():
            if gain.measure == measure:
                between = [shared.get(site, {}).get(measure)] if shared else []
                shares = [percent(share) for share in (gain.alone, *between, gain.together)]
                table.add_row(Text(site), *shares, *_change(gain))
        title = f"\nWhat federation brought each site, on its own task ({measure_name(measure)})"
        console.print(title, highlight=False, soft_wrap=True)
        console.print(table)
    if len(gains) > MOST_SITES:
        console.print(f"and {len(gains) - MOST_SITES} more sites, see the report", highlight=False)


def _gain_table(shared: bool) -> Table:
    """Return the empty table of the gains in one figure, narrow enough for 80 columns."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("site", overflow="fold")
    for heading in ["alone", "shared", "in the\nend"] if shared else ["alone", "together"]:
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("gain, points\n(95 % interval)", justify="right", no_wrap=True)
    table.add_column("verdict", min_width=len("cannot tell"))
    return table


def _change(gain: Gain) -> tuple[str, str]:
    """Return a site's gain in points with its interval, and its verdict."""
    difference = gain.difference
    points = f"{100 * (gain.together - gain.alone if difference is None else difference.estimate.value):+.1f}"
    if difference is None:
        return points, NOTHING
    low, high = difference.estimate.low, difference.estimate.high
    interval = "" if low is None or high is None else f" ({100 * low:+.1f} to {100 * high:+.1f})"
    return points + interval, in_words(difference.standing, difference.rows)


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
