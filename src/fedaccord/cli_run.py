"""How the command line runs an experiment: workers, folder, progress, and what is printed at the end."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fedaccord.cli_options import complain, console, say
from fedaccord.config import Experiment, to_toml, with_paths_from, without_federation
from fedaccord.engines.crew import importing, started_ahead
from fedaccord.errors import UserError

if TYPE_CHECKING:
    from fedaccord.runs.folder import RunFolder

BOTH = "First every site trains alone, then all train together."
_MOST_AHEAD = 4  # workers started before the federation's size is known


def alone_beside(folder: Path) -> Path:
    """Return the folder of the run without federation that belongs to a folder."""
    return folder.with_name(f"{folder.name}-alone")


def carry_out_both(
    experiment: Experiment, base: Path, alone_out: Path | None, out: Path | None, **options: bool
) -> None:
    """Run an experiment after the same one without federation, and print what federation brought each site."""
    say(f"{BOTH}\n")
    alone = carry_out_alone(experiment, base, alone_out, **options)
    conclude(*carry_out(experiment, base, out, alone, **options))


def carry_out_alone(experiment: Experiment, base: Path, out: Path | None, **options: bool) -> Path:
    """Run an experiment without federation, and return its folder; its problems are printed and end nothing."""
    folder, summary = carry_out(without_federation(experiment), base, out, None, **options)
    _print_problems(summary)
    return folder.path


def conclude(folder: RunFolder, summary: Mapping[str, Any]) -> None:
    """Print the verdict on a finished run, what federation brought each site, where the report is, and problems.

    End with exit code 1 if its model should not be used.
    """
    from fedaccord.display import show_outcome
    from fedaccord.runs.examined import recorded_alone

    show_outcome(folder.path, recorded_alone(folder.path), console)
    say(f"report: {folder.path / 'report.html'}")
    _print_problems(summary)
    if any(problem["fatal"] for problem in summary["problems"]):
        raise typer.Exit(1)


def carry_out(
    experiment: Experiment,
    base: Path,
    out: Path | None,
    alone: Path | None = None,
    overwrite: bool = False,
    repeats: bool = False,
) -> tuple[RunFolder, dict[str, Any]]:
    """Run an experiment, and return its folder and its summary; with `repeats`, also if it was cut off before."""
    with workers_started(experiment):
        # Imported here: torch takes seconds to load, and --help or a wrong file should not wait for it.
        with importing():
            from fedaccord.checks.before_run import warn_before_run
            from fedaccord.display import Display
            from fedaccord.experiment import run_experiment
            from fedaccord.runs.checkpoint import config_digest
            from fedaccord.runs.new_folder import new_run_folder

        digest = None if repeats else config_digest(to_toml(with_paths_from(experiment, base)))
        folder = new_run_folder(out, experiment.name, digest, overwrite, lambda text: complain(f"note: {text}"))
        try:
            with watched(folder), Display(experiment, console) as display:
                watcher = display.watcher()
                watcher.loaded = lambda data: warn_before_run(experiment, data, display.warn)
                summary = run_experiment(experiment, base, folder, watcher, alone)
        except UserError:
            folder.discard()  # the next attempt should find the folder free
            raise
        return folder, summary


def _print_problems(summary: Mapping[str, Any]) -> None:
    for problem in summary["problems"]:
        complain(("problem:", "bold red"), f" {problem['text']}")


def workers_started(experiment: Experiment, workers: int | None = None) -> AbstractContextManager[None]:
    """Start the run's workers while this process still imports torch."""
    run = experiment.run
    here = run.engine == "embedded" and run.device == "cpu"
    wanted = next(number for number in (workers, run.workers, os.cpu_count(), 1) if number is not None)
    return started_ahead(min(wanted, _MOST_AHEAD) if here else 0, "fedaccord.hosting")


@contextmanager
def watched(folder: RunFolder) -> Iterator[None]:
    """Print how to continue a run that stops early, and close its folder."""
    from fedaccord.runs.folder import NotWritten
    from fedaccord.runs.progress import resume_command
    from fedaccord.stopping import Stopped

    try:
        yield
    except NotWritten as error:
        if not (folder.path / "config.toml").exists():
            raise
        raise NotWritten(f"{error}; fix this, then continue with: {resume_command(folder.path)}") from None
    except Stopped as stopped:
        complain(f"{stopped}; go on with: {resume_command(folder.path)}")
        raise typer.Exit(stopped.exit_code) from None
    except KeyboardInterrupt:  # before the first round
        folder.log("interrupted")
        complain(f"interrupted; what was written stays in {folder.path}")
        raise typer.Exit(130) from None
    finally:
        folder.close()
