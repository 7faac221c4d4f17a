"""A process that runs settings one after another, each judged on rows kept apart from training."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch

from fedaccord.config import Experiment, parse_experiment
from fedaccord.data.validation_rows import keep_apart
from fedaccord.experiment import load_federation
from fedaccord.extensions import importable, trusting
from fedaccord.recording import conclude, play
from fedaccord.runs.records import scopes
from fedaccord.session import open_server
from fedaccord.settings_search.parallel_jobs import serve
from fedaccord.stopping import Clock, Stopping


def run_cell(text: str, base: Path, seed: int) -> dict[str, Any]:
    """Run an experiment in this process and return its final figures on the rows kept apart.

    Its own seed decides the sites and their test rows, which are dropped. `seed` decides everything after that: the
    rows kept apart, the initial weights and the training.
    """
    start = time.perf_counter()
    with importable(base):
        experiment = parse_experiment(text)
        apart = keep_apart(load_federation(experiment, base), seed)
        experiment = _for_last_round(experiment, seed)
        stop, last = Stopping(experiment.stop, Clock()), scopes(None)
        with open_server(experiment, apart.data) as server:
            for record in play(experiment, server, stop.out_of_time):
                if record.evaluation is not None:
                    last = scopes(record.evaluation)
                    stop.look(last)
                    if stop.reason():
                        break
            last = conclude(server, last)
            dropped = len(server.dropped)
    return {
        "figures": last,
        "server_judges": apart.server_judges,
        "not_judged": apart.not_judged,
        "dropped": dropped,
        "seconds": round(time.perf_counter() - start, 2),
    }


def _for_last_round(experiment: Experiment, seed: int) -> Experiment:
    """Return the experiment for one process, evaluated after the last round only unless it may stop early."""
    run, stop = experiment.run, experiment.stop
    early = stop.metric is not None or stop.seconds is not None
    every = max(run.evaluate_every, 1) if early else experiment.settings.rounds
    alone = run.model_copy(update={"workers": 0, "engine": "embedded", "evaluate_every": every})
    return experiment.model_copy(update={"seed": seed, "run": alone})


def main() -> None:
    """Serve until the input ends."""
    torch.set_num_threads(1)

    def run(job: dict[str, Any]) -> dict[str, Any]:
        with trusting(job["trust"]):
            return run_cell(job["experiment"], Path(job["base"]), job["seed"])

    serve(run)
