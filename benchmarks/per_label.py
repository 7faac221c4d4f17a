"""Compare the time of averaging head rows over their owners with one weighted mean of the same matrix.

python benchmarks/per_label.py
"""

from __future__ import annotations

import time
from functools import partial

import torch

from fedaccord.aggregation.mean import mean, per_label, weighted_mean
from fedaccord.aggregation.replies import Replies
from fedaccord.messages.message import Message
from fedaccord.models.catalogue import build
from fedaccord.models.layout import Layout

SITES, CLASSES = 100, 10


def seconds(works, repeat: int = 50) -> list[float]:
    """Return the shortest processor time of each function; calls alternate, so that other load affects all of them."""
    best = [float("inf")] * len(works)
    for _ in range(repeat):
        for number, work in enumerate(works):
            start = time.thread_time()
            work()
            best[number] = min(best[number], time.thread_time() - start)
    return best


def main() -> None:
    torch.set_num_threads(1)
    for name, shape in (("mlp", (1, 28, 28)), ("lenet5", (1, 28, 28)), ("cnn", (1, 28, 28))):
        layout = Layout.of(build(name, {}, shape, CLASSES, seed=0))
        matrix = torch.randn(SITES, layout.size)
        weights = torch.randint(1, 500, (SITES,)).double()
        informs = torch.rand(SITES, CLASSES) < 0.5
        names = tuple(f"site-{number:03d}" for number in range(SITES))
        replies = Replies(names, (Message(),) * SITES, matrix, weights, informs, matrix[0].clone(), layout)
        works = [partial(weighted_mean, matrix, weights), partial(per_label, replies), partial(mean, replies)]
        plain, ours, fedavg = seconds(works, 50 if layout.size < 10**6 else 10)
        print(
            f"{name:8} {layout.size:>9,} parameters: plain {1e3 * plain:7.2f} ms, per label {1e3 * ours:7.2f} ms, "
            f"ratio {ours / plain:.2f} (target: at most 2); FedAvg's mean {1e3 * fedavg:7.2f} ms"
        )


if __name__ == "__main__":
    main()
