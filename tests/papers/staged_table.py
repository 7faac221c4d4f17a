"""A table in two stages: a run on rows apart from the training rows, then one that its result calls for."""

import numpy as np

from papers.harness.cells import Cell
from papers.harness.pages import Chapter, Picture

TITLE = "Two stages"


def experiment(lr):
    return {
        "data": {"dataset": "made.npz", "partition": {"kind": "iid", "sites": 2}},
        "model": {"name": "linear"},
        "method": {"name": "fedavg", "rounds": 1, "batch": 16, "lr": lr},
    }


def prepare(folder):
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    y = np.arange(60) % 2
    np.savez(folder / "made.npz", x=rng.normal(size=(60, 3)) + y[:, None], y=y)


def estimate(size, processes):
    return f"two runs in {processes} processes"


def cells(size):
    return [Cell(("apart",), 0, experiment(0.1), "papers.harness.worker:run_apart")]


def follow_ups(results, size):
    if ("apart",) not in results.cells:
        return []
    nll = results.cells["apart",][0]["figures"]["sites"]["mean"]["nll"]
    return [Cell(("tested",), 0, experiment(0.2 if nll < 1 else 0.3))]


def chapters(results, size):
    return [Chapter("Rows", [", ".join(row[0] for row in results.cells), Picture("drawn.svg", "a drawing", "<svg/>")])]
