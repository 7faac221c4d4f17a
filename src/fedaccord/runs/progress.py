"""The progress of a run (finished, running or cut off), and the summary of one that is not finished."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fedaccord.errors import RunFolderError
from fedaccord.extensions import INSTALLED, trusted
from fedaccord.labels.headlines import possible_headlines
from fedaccord.labels.views.registry import shown_class
from fedaccord.runs.checkpoint import read_lines
from fedaccord.runs.folder import is_locked
from fedaccord.runs.reading import (
    Federation,
    Figures,
    Run,
    Summary,
    read_federation,
    read_metrics,
    read_run,
    read_settings,
)
from fedaccord.runs.records import Best, past_scopes, past_warnings, scopes


@dataclass(frozen=True)
class Progress:
    """The state of a run, its finished rounds and the rounds it was asked for."""

    folder: Path
    state: Literal["finished", "running", "cut"]
    round: int
    rounds: int

    def __str__(self) -> str:
        return f"round {self.round} of {self.rounds}, {self.state}"

    def in_words(self) -> str:
        """Return a sentence for the report and the terminal; empty for a finished run."""
        if self.state == "finished":
            return ""
        if self.state == "running":
            shown = "figures are those of the last evaluated round" if self.round else "no round is finished yet"
            return f"Round {self.round} of {self.rounds}, running: {shown}."
        return f"Round {self.round} of {self.rounds}, cut off{_way_on(self.folder)}"


def read_progress(folder: Path) -> Progress:
    """Read how far a run is; raise RunFolderError if the folder is not that of a run."""
    if not (folder / "config.toml").is_file():
        raise RunFolderError(f"'{folder}' is not a run folder: it has no config.toml")
    settings, lines = read_settings(folder), read_lines(folder / "metrics.jsonl")
    rounds = int(settings.get("method", {}).get("rounds", 0))
    # Looked up in this order, because a run writes its summary before it releases the lock.
    locked = is_locked(folder)
    state: Literal["finished", "running", "cut"] = "running" if locked else "cut"
    if (folder / "summary.json").exists():
        state = "finished"
    return Progress(folder, state, max((line["round"] for line in lines), default=0), rounds)


def read_any_run(folder: Path) -> Run:
    """Read a run; the summary of one that is not finished is made from what it has recorded so far."""
    if not folder.is_dir():
        raise RunFolderError(f"there is no folder '{folder}'; name the folder of a run")
    if (folder / "summary.json").exists():
        return read_run(folder)
    progress = read_progress(folder)
    described = (folder / "federation.json").exists()
    federation = read_federation(folder) if described else Federation(labels=[], sites={})
    lines = read_metrics(folder) if (folder / "metrics.jsonl").exists() else []
    return Run(folder, _summary_so_far(folder, federation, progress.round), federation, lines, progress.in_words())


def _summary_so_far(folder: Path, federation: Federation, round_: int) -> Summary:
    """Return the summary that a run would have if it ended after its last recorded round."""
    settings, lines = read_settings(folder), read_lines(folder / "metrics.jsonl")
    views = [shown_class(site.view) for site in federation.sites.values()]
    best, figures = Best(possible_headlines(views) or Best.headlines), scopes(None)
    for number, figures in past_scopes(lines).items():
        best.look(number, figures)
    rounds = [line for line in lines if line["scope"] == "round"]
    method: dict[str, Any] = settings.get("method", {})
    return Summary(
        name=settings.get("name", folder.name),
        method=method.get("name", "unknown"),
        engine=settings.get("run", {}).get("engine", "unknown"),
        seed=settings.get("seed"),
        rounds=round_,
        seconds=sum(sum(line.get("seconds", {}).values()) for line in rounds),
        final=Figures.model_validate(figures),
        best=Figures.model_validate(best.summary()),
        dropped=sum(len(line["dropped"]) for line in rounds),
        warnings=past_warnings(lines),
        settings={key: value for key, value in method.items() if key != "name"},
    )


def _way_on(folder: Path) -> str:
    """Return how a run that was cut off is continued."""
    try:
        run = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        run = {}
    if run.get("in_memory"):
        return ", and it cannot be resumed because its samples were only in memory"
    if run.get("deployed"):
        return "; continue it with run.sh in the server's folder"
    return f"; continue it with: {resume_command(folder)}"


def resume_command(folder: Path) -> str:
    """Return the command that resumes a run, with the packages that this process trusts."""
    packages = [f"--trust {package}" for package in trusted() if package != INSTALLED]
    return " ".join([f"fedaccord resume {shlex.quote(str(folder))}", *packages])
