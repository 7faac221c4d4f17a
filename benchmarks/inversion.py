"""Compare the time of inverting the updates of all sites at once with a loop over the sites.

    python benchmarks/inversion.py

The network is FairFedPAPL's for COMPAS: 14 inputs, 64 hidden units, 3 labels; 100 dummies, 20 steps. With Tanh instead
of ReLU the gradients are computed by autograd, as for all other networks; the target does not apply there.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
from torch import nn

from fedaccord.adversary.inversion import Inversion
from fedaccord.models.catalogue import build
from fedaccord.models.network import Network

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "adversary"))
from inversion_loop import invert_each, made_up

INPUTS, LABELS, BLOCK = 14, 3, slice(8, 14)
REPEATS = 7  # the same for both, since the minimum of more repeats is smaller
TARGET = {20: 10.0}  # number of sites -> required speed-up over the loop
PUBLISHED = {20: "87.7 s on one GPU, 59.95 s on three", 40: "177.45 s on one GPU, 91.21 s on three"}


def seconds(work, place: str = "cpu") -> float:
    """Return the shortest of `REPEATS` times; on the CPU, the processor time of this process."""
    clock = time.process_time if place == "cpu" else time.perf_counter
    times = []
    for _ in range(REPEATS):
        start = clock()
        work()
        times.append(clock() - start)
    return min(times)


def main() -> None:
    torch.set_num_threads(1)
    places = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    networks = {
        f"{hidden} hidden": build("mlp", {"hidden": hidden}, (INPUTS,), LABELS, seed=0) for hidden in ([64], [64, 32])
    }
    networks["[64] hidden, Tanh"] = Network(nn.Sequential(nn.Linear(INPUTS, 64), nn.Tanh()), nn.Linear(64, LABELS))
    for named, network in networks.items():
        for sites in (10, 20, 40):
            model, directions, start = made_up(network, sites, INPUTS, LABELS)
            loop = seconds(lambda n=network, m=model, d=directions, s=start: invert_each(n, m, d, s, block=BLOCK))
            for place in places:
                there = network.to(place)
                given = (model.to(place), directions.to(place), type(start)(*(part.to(place) for part in start)))
                ours = seconds(lambda n=there, g=given: float(Inversion()(n, *g, BLOCK).x.sum()), place)
                target = f" (target: {TARGET[sites]:g})" if sites in TARGET and "Tanh" not in named else ""
                published = (
                    f"; 100 rounds {100 * ours:.2f} s, published {PUBLISHED[sites]}" if sites in PUBLISHED else ""
                )
                print(
                    f"{named}, {sites} sites, {place}: loop {1e3 * loop:.1f} ms per round, at once "
                    f"{1e3 * ours:.1f} ms, ratio {loop / ours:.1f}{target}{published}",
                    flush=True,
                )
            network.to("cpu")


if __name__ == "__main__":
    main()
