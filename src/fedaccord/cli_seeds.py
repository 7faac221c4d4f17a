"""`fedaccord run --seeds`: one run for each seed, in folders beside each other."""

from __future__ import annotations

import itertools
import signal
import tomllib
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

import typer

from fedaccord.cli_compare import print_figures, print_pairs
from fedaccord.cli_options import complain, say
from fedaccord.cli_run import BOTH, alone_beside, carry_out, carry_out_alone, conclude
from fedaccord.config import Experiment, to_toml, with_paths_from, without_federation
from fedaccord.errors import FedAccordError, RunFolderError
from fedaccord.runs.compare import DEFAULT_NAME, write_comparison
from fedaccord.runs.contestants import find_contestants, flat_settings
from fedaccord.runs.reading import read_run, read_settings
from fedaccord.runs.seed_runs import seed_folder, seed_folders

Resume = Callable[[Path], object]  # continues the run in a folder
STOPPED = (128 + signal.SIGINT, 128 + signal.SIGTERM)


def run_seeds(experiments: Mapping[int, Experiment], base: Path, out: Path | None, alone: bool, resume: Resume) -> None:
    """Run an experiment with every seed, and print mean, standard deviation and interval of the figures.

    With `alone`, every site first trains alone with the same seed, and both are compared. Finished runs are kept and
    interrupted ones resumed. A seed that fails does not end the others; the exit code is then 1.
    """
    parent = _parent(experiments, base, out, alone)
    failed = dict[int, str]()
    if alone:
        say(f"{BOTH}\n")
    for seed, experiment in experiments.items():
        folder, before = seed_folder(parent, seed), seed_folder(alone_beside(parent), seed) if alone else None
        try:
            if before is not None and not _finished(before, seed, resume):
                carry_out_alone(experiment, base, before)
            if not _finished(folder, seed, resume):
                conclude(*carry_out(experiment, base, folder, before))
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
    parents = [parent, alone_beside(parent)] if alone else [parent]
    _compare([seed_folder(folder, seed) for folder in parents for seed in experiments], parent)
    if failed:
        complain(f"{len(failed)} of {len(experiments)} seeds failed: {', '.join(map(str, failed))}")
        raise typer.Exit(1)


def _finished(folder: Path, seed: int, resume: Resume) -> bool:
    """Return whether the run of a seed is finished; continue it if it was interrupted."""
    if (folder / "summary.json").exists():
        say(f"seed {seed} is finished: {folder}")
        return True
    if (folder / "config.toml").exists():
        resume(folder)
        return True
    return False


def _compare(folders: list[Path], parent: Path) -> None:
    """Print the figures of the finished runs over their seeds, and write the page that compares them."""
    finished = [folder for folder in folders if (folder / "summary.json").exists()]
    if not finished:
        return
    contestants = find_contestants([read_run(folder) for folder in finished])
    print_figures(contestants)
    print_pairs(contestants)
    if len(finished) > 1:
        say(f"comparison: {write_comparison(finished, parent / DEFAULT_NAME)}")


def _parent(experiments: Mapping[int, Experiment], base: Path, out: Path | None, alone: bool) -> Path:
    """Return the folder of the runs: the given one, or the first of runs/NAME, runs/NAME-2, ... that fits."""
    experiment = next(iter(experiments.values()))

    def obstacle(folder: Path) -> str:
        places = {folder: experiment} | ({alone_beside(folder): without_federation(experiment)} if alone else {})
        reasons = {place: _taken(place, planned, base) for place, planned in places.items()}
        found = (f"the folder '{place}' {why}; give another one with --out" for place, why in reasons.items() if why)
        return next(found, "")

    if out is not None:
        if told := obstacle(out):
            raise RunFolderError(told)
        return out
    names = itertools.chain([experiment.name], (f"{experiment.name}-{number}" for number in itertools.count(2)))
    return next(folder for name in names if not obstacle(folder := Path("runs") / name))


def _taken(folder: Path, experiment: Experiment, base: Path) -> str:
    """Return why a folder cannot hold the runs of an experiment, or an empty string."""
    if not folder.exists():
        return ""
    if not folder.is_dir():
        return "is a file"
    if (folder / "config.toml").exists():
        return "is that of a single run"
    settings = flat_settings(tomllib.loads(to_toml(with_paths_from(experiment, base))))
    earlier = seed_folders(folder)
    for run in earlier:
        if (run / "config.toml").exists() and flat_settings(read_settings(run)) != settings:
            return f"holds runs with other settings ({run.name})"
    return "" if earlier or not any(folder.iterdir()) else "is not empty"
