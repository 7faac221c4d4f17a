"""Compare ways to tune the server's model on unlabelled inputs when label sets are private, on paired seeds.

    FEDACCORD_DATA=... python benchmarks/tuning.py fashion_mnist --seeds 8
    python benchmarks/tuning.py digits --seeds 8

`kl` is the sum over sites of w_k KL(peer_k || h restricted to the site's labels); "+ balance" balances the head's
biases once, after the last round. The output is the final accuracy of the global model and its difference to no tuning.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
from pathlib import Path

import torch

from fedaccord.config import check_experiment
from fedaccord.experiment import load_federation
from fedaccord.federation.round import play_round
from fedaccord.methods.private_labels.settings import PrivateLabelsSettings
from fedaccord.methods.private_labels.tuning import Balancing, CentralTuning
from fedaccord.models.network import predict_logits
from fedaccord.session import open_server

ROUNDS, SITES, LABELS = 15, 10, 3
SIZES = {
    "fashion_mnist": (500, 1000, 128),
    "digits": (80, 300, 64),
}  # samples per site, unlabelled samples, hidden units


class KL(CentralTuning):
    """KL divergence from the site's prediction; the global prediction is conditioned on the site's labels."""

    def disagreement(self, q, site_q, known, present):
        theirs = site_q[:, known]
        ours = torch.log_softmax(q[:, known].clamp(min=1e-12).log(), -1)
        return (theirs * (theirs.clamp(min=1e-12).log() - ours)).sum(-1).mean()


def mse(**changed) -> PrivateLabelsSettings:
    return PrivateLabelsSettings(tuning="mse", **changed)


END, EVERY = (Balancing(PrivateLabelsSettings(tuning="balance", rounds=rounds)) for rounds in (ROUNDS, 1))
CONTESTANTS = {
    "none": (),
    "mse": (CentralTuning(mse()),),
    "pairwise": (CentralTuning(PrivateLabelsSettings(tuning="pairwise", tuning_lr=0.1)),),
    "kl": (KL(mse()),),
    "balance": (END,),
    "balance in every round": (EVERY,),
    "mse + balance": (CentralTuning(mse()), END),
    "kl + balance": (KL(mse()), END),
    "kl of the whole model + balance": (KL(mse(tuning_lr=0.003, tune="all")), END),
}


def experiment(dataset: str, seed: int):
    samples, unlabelled, hidden = SIZES[dataset]
    partition = {"kind": "label-sets", "sites": SITES, "labels": LABELS, "samples": samples}
    data = {"dataset": dataset, "partition": partition, "test": 0.3 if dataset == "digits" else 0.0}
    return check_experiment(
        {
            "seed": seed,
            "data": data if dataset == "digits" else {**data, "test_samples": 2000},
            "server": {"unlabelled": unlabelled},
            "model": {"name": "mlp", "hidden": [hidden]},
            "method": {"name": "private-labels", "rounds": ROUNDS, "lr": 0.05, "batch": 32},
            "run": {"workers": 0},
        }
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", choices=SIZES)
    parser.add_argument("--seeds", type=int, default=8)
    arguments = parser.parse_args()
    reached: dict[str, list[float]] = {name: [] for name in CONTESTANTS}
    for seed in range(1, arguments.seeds + 1):
        plan = experiment(arguments.dataset, seed)
        data = load_federation(plan, Path())
        x, truth = data.test
        for name, steps in CONTESTANTS.items():
            with open_server(plan, data) as server:
                server.recipe = dataclasses.replace(server.recipe, refine=steps)
                for _ in range(ROUNDS):
                    play_round(server, evaluated=False)
                right = predict_logits(server.load_network(), x).argmax(1) == truth
            reached[name].append(100 * right.float().mean().item())
    for name, values in reached.items():
        gains = [value - plain for value, plain in zip(values, reached["none"], strict=True)]
        error = statistics.stdev(gains) / len(gains) ** 0.5
        print(
            f"{name:32} {statistics.mean(values):5.1f} ± {statistics.stdev(values):4.1f}   "
            f"{statistics.mean(gains):+5.1f} (se {error:.1f})"
        )


if __name__ == "__main__":
    main()
