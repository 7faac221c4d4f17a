"""Measure the share of a round outside the training steps: briefs, replies, checks, mean, metrics, checkpoints.

    python benchmarks/overhead.py [--workloads W2] [--rounds 21]

The workloads of `benchmarks/peers` run in one process (`run.workers = 0`), where times add up. The overhead is the
time of a round minus the time of its local training loops. The first round, a warm-up, is not counted.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PEERS = Path(__file__).parent / "peers"


def measure(workload: str, rounds: int) -> None:
    """Run a workload in this process and print one row."""
    sys.path.insert(0, str(PEERS))
    import fedaccord_peer
    import work

    import fedaccord.federation.host as host

    spent, marks = [0.0], [(0.0, 0.0)]

    def timed(function):
        def call(*arguments):
            began = time.perf_counter()
            try:
                return function(*arguments)
            finally:
                spent[0] += time.perf_counter() - began

        return call

    def mark(clock: work.Clock) -> None:
        marks.append((time.perf_counter(), spent[0]))

    host.train_locally, host.train_together = timed(host.train_locally), timed(host.train_together)
    work.Clock.mark, work.Clock.finish = mark, lambda *_: None
    sys.argv = [
        "overhead",
        "--workload",
        workload,
        "--rounds",
        str(rounds),
        "--workers",
        "0",
        "--checkpoint-every",
        "1",
    ]
    fedaccord_peer.main()
    (began, before), (ended, after) = marks[1], marks[-1]
    whole, steps = (ended - began) / (rounds - 1), (after - before) / (rounds - 1)
    print(f"| {workload} | {1000 * whole:.1f} | {1000 * steps:.1f} | {100 * (1 - steps / whole):.1f} |")


def main() -> None:
    """Measure each workload in a separate process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", default="W2")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--here", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        measure(options.here, options.rounds)
        return
    print("| workload | ms per round | ms in training loops | % outside |\n| --- | --- | --- | --- |", flush=True)
    for workload in options.workloads.split(","):
        words = [sys.executable, __file__, "--rounds", str(options.rounds), "--here", workload]
        subprocess.run(words, check=True, cwd=tempfile.gettempdir())


if __name__ == "__main__":
    main()
