"""A process that runs cells one after another: it reads a JSON line for each and answers with a JSON line.

One process per core runs many cells, so that torch is imported once per core and not once per cell.
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
from fedaccord.experiment import load_federation
from fedaccord.extensions import INSTALLED, trusting
from fedaccord.recording import play
from fedaccord.runs.records import Best, scopes, set_size
from fedaccord.session import open_server
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
    """Serve until the input ends; answer a failed cell with the reason and print its traceback to stderr."""
    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # output printed by a user's model must not mix with the answers
    for line in sys.stdin:
        cell = json.loads(line)
        try:
            with trusting([INSTALLED]):
                answer: dict[str, Any] = {"result": run_cell(cell["table"], cell["device"])}
        except FedAccordError as error:
            answer = {"error": str(error)}
        except Exception as error:  # one cell must not end the others
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)
