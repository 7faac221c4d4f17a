"""Progress of a run: a live line in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from fedaccord.config import Experiment
from fedaccord.data.sites import FederationData
from fedaccord.federation.round import Evaluation, RoundRecord
from fedaccord.recording import Watcher

SECONDS_BETWEEN_LINES = 5.0


class Display:
    """Shows rounds, the remaining time and the main metrics."""

    def __init__(self, experiment: Experiment, console: Console) -> None:
        self.experiment, self.console = experiment, console
        self.rounds = experiment.settings.rounds
        self.figures = ""
        self._printed = 0.0  # time of the last plain line
        title, figures = TextColumn("[bold]{task.description}[/]"), TextColumn("{task.fields[figures]}")
        columns = title, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), figures
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
        return Watcher(started=self.started, round=self.round, note=self.note)

    def started(self, data: FederationData) -> None:
        """Print the size of the federation."""
        sizes = [len(site.train) for site in data.sites.values()]
        self._print(
            f"{self._title()}: {len(sizes)} sites, {sum(sizes):,} training samples, {len(data.space)} labels, "
            f"{self.rounds} rounds"
        )

    def round(self, record: RoundRecord) -> None:
        """Show a finished round."""
        if record.evaluation is not None:
            self.figures = _figures(record.evaluation)
        for text in [*record.events(), *map(str, record.dropped)]:
            self._print(f"  {text}")
        if self.console.is_terminal:
            self._progress.update(self._task, completed=record.round, figures=self.figures)
        elif record.round == self.rounds or time.monotonic() - self._printed > SECONDS_BETWEEN_LINES:
            self._printed = time.monotonic()
            self._print(f"{self._title()}: round {record.round}/{self.rounds}  {self.figures}")

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


def _figures(figures: Evaluation) -> str:
    parts = []
    if "accuracy" in figures.global_:
        parts.append(f"global {figures.global_['accuracy']:.1%}")
    if figures.sites:
        spread = figures.over_sites()
        if "accuracy" in spread["mean"]:
            parts.append(f"sites {spread['mean']['accuracy']:.1%} ± {100 * spread['std']['accuracy']:.1f}")
    return ", ".join(parts)
