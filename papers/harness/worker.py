"""A process that runs the cells of a table one after another."""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from fedaccord.config import check_experiment
from fedaccord.experiment import load_federation
from fedaccord.extensions import INSTALLED, trusting
from fedaccord.recording import play
from fedaccord.runs.records import Best, scopes, set_size
from fedaccord.session import open_server
from fedaccord.settings_search.parallel_jobs import serve
from papers.harness.cells import Result


def run_cell(table: dict[str, Any], device: str = "cpu") -> Result:
    """Run one experiment in this process; return its final and best figures and its curve."""
    experiment = check_experiment(table)
    here = experiment.run.model_copy(update={"workers": 0, "device": device})
    experiment = experiment.model_copy(update={"run": here})
    start = time.perf_counter()
    data = load_federation(experiment, Path(os.environ.get("FEDACCORD_DATA", ".")))
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


def main() -> None:
    """Serve until the input ends."""
    torch.set_num_threads(1)

    def run(cell: dict[str, Any]) -> Result:
        with trusting([INSTALLED]):
            return run_cell(cell["table"], cell["device"])

    serve(run)
