"""FLamby's Fed-Heart-Disease by its own protocol: accuracy on the pooled test rows, each answered by its own site."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedaccord.evaluation.judge import Judgement, judge_better, mean_interval, paired_differences
from papers.accord.cells import FLAMBY_SEEDS
from papers.accord.compared import POINTS
from papers.accord.contestants import ACCORD, contestants
from papers.accord.sets import FLAMBY_SET, HEART_DISEASE, SCALED_TOGETHER
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

    The scope `shared` is the shared model with the site's offset, where sites end with models of their own.
    """
    each: Mapping[str, Mapping[str, float]] = result["final"][scope]["each"]
    rows = sum(site["samples"] for site in each.values())
    return sum(site["accuracy"] * site["samples"] for site in each.values()) / rows


def flamby_blocks(results: Results) -> list[Block]:
    """Return the chapter's two tables, one for each scaling, beside the published figures."""
    return [
        "740 patients of four hospitals as FLamby has them: its columns, its split (66 % train), a linear model, 15 "
        "rounds of 100 steps of 4. The split is the same with every seed; seeds differ in the initial weights and the "
        "order of the rows. Every test row is answered by the model of its own hospital. "
        f"{FLAMBY_SEEDS} seeds and three learning rates to choose from, in every form of this table; the last column "
        "is the paired difference of `accord`, in points, with its 95 % interval and the verdict on `accord is "
        "better`.",
        "FLamby scales federated training by the moments of each hospital's own rows, and pooled training by those of "
        "all rows. The second is why its pooled model is so much better: differences between the hospitals remain "
        "visible to it. The first table has the former for everybody. The second has the latter, the default of this "
        'library (`standardise = "federation"`): its row `pooled` is comparable with the published one, and the '
        "others show what federated methods reach with the same inputs.",
        "**Scaled by each hospital's own rows**",
        *_table(results, HEART_DISEASE, ("fedavg",)),
        "**Scaled by the rows of all hospitals**",
        *_table(results, SCALED_TOGETHER, ("pooled",)),
        "Published, without a row of their own here: "
        + "; ".join(f"{name} {PUBLISHED[name]}" for name in PUBLISHED if name not in ("fedavg", "pooled"))
        + ".",
    ]


def _table(results: Results, name: str, comparable: Sequence[str]) -> list[Block]:
    """Return the table of a set; published figures stand beside the `comparable` methods."""
    found = {c.name: _by_seed(results, name, c.name) for c in contestants(FLAMBY_SET)}
    ours, lines = found[ACCORD], list[tuple[str, ...]]()
    found[SHARED] = _by_seed(results, name, ACCORD, "shared")
    for method, values in found.items():
        gap = judge_better(paired_differences({**ours}, {**values})) if method != ACCORD and values and ours else None
        published = PUBLISHED[method] if method in comparable else ""
        lines.append((method, published, spread(values, 1.0, 3), "" if gap is None else _words(gap)))
    grid = Grid(("method", "published", "ours", "accord is ahead by"), lines)
    if len(ours) < 2:
        return [grid]
    reached = mean_interval(list(ours.values()))
    place = "above" if reached.low > AIM else "below" if reached.high < AIM else "around"
    interval = f"95 % interval {reached.low:.3f} to {reached.high:.3f}"
    return [grid, f"`accord` reaches {reached.mean:.3f} ({interval}), {place} the aim of {AIM}."]


def _by_seed(results: Results, name: str, contestant: str, scope: str = "sites") -> dict[int, float]:
    cells = results.cells.get((name, contestant), {})
    return {seed: pooled_accuracy(result, scope) for seed, result in sorted(cells.items()) if scope in result["final"]}


def _words(gap: Judgement) -> str:
    """Return a difference in points with its interval and the verdict."""
    low, high = POINTS * gap.interval.low, POINTS * gap.interval.high
    return f"{POINTS * gap.mean:+.1f} ({low:+.1f} to {high:+.1f}, {gap.verdict})"
