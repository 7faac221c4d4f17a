"""Measure how far sites with false correlations move the teacher of honest sites, by consensus operator.

    FEDACCORD_DATA=... python benchmarks/tag_consensus.py

Sites send the correlations of their tags; dishonest sites send the opposite sign of every entry, at full strength. The
figure is the root mean squared change of an honest site's teacher over pairs of tags, averaged over honest sites and
seeds.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from fedaccord.config import check_experiment
from fedaccord.experiment import load_federation
from fedaccord.labels.correlation import discrepancy, phi_of_sums, tag_sums
from fedaccord.methods.tags.consensus import Consensus, leave_one_out

OPERATORS = ("mean", "uniform-mean", "median", "trimmed-mean")


def teachers(matrices, informed, sizes, operator, honest):
    """Return the teacher of each honest site."""
    return {site: leave_one_out(matrices, informed, sizes, Consensus(operator), site) for site in honest}


def main() -> None:
    """Print a table for each data set."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--sets", nargs="*", default=["emotions", "scene", "extrasensory"])
    options = parser.parse_args()
    for name in options.sets:
        moved: dict[tuple[str, float], list[float]] = {}
        for seed in range(options.seeds):
            natural = name == "extrasensory"
            partition = (
                {"kind": "natural", "by": "user"} if natural else {"kind": "dirichlet", "sites": 10, "alpha": 0.3}
            )
            table = {"seed": seed, "data": {"dataset": name, "partition": partition, "view": {"kind": "tags"}}}
            sites = load_federation(check_experiment(table), Path()).sites
            correlations = {site: phi_of_sums(tag_sums(data.train.target)) for site, data in sites.items()}
            sizes = {site: float(len(data.train)) for site, data in sites.items()}
            for share in (0.1, 0.2, 0.3):
                dishonest = sorted(sites)[: round(share * len(sites))]
                honest = [site for site in sites if site not in dishonest]
                true = {site: matrix for site, (matrix, _) in correlations.items()}
                informed = {site: pairs for site, (_, pairs) in correlations.items()}
                sent = true | {site: -torch.sign(true[site]) for site in dishonest}
                for operator in OPERATORS:
                    before = teachers({s: true[s] for s in honest}, informed, sizes, operator, honest)
                    after = teachers(sent, informed, sizes, operator, honest)
                    far = [discrepancy(before[s][0], after[s][0], before[s][1]) for s in honest]
                    moved.setdefault((operator, share), []).append(sum(far) / len(far))
        print(
            f"{name}, {options.seeds} seeds" + "".join(f"{f'{share:.0%} dishonest':>12}" for share in (0.1, 0.2, 0.3))
        )
        for operator in OPERATORS:
            values = [sum(moved[operator, s]) / len(moved[operator, s]) for s in (0.1, 0.2, 0.3)]
            print(f"  {operator:<18}" + "".join(f"{value:12.3f}" for value in values))


if __name__ == "__main__":
    main()
