"""A made-up table of people for tests of fairness: a label that depends on features, and a group that does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedaccord.config import check_experiment
from fedaccord.experiment import load_federation
from fedaccord.recording import play
from fedaccord.session import open_server

GROUPS = ("north", "south", "west")
LABELS = ("low", "medium", "high")


def write_people(folder: Path, rows: int = 900, seed: int = 0) -> Path:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 4)).astype(np.float32)
    score = x @ np.array([1.0, -1.0, 0.5, 0.0]) + 0.5 * rng.normal(size=rows)
    y = np.digitize(score, [-0.7, 0.7])
    region = rng.choice(GROUPS, rows, p=[0.5, 0.3, 0.2])
    path = folder / "people.npz"
    np.savez(path, x=x, y=y, label_names=np.array(LABELS), region=region)
    return path


def table(folder: Path, sites: int = 6, seed: int = 0, **method: Any) -> dict[str, Any]:
    """An experiment on the people, with candidate labels and groups."""
    path = folder / "people.npz"
    if not path.exists():
        write_people(folder)
    return {
        "name": "people",
        "seed": seed,
        "data": {
            "dataset": str(path),
            "partition": {"kind": "iid", "sites": sites},
            "view": {"kind": "candidates", "generate": "uniform", "q": 0.3},
            "sensitive": {"column": "region", "q": 0.1},
            "standardise": "federation",
        },
        "fairness": {"group": "north", "label": "high"},
        "model": {"name": "mlp", "hidden": [12]},
        "method": {"name": "fed-clpl", "rounds": 10, "lr": 0.1, **method},
        "run": {"workers": 0, "evaluate_every": 10},
    }


def played(told: dict[str, Any], rounds: int | None = None):
    """Play an experiment; returns the server and the records of its rounds."""
    experiment = check_experiment(told)
    data = load_federation(experiment, Path())
    records = []
    with open_server(experiment, data) as server:
        for record in play(experiment, server):
            records.append(record)
            if rounds is not None and record.round == rounds:
                break
    return server, records
