"""A process that runs cells, one after the other: a JSON line in for each, a JSON line out.

Cells run beside each other, each on one core and in one process, so a table with many short runs pays the start of
torch once for each core and not for each cell.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import torch

from fedaccord.config import check_experiment
from fedaccord.errors import FedAccordError
from fedaccord.experiment import load_federation, open_server, play
from fedaccord.runs.records import Best, scopes, set_size
from papers.harness.cells import Result


def run_cell(table: dict[str, Any], device: str = "cpu") -> Result:
    """Carry out one experiment in this process; returns its last and best figures and the curve between."""
    experiment = check_experiment(table)
    here = experiment.run.model_copy(update={"workers": 0, "device": device})
    experiment = experiment.model_copy(update={"run": here})
    start = time.perf_counter()
    data = load_federation(experiment, Path(os.environ.get("FEDACCORD_DATA", ".")))
    best, curve, last, loss, simulated = Best(), [], scopes(None), None, 0.0
    steps = []  # what the server's own steps measured, without what concerns single sites
    with open_server(experiment, data) as server:
        for record in play(experiment, server):
            loss = record.loss if record.loss is not None else loss
            simulated += record.simulated or 0.0
            told = {name: value for name, value in record.figures.items() if "/" not in name}
            if told:
                steps.append({"round": record.round, **told})
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
    """Serve until the input ends; a cell that fails is answered with the reason, its trace goes to stderr."""
    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a user's model prints is no answer
    for line in sys.stdin:
        cell = json.loads(line)
        try:
            answer: dict[str, Any] = {"result": run_cell(cell["table"], cell["device"])}
        except FedAccordError as error:
            answer = {"error": str(error)}
        except Exception as error:  # one cell must not end the others
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)
