"""A deployed run, as the server plays it: begun, or gone on with where it was cut."""

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
from fedaccord.errors import UserError
from fedaccord.experiment import Elsewhere, resume_experiment, run_experiment
from fedaccord.federation.round import RoundRecord
from fedaccord.recording import Watcher
from fedaccord.runs.folder import RunFolder, free_folder

if TYPE_CHECKING:
    from flwr.serverapp import Grid

PATIENCE = 120.0  # seconds a run waits for the nodes before it begins without those that are missing


def serve(grid: Grid, folder: Path) -> dict[str, Any]:
    """Play the run of a server's folder over a Flower grid; a run that was cut goes on, another is begun anew."""
    experiment, _ = load_experiment(folder / "config.toml")
    link = json.loads((folder / "link.json").read_text(encoding="utf-8"))
    runs = folder / "runs"
    cut = unfinished(runs)
    run = RunFolder(cut, reopen=True) if cut is not None else RunFolder(free_folder(runs, experiment.name))

    def note(text: str) -> None:
        run.log(text)
        print(text, flush=True)

    def told(record: RoundRecord) -> None:
        replied = f"{record.replied} of {len(record.asked)} sites"
        print(f"round {record.round}/{experiment.settings.rounds}: {replied}", *record.dropped, sep="\n  ", flush=True)

    try:
        keys = {site: wire_key((folder / file).read_bytes()) for site, file in link["keys"].items()}
        roll = Roster(tuple(sorted(keys)), keys, link["deployment"])
        engine = FlowerEngine(grid, roll, carries_memories=False, patience=link.get("patience", PATIENCE), note=note)
        elsewhere = Elsewhere(read_known(folder), engine)
        watcher = Watcher(round=told, note=lambda text: print(text, flush=True))
        if cut is not None:
            note(f"goes on with runs/{cut.name}, as it was begun; remove that folder to begin anew")
            return resume_experiment(run, watcher, elsewhere=elsewhere)
        return run_experiment(experiment, folder / "code", run, watcher, elsewhere=elsewhere)
    except Exception as error:
        run.log(f"the run ended with an error\n{traceback.format_exc()}")  # Flower's own log is far from this folder
        if isinstance(error, UserError):
            run.discard()  # so that the next try, with the mistake put right, is not the old run again
        raise
    finally:
        run.close()


def unfinished(runs: Path) -> Path | None:
    """Return the folder of the run that was cut, if there is one; of several, the one that was begun last."""
    cut = [path for path in runs.glob("*/config.toml") if not (path.parent / "summary.json").exists()]
    return max(cut, key=lambda path: path.stat().st_mtime_ns).parent if cut else None
