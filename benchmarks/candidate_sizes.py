"""Measure the size of instance-dependent candidate sets over the temperature of the clean network.

    python benchmarks/candidate_sizes.py [--dataset mnist] [--samples 60000]

The output is the expected size for rho 0.2, 0.3 and 0.4; pFedPLL reports 2.99, 3.97 and 4.93 on MNIST. The network's
predictions are cached in FEDACCORD_CACHE. The data is read from FEDACCORD_DATA.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from fedaccord.clean_classifier import clean_predictions
from fedaccord.data.dataset import load_dataset
from fedaccord.labels.corruption import instance_rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="mnist")
    parser.add_argument("--samples", type=int, default=60_000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dataset = load_dataset(options.dataset, Path())
    order = np.random.default_rng(0).permutation(len(dataset.train))[: options.samples]
    dataset = replace(dataset, train=dataset.train.take(np.sort(order)))
    chances, y = clean_predictions(dataset, 0), dataset.train.y
    print(f"training accuracy of the clean network: {100 * np.mean(chances.argmax(1) == y):.1f} %")
    for temperature in (1, 2, 4, 6, 7, 8, 10):
        rates = [instance_rates(chances, y, rho, temperature=temperature) for rho in (0.2, 0.3, 0.4)]
        sizes = "  ".join(f"{1 + rate.sum(1).mean():.2f}" for rate in rates)
        print(f"temperature {temperature:2d}:  {sizes}")


if __name__ == "__main__":
    main()
