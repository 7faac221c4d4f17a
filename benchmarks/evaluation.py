"""Measure how long the evaluation of many small sites takes, compared with their training.

    python benchmarks/evaluation.py [--sites 60] [--rounds 40]

FedAvg with an MLP on the digits, about 24 training and 6 test rows per site, evaluated in every round. The figures are
the fastest round of each kind, in milliseconds, because other processes on the machine only add time.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from fedaccord.config import check_experiment
from fedaccord.experiment import read_federation
from fedaccord.federation.round import play_round
from fedaccord.session import open_server


def measure(sites: int, rounds: int, workers: int) -> tuple[float, float]:
    """Return the seconds of the fastest training and of the fastest evaluation."""
    experiment = check_experiment(
        {
            "data": {"dataset": "digits", "partition": {"kind": "iid", "sites": sites}},
            "model": {"name": "mlp"},
            "method": {"name": "fedavg", "rounds": rounds},
            "run": {"workers": workers},
        }
    )
    with open_server(experiment, read_federation(experiment, Path())) as server:
        seconds = [play_round(server).seconds for _ in range(rounds)]
    return min(each["train"] for each in seconds), min(each["evaluate"] for each in seconds)


def main() -> None:
    """Print one row for each number of workers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    print("| workers | train, ms | evaluate, ms | evaluate / train |\n| --- | --- | --- | --- |", flush=True)
    for workers in (0, 1, 2):
        train, evaluate = measure(options.sites, options.rounds, workers)
        print(f"| {workers} | {1000 * train:.1f} | {1000 * evaluate:.1f} | {evaluate / train:.2f} |", flush=True)


if __name__ == "__main__":
    main()
