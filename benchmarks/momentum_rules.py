"""Compare pFedMo's momentum rules under label skew, on training data that `python -m papers pfedmo` does not test on.

    FEDACCORD_DATA=DIR python -m benchmarks.momentum_rules [--seeds 3] [--task lenet5] [--rule pull]

MNIST: the last 10,000 training images are the validation part, 4 sites with 3 classes each, LeNet-5, 50 public images
of each class. UCI-HAR: subjects 1 to 15 (the table is tested on 25 to 30), three of them for validation, the
others split over 4 sites with 2 classes each, a 1-D CNN, 10 public windows of each class. Batches of 64, learning rate
0.05, gamma 0.5, pi 1.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from papers.harness.worker import run_cell

RULES: dict[str, dict[str, Any]] = {
    "pull": {"name": "pfedmo", "rule": "pull"},
    "printed": {"name": "pfedmo", "rule": "printed"},
    "reversed": {"name": "pfedmo", "rule": "reversed"},
    "fednag": {"name": "fednag"},
    "public data alone": {
        "name": "representation",
        "held_out": 0.2,
    },  # trains on the samples that pfedmo's representation uses
}
# model -> data set, classes per site, public samples per class, rounds, steps
TASKS = {"lenet5": ("mnist", 3, 50, 6, 40), "cnn1d": ("uci_har", 2, 10, 15, 20)}


def validation_sets(root: Path, out: Path) -> dict[str, Path]:
    """Write both data sets with a part of their training data as the test part."""
    digits = np.load(root / "mnist" / "mnist.npz")
    x, y = digits["x_train"], digits["y_train"]
    np.savez(out / "mnist.npz", x_train=x[:50000], y_train=y[:50000], x_test=x[50000:], y_test=y[50000:])
    signals = np.load(root / "uci_har" / "uci_har_signals_30subjects.npz")
    some = signals["subject"] <= 15
    held = signals["subject"][some] <= 3
    np.savez(out / "uci_har.npz", X=signals["X"][some], y=signals["y"][some], is_test=held)
    return {name: out / f"{name}.npz" for name in ("mnist", "uci_har")}


def accuracy(file: Path, model: str, method: dict[str, Any], seed: int) -> float:
    """Return the validation accuracy of one run, in percent."""
    dataset, classes, public, rounds, steps = TASKS[model]
    result = run_cell(
        {
            "seed": seed,
            "data": {
                "dataset": str(file),
                "partition": {"kind": "classes", "sites": 4, "classes": classes},
                "test": 0.0,
                "test_samples": 2000,
                "standardise": "none" if dataset == "mnist" else "federation",
            },
            "server": {"labelled": {"per_class": public}},
            "model": {"name": model},
            "method": {"rounds": rounds, "steps": steps, "batch": 64, "lr": 0.05, **method},
            "run": {"evaluate_every": rounds},
        }
    )
    return 100 * float(result["final"]["global"]["accuracy"])


def main() -> None:
    """Run the comparison and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--task", choices=TASKS, action="append")
    parser.add_argument("--rule", choices=RULES, action="append")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        files = validation_sets(Path(os.environ["FEDACCORD_DATA"]), Path(place))
        for model in asked.task or TASKS:
            for name in asked.rule or RULES:
                seeds = range(100, 100 + asked.seeds)
                found = [accuracy(files[TASKS[model][0]], model, RULES[name], seed) for seed in seeds]
                print(f"{model:8} {name:18} {statistics.fmean(found):5.1f}  {[round(v, 1) for v in found]}", flush=True)


if __name__ == "__main__":
    main()
