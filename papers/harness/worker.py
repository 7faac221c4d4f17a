"""A process that runs the cells of a table one after another."""

from __future__ import annotations

import os
import statistics
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from fedaccord.config import check_experiment, to_toml
from fedaccord.data.registry import DATA_VARIABLE
from fedaccord.experiment import load_federation
from fedaccord.extensions import INSTALLED, trusting
from fedaccord.recording import conclude, play
from fedaccord.runs.records import Best, scopes, set_size
from fedaccord.session import open_server
from fedaccord.settings_search.parallel_jobs import serve
from fedaccord.settings_search.worker import run_cell as run_on_rows_apart
from papers.harness.cells import Result


def run_cell(table: dict[str, Any], device: str = "cpu", base: Path | None = None) -> Result:
    """Run one experiment in this process; return its final and best figures and its curve.

    Files that it names are in the folder `base`, or else in the data folder.
    """
    experiment = check_experiment(table)
    here = experiment.run.model_copy(update={"workers": 0, "device": device})
    experiment = experiment.model_copy(update={"run": here})
    start = time.perf_counter()
    data = load_federation(experiment, base or Path(os.environ.get(DATA_VARIABLE, ".")))
    best, curve, last, loss, simulated = Best(), [], scopes(None), None, 0.0
    steps = []  # figures of the server's steps, without those of single sites
    with open_server(experiment, data) as server:
        for record in play(experiment, server):
            loss = record.loss if record.loss is not None else loss
            simulated += record.simulated or 0.0
            measured = {name: value for name, value in record.figures.items() if "/" not in name}
            if measured:
                steps.append({"round": record.round, **measured})
            if record.evaluation is not None:
                last = scopes(record.evaluation)
                best.look(record.round, last)
                on_network = {} if record.simulated is None else {"simulated": round(simulated, 3)}
                figures = {"global": last["global"], "sites": last["sites"]["mean"]}
                curve.append({"round": record.round, **figures, **on_network})
        last = conclude(server, last)
        dropped = [str(drop) for drop in server.dropped]
    sizes = [size for site in data.sites.values() for size in set_size(site).values()]
    return {
        "final": {**last, "set_size": statistics.fmean(sizes)} if sizes else last,
        "best": best.summary(),
        "curve": curve,
        "loss": loss,
        "steps": steps,
        "dropped": dropped,
        "seconds": round(time.perf_counter() - start, 2),
    }


def run_apart(table: dict[str, Any], device: str, base: Path) -> Result:
    """Run one experiment as `fedaccord tune` does: judged on rows kept apart from training, its test rows dropped.

    The seed of the experiment decides the sites as well as the rows kept apart.
    """
    experiment = check_experiment(table)
    here = experiment.run.model_copy(update={"device": device})
    return run_on_rows_apart(to_toml(experiment.model_copy(update={"run": here})), base, experiment.seed)


def main() -> None:
    """Serve until the input ends."""
    torch.set_num_threads(1)

    def run(cell: dict[str, Any]) -> Result:
        module, _, function = (cell["runner"] or "papers.harness.worker:run_cell").partition(":")
        with trusting([INSTALLED]):
            result: Result = getattr(import_module(module), function)(cell["table"], cell["device"], Path(cell["base"]))
        return result

    serve(run)
