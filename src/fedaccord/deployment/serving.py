"""Runs the server's side of a deployment: starts a run, or resumes an interrupted one."""

from __future__ import annotations

import json
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedaccord.config import load_experiment
from fedaccord.deployment.certificates import wire_key
from fedaccord.deployment.known import read_known
from fedaccord.engines.flower.engine import FlowerEngine
from fedaccord.engines.flower.nodes import Roster
from fedaccord.errors import ConfigError, FedAccordError, UserError
from fedaccord.experiment import RemoteSites, resume_experiment, run_experiment
from fedaccord.extensions import importable, trusting
from fedaccord.federation.round import RoundRecord
from fedaccord.plain_text import printable
from fedaccord.recording import Watcher
from fedaccord.runs.folder import RunFolder, free_folder

if TYPE_CHECKING:
    from flwr.app import Context
    from flwr.serverapp import Grid

PATIENCE = 120.0  # seconds that a run waits for nodes before it starts without the missing ones


def main(grid: Grid, context: Context) -> None:
    """Serve as the ServerApp's main function; `run.sh` passes the folder and the packages whose code may run."""
    folder, trust = (str(context.run_config.get(key, "")) for key in ("folder", "trust"))
    if not folder:
        raise ConfigError("the run was started without --run-config 'folder=\"...\"'")
    with trusting(package for package in trust.split(",") if package), importable(Path(folder, "code")):
        summary = serve(grid, Path(folder))
    failures = [problem["text"] for problem in summary["problems"] if problem["fatal"]]
    if failures:  # so that Flower reports the run as failed
        raise FedAccordError("; ".join(failures))


def serve(grid: Grid, folder: Path) -> dict[str, Any]:
    """Run the experiment of a server's folder on a Flower grid; resume an interrupted run if there is one."""
    experiment, _ = load_experiment(folder / "config.toml")
    link = json.loads((folder / "link.json").read_text(encoding="utf-8"))
    runs = folder / "runs"
    interrupted = unfinished(runs)
    run = RunFolder(interrupted or free_folder(runs, experiment.name), reopen=interrupted is not None)

    def note(text: str) -> None:
        run.log(text)
        _print(text)

    def print_round(record: RoundRecord) -> None:
        replied = f"{record.replied} of {len(record.asked)} sites"
        first = f"round {record.round}/{experiment.settings.rounds}: {replied}"
        _print("\n  ".join([first, *map(str, record.dropped)]))

    try:
        keys = {site: wire_key((folder / file).read_bytes()) for site, file in link["keys"].items()}
        roll = Roster(tuple(sorted(keys)), keys, link["deployment"])
        engine = FlowerEngine(grid, roll, carries_memories=False, patience=link.get("patience", PATIENCE), note=note)
        remote = RemoteSites(read_known(folder), engine)
        watcher = Watcher(round=print_round, note=_print)
        if interrupted is not None:
            note(f"resumes runs/{interrupted.name} with its original settings; remove that folder to start a new run")
            summary = resume_experiment(run, watcher, remote=remote)
        else:
            summary = run_experiment(experiment, folder / "code", run, watcher, remote=remote)
        for problem in summary["problems"]:
            _print(f"problem: {problem['text']}")
        return summary
    except Exception as error:
        run.log(f"the run ended with an error\n{traceback.format_exc()}")  # Flower's log is elsewhere
        if isinstance(error, UserError):
            run.discard()  # so that the next start, with the mistake corrected, does not resume this run
        raise
    finally:
        run.close()


def _print(text: str) -> None:
    print(printable(text), flush=True)


def unfinished(runs: Path) -> Path | None:
    """Return the folder of the interrupted run that started last, or None."""
    configs = [path for path in runs.glob("*/config.toml") if not (path.parent / "summary.json").exists()]
    return max(configs, key=lambda path: path.stat().st_mtime_ns).parent if configs else None
