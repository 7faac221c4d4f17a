"""The criteria of the table: deltas, accuracy and exclusions of the best and of the published defence."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from papers.fairfedpapl.cells import (
    ALONE,
    ATTACKS,
    DEFENCES,
    NONE,
    PUBLISHED,
    RULES,
    SCALES,
    SCENARIOS,
    SCORES,
    places,
    row_of,
)
from papers.fairfedpapl.figures import LATE, accuracy_change, delta, figure_path, late_mean, mean_text
from papers.harness.bars import verdict
from papers.harness.cells import Results, Size
from papers.harness.pages import Block, Finding, findings_grid
from papers.harness.statistics import Paired, mean, paired


def _pooled(results: Results, at: Sequence[tuple[str, str]], defence: str, attacks: Sequence[str]) -> dict[int, float]:
    """Return delta EOD by seed, averaged over scenarios and attacks, on the seeds that have all of them."""
    every = [delta(results, row_of(n, p, a, defence), figure_path(n, "eod")) for n, p in at for a in attacks]
    shared = set.intersection(*(set(values) for values in every)) if every else set()
    return {seed: statistics.fmean(values[seed] for values in every) for seed in sorted(shared)}


def bars(results: Results, size: Size) -> list[Block]:
    """Judge the best and the published defence, once all defences were measured on every seed."""
    at, seeds = places(size), SCALES[size].seeds
    pooled = {defence: _pooled(results, at, defence, ATTACKS) for defence in DEFENCES}
    if any(len(values) < seeds for values in pooled.values()):
        statement = "The best and the published defence, compared with no defence and with robust rules"
        return [findings_grid([Finding(statement, None, "not every attack and defence was measured on every seed")])]
    listed = ", ".join(f"{defence} {mean_text(values, seeds)}" for defence, values in pooled.items())
    best = min(SCORES, key=lambda defence: mean(pooled[defence]))
    about = (
        f"Delta EOD over all scenarios and attacks: {listed}. The criteria are applied to the defence with the "
        f"lowest value, `{best}`, and to the published one."
    )
    found = []
    for defence in dict.fromkeys((best, PUBLISHED)):
        found += _lower_deltas(results, at, defence)
        found += _close(results, at, defence, seeds)
        found += _exclusions(results, size, defence)
    return [about, findings_grid(found)]


def _lower_deltas(results: Results, at: Sequence[tuple[str, str]], defence: str) -> list[Finding]:
    """Judge whether a defence lowers delta EOD, compared with no defence and with the best robust rule."""
    found: list[Finding] = []
    for attack in ATTACKS:
        gap = paired(_pooled(results, at, NONE, [attack]), _pooled(results, at, defence, [attack]), 1.0)
        found.append(_lower(f"{defence}: delta EOD under {attack} is lower than without defence", gap))
    rules = {rule: _pooled(results, at, rule, ATTACKS) for rule in RULES}
    best = min(rules, key=lambda rule: mean(rules[rule]))
    gap = paired(rules[best], _pooled(results, at, defence, ATTACKS), 1.0)
    return [*found, _lower(f"{defence}: delta EOD is lower than the best robust rule's ({best})", gap)]


def _lower(statement: str, gap: Paired | None) -> Finding:
    """Judge whether the second of a pair is lower than the first."""
    assert gap is not None  # criteria are judged only if every seed has every delta
    error = "" if math.isnan(gap.error) else f", se {gap.error:.3f}"
    return Finding(statement, gap.mean > 0, f"{-gap.mean:+.3f}{error}, lower on {gap.wins} of {gap.seeds} seeds")


def _close(results: Results, at: Sequence[tuple[str, str]], defence: str, seeds: int) -> list[Finding]:
    """Judge whether accuracy under attack is within a point of the run without attack, on average and everywhere."""
    rows = [row_of(name, partition, attack, defence) for name, partition in at for attack in ATTACKS]
    gaps = {f"{row[0]}, {row[1]}, {row[4]}": accuracy_change(results, row) for row in rows}
    means = {place: gap.mean for place, gap in gaps.items() if gap is not None}
    statement = f"{defence}: accuracy within 1 point of the run without attack"
    everywhere = f"{statement}, in every scenario under every attack"
    if not means:
        return [Finding(statement, None, "–"), Finding(everywhere, None, "–")]
    middle, worst = statistics.fmean(means.values()), min(means, key=lambda place: means[place])
    whole = verdict(gaps.values(), seeds, lambda gap: gap.mean >= -1)
    alone = [
        gap.mean for gap in (accuracy_change(results, row_of(*place, NONE, ALONE)) for place in at) if gap is not None
    ]
    without = f"; honest sites only: mean {statistics.fmean(alone):+.1f}, worst {min(alone):+.1f}" if alone else ""
    return [
        Finding(statement, None if whole is None else middle >= -1, f"mean {middle:+.1f}{without}"),
        Finding(everywhere, whole, f"worst {worst}, {means[worst]:+.1f}"),
    ]


def _exclusions(results: Results, size: Size, defence: str) -> list[Finding]:
    """Judge how often hostile and honest sites are excluded, if known for every scenario and seed."""
    at, seeds, rounds, found = places(size), SCALES[size].seeds, _late_in_words(size), []
    for words, figure, attacks, holds in (
        (f"hostile sites are excluded in at least 90 % of {rounds}", "hostile_excluded", ATTACKS, lambda m: m >= 0.9),
        (
            f"honest sites are excluded in at most 10 % of {rounds} under attack",
            "false_exclusions",
            ATTACKS,
            lambda m: m <= 0.1,
        ),
        (
            f"honest sites are excluded in at most 10 % of {rounds} without attack",
            "excluded",
            (NONE,),
            lambda m: m <= 0.1,
        ),
    ):
        every = [late_mean(results, row_of(n, p, attack, defence), figure) for n, p in at for attack in attacks]
        whole, statement = all(len(values) >= seeds for values in every), f"{defence}: {words}"
        means = [mean(values) for values in every if values]
        if not means:
            found.append(Finding(statement, None, "–"))
            continue
        middle = statistics.fmean(means)
        figures = f"mean {100 * middle:.1f} %, from {100 * min(means):.1f} to {100 * max(means):.1f}"
        found.append(Finding(statement, holds(middle) if whole else None, figures))
    return found


def _late_in_words(size: Size) -> str:
    """Describe the rounds that exclusions are counted in."""
    rounds = [SCALES[size].rounds_of(SCENARIOS[name], partition) for name, partition in places(size)]
    if min(rounds) > LATE:
        return f"rounds after round {LATE}"
    third = "the last third of the rounds"
    return third if max(rounds) <= LATE else f"rounds after round {LATE}, or {third} of shorter runs"
