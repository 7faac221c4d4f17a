"""FLamby's Fed-Heart-Disease by its own protocol: accuracy on the pooled test rows, each answered by its own site."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedaccord.evaluation.judge import Judgement, judge_better, mean_interval, paired_differences
from papers.accord.cells import FLAMBY_SEEDS
from papers.accord.compared import POINTS
from papers.accord.contestants import ACCORD, contestants
from papers.accord.sets import FLAMBY_SET, HEART_DISEASE
from papers.harness.cells import Results
from papers.harness.pages import Block, Grid
from papers.harness.statistics import spread

SHARED = "accord, its shared model"
AIM = 0.795  # the published figure of pooled training
# Accuracy on the pooled test rows, as published; sites alone: each site's model on the rows of all sites.
PUBLISHED = {
    "pooled": ".795 ± .002",
    "fedavg": ".748 ± .024",
    "best federated (cyclic)": ".785",
    "FedAdagrad, FedYogi, FedAdam": ".779",
    "sites alone, on all rows": ".746, .746, .725, .702",
}


def pooled_accuracy(result: Mapping[str, Any], scope: str = "sites") -> float:
    """Return the share of all test rows that are answered rightly, each by the model of its own site.

    The scope `shared` is the shared model with the site's prior, where sites end with models of their own.
    """
    each: Mapping[str, Mapping[str, float]] = result["final"][scope]["each"]
    rows = sum(site["samples"] for site in each.values())
    return sum(site["accuracy"] * site["samples"] for site in each.values()) / rows


def flamby_blocks(results: Results) -> list[Block]:
    """Return the chapter's table beside the published figures."""
    found = {c.name: _by_seed(results, c.name) for c in contestants(FLAMBY_SET)}
    ours, lines = found[ACCORD], list[tuple[str, ...]]()
    found[SHARED] = _by_seed(results, ACCORD, "shared")
    for name, values in found.items():
        gap = judge_better(paired_differences({**ours}, {**values})) if name != ACCORD and values and ours else None
        words = "" if gap is None else _words(gap)
        lines.append((name, PUBLISHED.get(name, ""), spread(values, 1.0, 3), words))
    lines += [(name, figure, "", "") for name, figure in PUBLISHED.items() if name not in found]
    blocks: list[Block] = [
        "740 patients of four hospitals as FLamby has them: its columns, its split (66 % train) and its scaling by "
        "each hospital's training rows, a linear model, 15 rounds of 100 steps of 4. The split is the same with every "
        "seed; seeds differ in the initial weights and the order of the rows. Every test row is answered by the "
        f"model of its own hospital. {FLAMBY_SEEDS} seeds and three learning rates to choose from, in every form of "
        "this table; the last column is the paired difference of `accord`, in points, with its 95 % interval and the "
        "verdict on `accord is better`.",
        Grid(("method", "published", "ours", "accord is ahead by"), lines),
    ]
    if len(ours) > 1:
        reached = mean_interval(list(ours.values()))
        place = "above" if reached.low > AIM else "below" if reached.high < AIM else "around"
        blocks.append(
            f"`accord` reaches {reached.mean:.3f} (95 % interval {reached.low:.3f} to {reached.high:.3f}), {place} the "
            f"aim of {AIM}."
        )
    return blocks


def _by_seed(results: Results, contestant: str, scope: str = "sites") -> dict[int, float]:
    cells = results.cells.get((HEART_DISEASE, contestant), {})
    return {seed: pooled_accuracy(result, scope) for seed, result in sorted(cells.items()) if scope in result["final"]}


def _words(gap: Judgement) -> str:
    """Return a difference in points with its interval and the verdict."""
    low, high = POINTS * gap.interval.low, POINTS * gap.interval.high
    return f"{POINTS * gap.mean:+.1f} ({low:+.1f} to {high:+.1f}, {gap.verdict})"
