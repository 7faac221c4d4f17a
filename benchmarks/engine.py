"""Compare the embedded engine with a bare PyTorch loop that takes the same steps.

    python benchmarks/engine.py [--rounds 12]

Two workloads on synthetic MNIST-shaped data (FedAvg, SGD lr 0.01, batch 32, one epoch, no evaluation): an MLP 784-64-10
at 100 sites of 300 samples, and LeNet-5 at 10 sites of 600. The bare loop runs once in this process on one thread, and
once in two processes of one thread each; FedAccord runs as in `fedaccord run`. Rounds of all contestants are
interleaved, and the median is reported. The ratio is FedAccord's best median divided by the bare loop's best.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import nn

from fedaccord.config import Experiment, check_experiment
from fedaccord.data.site_data import Samples, SiteData
from fedaccord.data.sites import FederationData
from fedaccord.federation.round import play_round
from fedaccord.labels.space import LabelSpace
from fedaccord.labels.views import Exact
from fedaccord.models.catalogue import build
from fedaccord.session import open_server

WORKLOADS = {
    "MLP 784-64-10, 100 x 300": ("mlp", {"hidden": [64]}, 100, 300),
    "LeNet-5, 10 x 600": ("lenet5", {}, 10, 600),
}
SHAPE, LR, BATCH = (1, 28, 28), 0.01, 32


def synthetic(sites: int, samples: int) -> FederationData:
    """Return sites with random images and random classes."""
    generator = torch.Generator().manual_seed(0)
    space = LabelSpace(str(digit) for digit in range(10))
    data = {}
    for i in range(sites):
        x = torch.randn(samples, *SHAPE, generator=generator)
        y = torch.randint(0, 10, (samples,), generator=generator)
        name = f"site-{i:03d}"
        data[name] = SiteData(name, Exact(space), Samples(x, y), Samples(x[:0], y[:0]))
    return FederationData(space, data, SHAPE)


class BareLoop:
    """A plain PyTorch loop: one module, `torch.optim.SGD`, slices for batches, a running weighted sum."""

    def __init__(self, model: str, settings: dict, data: FederationData, sites: list[str]) -> None:
        self.network = build(model, settings, SHAPE, 10, seed=0)
        self.data, self.sites = data, sites
        self.parameters = list(self.network.parameters())

    def round(self, received: list[torch.Tensor], total: list[torch.Tensor], weight: float) -> None:
        loss_of = nn.functional.cross_entropy
        for name in self.sites:
            with torch.no_grad():
                for parameter, value in zip(self.parameters, received, strict=True):
                    parameter.copy_(value)
            optimiser = torch.optim.SGD(self.parameters, lr=LR)
            x, y = self.data.sites[name].train.x, self.data.sites[name].train.target
            order = torch.randperm(len(x))
            for start in range(0, len(x), BATCH):
                rows = order[start : start + BATCH]
                optimiser.zero_grad()
                loss_of(self.network(x[rows]), y[rows]).backward()
                optimiser.step()
            with torch.no_grad():
                for sum_, parameter in zip(total, self.parameters, strict=True):
                    sum_.add_(parameter, alpha=weight)


@contextmanager
def bare_sequential(model: str, settings: dict, data: FederationData) -> Iterator[Callable[[], None]]:
    names = sorted(data.sites)
    loop = BareLoop(model, settings, data, names)
    received = [p.detach().clone() for p in loop.parameters]

    def play() -> None:
        total = [torch.zeros_like(p) for p in received]
        loop.round(received, total, 1 / len(names))
        received[:] = total

    yield play


@contextmanager
def bare_two_processes(model: str, settings: dict, data: FederationData) -> Iterator[Callable[[], None]]:
    names = sorted(data.sites)
    template = BareLoop(model, settings, data, names)
    received = [p.detach().clone().share_memory_() for p in template.parameters]
    totals = [[torch.zeros_like(p).share_memory_() for p in received] for _ in range(2)]
    pipes, children = [], []
    for rank in range(2):
        down, up = os.pipe(), os.pipe()
        pid = os.fork()
        if pid == 0:
            torch.set_num_threads(1)
            loop = BareLoop(model, settings, data, names[rank::2])
            while os.read(down[0], 1) == b"g":
                loop.round(received, totals[rank], 1 / len(names))
                os.write(up[1], b"d")
            os._exit(0)
        pipes.append((down[1], up[0]))
        children.append(pid)

    def play() -> None:
        for total in totals:
            for tensor in total:
                tensor.zero_()
        for down, _ in pipes:
            os.write(down, b"g")
        for _, up in pipes:
            os.read(up, 1)
        for value, first, second in zip(received, *totals, strict=True):
            torch.add(first, second, out=value)

    try:
        yield play
    finally:
        for down, _ in pipes:
            os.write(down, b"x")
        for pid in children:
            os.waitpid(pid, 0)


@contextmanager
def fedaccord(experiment: Experiment, data: FederationData) -> Iterator[Callable[[], None]]:
    with open_server(experiment, data) as server:
        yield lambda: play_round(server, evaluated=False) and None


def experiment(model: str, settings: dict, workers: int) -> Experiment:
    return check_experiment(
        {
            "data": {"dataset": "digits", "partition": {"kind": "iid", "sites": 1}},  # replaced by synthetic data
            "model": {"name": model, **settings},
            "method": {"name": "fedavg", "rounds": 1000, "epochs": 1, "batch": BATCH, "lr": LR, "momentum": 0.0},
            "run": {"workers": workers},
        }
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    for title, (model, settings, sites, samples) in WORKLOADS.items():
        data = synthetic(sites, samples)
        with ExitStack() as stack:
            contestants = {
                "bare loop, 2 processes": stack.enter_context(bare_two_processes(model, settings, data)),
                "bare loop, 1 process": stack.enter_context(bare_sequential(model, settings, data)),
                "fedaccord, 2 workers": stack.enter_context(fedaccord(experiment(model, settings, 2), data)),
                "fedaccord, in process": stack.enter_context(fedaccord(experiment(model, settings, 0), data)),
            }
            times: dict[str, list[float]] = {name: [] for name in contestants}
            for number in range(rounds + 1):
                for name, play in contestants.items():
                    start = time.perf_counter()
                    play()
                    if number:  # the first round is a warm-up
                        times[name].append(time.perf_counter() - start)
        print(f"\n{title}: seconds per round, median of {rounds}")
        medians = {name: statistics.median(values) for name, values in times.items()}
        for name, value in medians.items():
            print(f"  {name:24} {value:.4f}  (fastest {min(times[name]):.4f})")
        bare = min(value for name, value in medians.items() if name.startswith("bare"))
        ours = min(value for name, value in medians.items() if name.startswith("fedaccord"))
        print(f"  ratio fedaccord / bare: {ours / bare:.2f}  (target: at most 1.25)")


if __name__ == "__main__":
    main()
