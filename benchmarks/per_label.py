"""What averaging head rows over their owners costs over one plain weighted mean of the same matrix.

    python benchmarks/per_label.py
"""

from __future__ import annotations

import statistics
import time

import torch

from fedaccord.aggregation.mean import per_label_mean, weighted_mean
from fedaccord.models.catalogue import build
from fedaccord.models.layout import Layout

SITES, CLASSES = 100, 10


def seconds(work, repeat: int = 50) -> float:
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> None:
    torch.set_num_threads(1)
    for name, shape in (("mlp", (1, 28, 28)), ("lenet5", (1, 28, 28)), ("cnn", (1, 28, 28))):
        layout = Layout.of(build(name, {}, shape, CLASSES, seed=0))
        matrix = torch.randn(SITES, layout.size)
        weights = torch.randint(1, 500, (SITES,)).double()
        informs = torch.rand(SITES, CLASSES) < 0.5
        rows, previous = layout.head_rows(), matrix[0].clone()
        plain = seconds(lambda m=matrix, w=weights: weighted_mean(m, w))
        ours = seconds(lambda m=matrix, w=weights, i=informs, r=rows, p=previous: per_label_mean(m, w, i, r, p))
        print(f"{name:8} {layout.size:>9,} parameters: plain {1e3 * plain:7.2f} ms, per label {1e3 * ours:7.2f} ms, "
              f"ratio {ours / plain:.2f} (to reach: at most 2)")  # fmt: skip


if __name__ == "__main__":
    main()
