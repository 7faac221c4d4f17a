"""Measure what `accord` costs, and whether its automatic learning rate and steps fit small and large sites.

    python benchmarks/accord.py cost
    python benchmarks/accord.py rows

`cost` prints processor time with `personal = "cheap"` and `"mixture"` as a multiple of `"off"`, the whole run included.
`rows` trains on synthetic tables of 60 to 60,000 rows a site, and on the data sets of FEDACCORD_DATA if it is set, with
the defaults and with fixed learning rates, and prints how far the defaults are behind the best of these rates. Ratios
and accuracies are printed, never times.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedaccord.api.federation import Federation
from fedaccord.api.site import Site
from fedaccord.config import check_experiment
from fedaccord.experiment import load_federation
from fedaccord.labels.space import LabelSpace
from fedaccord.labels.views import Exact
from fedaccord.recording import conclude, play
from fedaccord.runs.records import scopes
from fedaccord.session import open_server

SIZES = (60, 600, 6_000, 60_000)
RATES = (0.01, 0.03, 0.1, 0.3, 1.0)  # the first rate of the cosine schedule
SITES, FEATURES, CLASSES, TESTED = 3, 20, 5, 500
SKEWED = {"kind": "dirichlet", "sites": 8, "alpha": 0.3, "min_size": 10}
SETS: dict[str, dict[str, Any]] = {
    "digits, 8 sites": {"data": {"dataset": "digits", "partition": SKEWED, "test": 0.3}},
    "digits, 40 sites": {"data": {"dataset": "digits", "partition": {"kind": "iid", "sites": 40}, "test": 0.3}},
}
WITH_DATA: dict[str, dict[str, Any]] = {
    "scene (tags)": {"data": {"dataset": "scene", "partition": SKEWED, "view": {"kind": "tags"}}},
    "CLINC150 (texts)": {
        "data": {
            "dataset": "clinc150",
            "partition": {"kind": "iid", "sites": 8},
            "samples": 4000,
            "view": {"kind": "coarse", "correspondence": "coarse"},
        }
    },
    "UCI-HAR (signals), 30 people": {
        "data": {"dataset": "uci_har", "partition": {"kind": "natural", "by": "subject"}, "samples": 3000},
        "model": {"name": "cnn1d"},
    },
    "Fashion-MNIST (images)": {"data": {"dataset": "fashion_mnist", "partition": SKEWED, "samples": 4000}},
}


def main() -> None:
    """Run one of the measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measurement", choices=["cost", "rows"])
    torch.set_num_threads(1)
    cost() if parser.parse_args().measurement == "cost" else rows()


def cost() -> None:
    """Print the processor time of a run with experts, as a multiple of the run without."""
    print("| federation | cheap | mixture |\n| --- | --- | --- |")
    for name, table in available().items():
        run(table, {"personal": "cheap", "rounds": 2})  # a first run also loads libraries
        seconds = {personal: run(table, {"personal": personal})[1] for personal in ("off", "cheap", "mixture")}
        print(f"| {name} | {seconds['cheap'] / seconds['off']:.1f} | {seconds['mixture'] / seconds['off']:.1f} |")


def rows() -> None:
    """Print the accuracy of the defaults beside that of fixed learning rates."""
    print("| federation | defaults | " + " | ".join(f"{rate:g}" for rate in RATES) + " | behind the best |")
    print("| --- |" + " --- |" * (len(RATES) + 2))
    for size in SIZES:
        report(f"table, {size:,} rows a site", [synthetic(size, change) for change in changes()])
    for name, table in available().items():
        report(name, [run(table, {"personal": "off", **change})[0] for change in changes()])


def changes() -> list[dict[str, float]]:
    """Return the settings that are compared: the defaults, then each rate."""
    return [{}, *({"lr": rate} for rate in RATES)]


def report(name: str, shares: list[float]) -> None:
    """Print a row of the table; the last column is in points."""
    figures = " | ".join(f"{100 * share:.1f}" for share in shares)
    print(f"| {name} | {figures} | {100 * (max(shares[1:]) - shares[0]):.1f} |", flush=True)


def available() -> dict[str, dict[str, Any]]:
    """Return the federations whose data are here."""
    return SETS | (WITH_DATA if os.environ.get("FEDACCORD_DATA") else {})


def run(table: dict[str, Any], settings: dict[str, Any]) -> tuple[float, float]:
    """Return the mean figure over sites of what they end with, and the processor time in seconds."""
    model = table.get("model", {"name": "mlp", "hidden": [64]})
    spec = {**table, "model": model, "method": {"name": "accord", **settings}, "run": {"workers": 0}}
    experiment = check_experiment(spec)
    data = load_federation(experiment, Path(os.environ.get("FEDACCORD_DATA", ".")))
    start, last = time.process_time(), scopes(None)
    with open_server(experiment, data) as server:
        for record in play(experiment, server):
            last = scopes(record.evaluation)
        last = conclude(server, last)
    mean = last["sites"]["mean"]
    return float(mean.get("map", mean.get("accuracy", 0.0))), time.process_time() - start


def synthetic(size: int, settings: dict[str, float]) -> float:
    """Return the mean accuracy over sites whose tables have `size` training rows each, and other test rows."""
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=(FEATURES, 16)), rng.normal(size=(16, CLASSES))
    space, sites = LabelSpace([f"class {k}" for k in range(CLASSES)]), []
    for number in range(SITES):
        x = rng.normal(size=(size + TESTED, FEATURES)).astype(np.float32)
        y = (np.tanh(x @ first / 3) @ second + rng.normal(0, 0.5, (len(x), CLASSES))).argmax(1)
        names = [space.names[k] for k in y]
        sites.append(Site(f"site-{number}", x, names, Exact(space), test=TESTED / len(x)))
    model = {"name": "mlp", "hidden": [64]}
    result = Federation(sites).train("accord", model=model, personal="off", workers=0, **settings)
    return float(result.summary["final"]["sites"]["mean"]["accuracy"])


if __name__ == "__main__":
    main()
