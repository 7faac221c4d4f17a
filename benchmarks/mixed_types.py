"""Choose the settings of `python -m papers fedmt` on validation data; test data is not read.

    python -m benchmarks.mixed_types --names "Single; FedMT (E)" --labels 5 --vary lr=0.5,1,2 --vary weight_decay=0,5e-4
    python -m benchmarks.mixed_types --on images --names "Single; FedTrans" --labels 25 --vary lr=0.03,0.1

Each method runs with its settings in the table and every combination of the varied settings, on seed 100, which the
table does not use. Texts are evaluated on CLINC150's validation part, images on 25 held-out training images of each
class of CIFAR-100. Settings that begin with `model.` change the network, as in `model.hidden=128,256`. The data is read
from FEDACCORD_DATA.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from papers.fedmt import cells as table
from papers.harness.cells import Cell
from papers.harness.worker import run_cell

SEED = 100
HELD_OUT = 25  # training images of each class


def main() -> None:
    """Run all methods with all combinations."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--on", choices=["texts", "images"], default="texts")
    parser.add_argument("--names", default="Single; FedMT (E)")
    parser.add_argument("--labels", type=int, default=5)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--vary", action="append", default=[], metavar="SETTING=VALUE,VALUE")
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        for name in given.names.split("; "):
            for changes in combinations(given.vary):
                start = time.process_time()
                result = run_cell(changed(name, given.on, given.labels, given.seed, changes, Path(folder)))
                seconds = time.process_time() - start
                print(
                    f"{name:26} n={given.labels} {settings_text(changes)}  {figures(result)}  {seconds:.0f} s",
                    flush=True,
                )


def changed(name: str, on: str, labels: int, seed: int, changes: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the experiment of a method in the table, evaluated on validation data, with some settings changed."""
    scale = table.SCALES["default"]
    cell: Cell = (table.text_cell if on == "texts" else table.image_cell)(scale, name, seed, labels)
    experiment = json.loads(json.dumps(cell.table))
    experiment["data"]["dataset"] = "clinc150-validation" if on == "texts" else str(held_out_images(folder))
    experiment["run"]["evaluate_every"] = experiment["method"]["rounds"]
    for key, value in changes.items():
        section, _, setting = key.rpartition(".")
        experiment[section or "method"][setting] = [value] if key == "model.hidden" else value
    return experiment


def combinations(varied: list[str]) -> Iterator[dict[str, Any]]:
    """Yield every combination of the values of `setting=value,value`."""
    lists = [(key, values.split(",")) for key, _, values in (one.partition("=") for one in varied)]
    for drawn in itertools.product(*(values for _, values in lists)):
        yield {key: number_or_word(value) for (key, _), value in zip(lists, drawn, strict=True)}


def number_or_word(text: str) -> Any:
    """Return the number or list that a text represents in JSON, or else the text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def held_out_images(folder: Path) -> Path:
    """Write CIFAR-100's training images with `HELD_OUT` of each class as the test part; no test image is read."""
    path = folder / "cifar100_held_out.npz"
    if not path.exists():
        with np.load(Path(os.environ["FEDACCORD_DATA"]) / "cifar100" / "cifar100_train_a.npz") as arrays:
            held = dict(arrays)
        held["is_test"] = np.zeros(len(held["fine"]), dtype=np.uint8)
        for column in np.unique(held["fine"]):
            held["is_test"][np.flatnonzero(held["fine"] == column)[-HELD_OUT:]] = 1
        np.savez(path, **held)
    return path


def settings_text(changes: dict[str, Any]) -> str:
    """Format settings as on the command line."""
    return " ".join(f"{key}={value}" for key, value in changes.items())


def figures(result: dict[str, Any]) -> str:
    """Format the accuracy of the last round and, if measured, the matrix error and the share of confident samples."""
    final, sites = result["final"]["global"], result["final"]["sites"]["mean"]
    words = {"matrix_error": "matrix", "confident": "confident"}
    others = " ".join(f"{word} {sites[key]:.2f}" for key, word in words.items() if key in sites)
    return f"{100 * final['accuracy']:.2f} {others}"


if __name__ == "__main__":
    main()
