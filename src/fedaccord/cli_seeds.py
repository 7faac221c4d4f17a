"""`fedaccord run --seeds`: one run for each seed, in folders beside each other."""

from __future__ import annotations

import itertools
import signal
import tomllib
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

import typer

from fedaccord.cli_compare import print_figures
from fedaccord.cli_options import complain, say
from fedaccord.config import Experiment, to_toml, with_paths_from
from fedaccord.errors import FedAccordError, RunFolderError
from fedaccord.runs.compare import DEFAULT_NAME, write_comparison
from fedaccord.runs.contestants import find_contestants, flat_settings
from fedaccord.runs.reading import read_run, read_settings
from fedaccord.runs.seed_runs import seed_folder, seed_folders

Start = Callable[[Experiment, Path], object]  # runs an experiment in a new folder
STOPPED = (128 + signal.SIGINT, 128 + signal.SIGTERM)


def run_seeds(
    experiments: Mapping[int, Experiment], base: Path, out: Path | None, start: Start, resume: Callable[[Path], object]
) -> None:
    """Run an experiment with every seed, and print mean, standard deviation and interval of the figures.

    Finished runs are kept and interrupted ones resumed. A seed that fails does not end the others; the exit code is
    then 1.
    """
    parent = _parent(experiments, base, out)
    failed = dict[int, str]()
    for seed, experiment in experiments.items():
        folder = seed_folder(parent, seed)
        try:
            if (folder / "summary.json").exists():
                say(f"seed {seed} is finished: {folder}")
            elif (folder / "config.toml").exists():
                resume(folder)
            else:
                start(experiment, folder)
        except typer.Exit as end:
            if end.exit_code in STOPPED:
                complain("the other seeds were not run; the same command goes on with them")
                raise
            if end.exit_code:
                failed[seed] = "it ended with a problem"
        except FedAccordError as error:
            failed[seed] = str(error)
        except Exception as error:  # of a user's model or method, say; the other seeds may still work
            traceback.print_exc()
            failed[seed] = f"{type(error).__name__}: {error}"
        if seed in failed:
            complain(("error:", "bold red"), f" seed {seed}: {' '.join(failed[seed].split())}")
    _conclude([seed_folder(parent, seed) for seed in experiments])
    if failed:
        complain(f"{len(failed)} of {len(experiments)} seeds failed: {', '.join(map(str, failed))}")
        raise typer.Exit(1)


def _conclude(folders: list[Path]) -> None:
    """Print the figures of the finished runs over their seeds, and write the page that compares them."""
    finished = [folder for folder in folders if (folder / "summary.json").exists()]
    if not finished:
        return
    print_figures(find_contestants([read_run(folder) for folder in finished]))
    if len(finished) > 1:
        say(f"comparison: {write_comparison(finished, folders[0].parent / DEFAULT_NAME)}")


def _parent(experiments: Mapping[int, Experiment], base: Path, out: Path | None) -> Path:
    """Return the folder of the runs: the given one, or the first of runs/NAME, runs/NAME-2, ... that fits."""
    experiment = next(iter(experiments.values()))
    settings = flat_settings(tomllib.loads(to_toml(with_paths_from(experiment, base))))
    if out is not None:
        if reason := _taken(out, settings):
            raise RunFolderError(f"the folder '{out}' {reason}; give another one with --out")
        return out
    names = itertools.chain([experiment.name], (f"{experiment.name}-{number}" for number in itertools.count(2)))
    return next(folder for name in names if not _taken(folder := Path("runs") / name, settings))


def _taken(folder: Path, settings: Mapping[str, str]) -> str:
    """Return why a folder cannot hold the runs of these settings, or an empty string."""
    if not folder.exists():
        return ""
    if not folder.is_dir():
        return "is a file"
    if (folder / "config.toml").exists():
        return "is that of a single run"
    earlier = seed_folders(folder)
    for run in earlier:
        if (run / "config.toml").exists() and flat_settings(read_settings(run)) != settings:
            return f"holds runs with other settings ({run.name})"
    return "" if earlier or not any(folder.iterdir()) else "is not empty"
