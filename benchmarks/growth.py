"""Measure how the cost of a run grows with the number of sites, parameters and rounds.

    python benchmarks/growth.py [--curves sites,parameters,rounds] [--quick] [--out FILE]

FedAvg as in `fedaccord run`, on synthetic data, two workers, no evaluation. Every point runs in a separate process, so
that its memory is measured separately. Memory is the proportional set size of the whole process tree, which counts
shared pages once. If cost grows linearly (and rounds do not get slower), the last column of a curve is constant.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "peers"))

from process_tree import Sampler


@dataclass(frozen=True)
class Point:
    """One run: the numbers of sites, samples per site and rounds, and an MLP with one hidden layer."""

    sites: int = 100
    samples: int = 60
    inputs: int = 100
    hidden: int = 64
    rounds: int = 6

    @property
    def parameters(self) -> int:
        return (self.inputs + 1) * self.hidden + (self.hidden + 1) * CLASSES


CLASSES = 10
CURVES = {
    "sites": [Point(sites=n, inputs=784) for n in (10, 100, 1000, 10_000)],
    "parameters": [Point(sites=16, hidden=h) for h in (90, 900, 9000, 90_000)],
    "rounds": [Point(sites=16, hidden=8, rounds=n) for n in (10, 100, 1000)],
}


def play(point: Point) -> dict[str, float]:
    """Run one point in this process."""
    import torch

    from fedaccord.config import check_experiment
    from fedaccord.data.site_data import Samples, SiteData
    from fedaccord.data.sites import FederationData
    from fedaccord.experiment import run_experiment
    from fedaccord.labels.space import LabelSpace
    from fedaccord.labels.views import Exact
    from fedaccord.recording import Watcher
    from fedaccord.runs.folder import RunFolder

    generator = torch.Generator().manual_seed(0)
    space = LabelSpace(str(label) for label in range(CLASSES))
    sites = {}
    for number in range(point.sites):
        x = torch.randn(point.samples, point.inputs, generator=generator)
        y = torch.randint(CLASSES, (point.samples,), generator=generator)
        name = f"site-{number:05d}"
        sites[name] = SiteData(name, Exact(space), Samples(x, y), Samples(x[:0].clone(), y[:0].clone()))
    experiment = check_experiment(
        {
            "data": {"dataset": "digits", "partition": {"kind": "iid", "sites": 1}},  # replaced by the data in memory
            "model": {"name": "mlp", "hidden": [point.hidden]},
            "method": {"name": "fedavg", "rounds": point.rounds, "epochs": 1, "batch": 32, "momentum": 0.0},
            "run": {"workers": 2, "evaluate_every": 0},
        }
    )
    began, marks = time.perf_counter(), []
    watcher = Watcher(
        started=lambda data: marks.append(time.perf_counter()), round=lambda record: marks.append(time.perf_counter())
    )
    with tempfile.TemporaryDirectory() as place:
        data = FederationData(space, sites, (point.inputs,))
        run_experiment(experiment, Path(place), RunFolder(Path(place, "run")), watcher, data=data)
    seconds = [after - before for before, after in pairwise(marks)]
    late = seconds[-max(1, len(seconds) // 10) :]
    return {
        "start": marks[0] - began,
        "round": statistics.median(seconds[1:]),
        "late": statistics.median(late),
        "rounds": sum(seconds),
    }


def measure(point: Point) -> dict[str, float]:
    """Run one point in a separate process and measure its memory."""
    command = [sys.executable, __file__, "--point", json.dumps(asdict(point))]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    sampler = Sampler(process.pid)
    sampler.start()
    output, _ = process.communicate()
    sampler.finish()
    return json.loads(output) | {"memory": sampler.pss / 2**20}


def table(curve: str, points: list[Point]) -> list[str]:
    """Measure a curve and return it as Markdown."""
    what = {"sites": "ms per site", "parameters": "ns per parameter and site", "rounds": "last rounds, s"}[curve]
    lines = [f"| {curve} | s/round | start-up s | memory MB | {what} |", "|" + " --- |" * 5]
    for point in points:
        m = measure(point)
        grows = {
            "sites": f"{m['round'] / point.sites * 1e3:.2f}",
            "parameters": f"{m['round'] / point.parameters / point.sites * 1e9:.1f}",
            "rounds": f"{m['late']:.4f}",
        }[curve]
        number = {"sites": point.sites, "parameters": point.parameters, "rounds": point.rounds}[curve]
        lines.append(f"| {number:,} | {m['round']:.4f} | {m['start']:.1f} | {m['memory']:.0f} | {grows} |")
        print(lines[-1], file=sys.stderr, flush=True)
    return [*lines, ""]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--curves", default=",".join(CURVES))
    parser.add_argument("--quick", action="store_true", help="skip the largest point of each curve")
    parser.add_argument("--out", type=Path, default=None, help="write the tables to this Markdown file")
    parser.add_argument("--point", default=None, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.point is not None:
        print(json.dumps(play(Point(**json.loads(given.point)))))
        return
    lines: list[str] = []
    for curve in given.curves.split(","):
        lines += table(curve, CURVES[curve][: -1 if given.quick else None])
    print("\n".join(lines))
    if given.out is not None:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text("\n".join(lines))


if __name__ == "__main__":
    main()
