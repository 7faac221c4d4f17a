"""The criteria of the table: deltas, accuracy and exclusions of the best and of the published defence."""

from __future__ import annotations

from collections.abc import Sequence

from fedaccord.evaluation.judge import judge_at_least, judge_at_most, judge_better, judge_not_worse, mean_interval
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
from papers.fairfedpapl.figures import LATE, accuracy_change, delta_eod, late_mean
from papers.harness.bars import judged_finding
from papers.harness.cells import Results, Size
from papers.harness.pages import Block, Finding, findings_grid
from papers.harness.statistics import Figures, differences, interval_text, mean, mean_by_seed, spread

POINT = 1.0  # of accuracy, that a defence may cost


def _pooled(results: Results, at: Sequence[tuple[str, str]], defence: str, attacks: Sequence[str]) -> Figures:
    """Return delta EOD by seed, averaged over scenarios and attacks."""
    return mean_by_seed([delta_eod(results, row_of(n, p, attack, defence)) for n, p in at for attack in attacks])


def bars(results: Results, size: Size) -> list[Block]:
    """Judge the best and the published defence, once all defences were measured on every seed."""
    at, seeds = places(size), SCALES[size].seeds
    pooled = {defence: _pooled(results, at, defence, ATTACKS) for defence in DEFENCES}
    if any(len(values) < seeds for values in pooled.values()):
        statement = "The best and the published defence, compared with no defence and with robust rules"
        return [findings_grid([Finding(statement, None, "not every attack and defence was measured on every seed")])]
    listed = ", ".join(f"{defence} {spread(values, 1.0, 3)}" for defence, values in pooled.items())
    best = min(SCORES, key=lambda defence: mean(pooled[defence]))
    about = (
        f"Delta EOD over all scenarios and attacks: {listed}. The criteria are applied to the defence with the "
        f"lowest value, `{best}`, and to the published one."
    )
    found = []
    for defence in dict.fromkeys((best, PUBLISHED)):
        found += _lower_deltas(results, at, defence, seeds)
        found += _close(results, at, defence, seeds)
        found += _exclusions(results, size, defence)
    return [about, findings_grid(found)]


def _lower_deltas(results: Results, at: Sequence[tuple[str, str]], defence: str, seeds: int) -> list[Finding]:
    """Judge whether a defence lowers delta EOD, compared with no defence and with the best robust rule."""

    def lower(statement: str, theirs: Figures, ours: Figures) -> Finding:
        judged = {"lower by": judge_better(differences(theirs, ours, 1.0))}
        return judged_finding(statement, judged, seeds, digits=3)

    found = []
    for attack in ATTACKS:
        statement = f"{defence}: delta EOD under {attack} is lower than without defence"
        found.append(lower(statement, _pooled(results, at, NONE, [attack]), _pooled(results, at, defence, [attack])))
    rules = {rule: _pooled(results, at, rule, ATTACKS) for rule in RULES}
    best = min(rules, key=lambda rule: mean(rules[rule]))
    statement = f"{defence}: delta EOD is lower than the best robust rule's ({best})"
    return [*found, lower(statement, rules[best], _pooled(results, at, defence, ATTACKS))]


def _close(results: Results, at: Sequence[tuple[str, str]], defence: str, seeds: int) -> list[Finding]:
    """Judge whether accuracy under attack is within a point of the run without attack, on average and everywhere."""
    rows = [row_of(name, partition, attack, defence) for name, partition in at for attack in ATTACKS]
    changes = {f"{row[0]}, {row[1]}, {row[4]}": accuracy_change(results, row) for row in rows}
    judged = {place: judge_not_worse(_listed(values), POINT) for place, values in changes.items()}
    statement = f"{defence}: accuracy at most {POINT:g} point below that of the run without attack"
    middle = judge_not_worse(_listed(mean_by_seed([*changes.values()])), POINT)
    alone = mean_by_seed([accuracy_change(results, row_of(*place, NONE, ALONE)) for place in at])
    without = f"honest sites only: {interval_text(mean_interval([*alone.values()]))}" if alone else ""
    return [
        judged_finding(statement, {"mean": middle}, seeds, note=without),
        judged_finding(f"{statement}, in every scenario under every attack", judged, seeds),
    ]


def _exclusions(results: Results, size: Size, defence: str) -> list[Finding]:
    """Judge how often hostile and honest sites are excluded, on average over scenarios and attacks."""
    at, seeds, rounds, found = places(size), SCALES[size].seeds, _late_in_words(size), []
    for words, figure, attacks, is_hostile in (
        (f"hostile sites are excluded in at least 90 % of {rounds}", "hostile_excluded", ATTACKS, True),
        (f"honest sites are excluded in at most 10 % of {rounds} under attack", "false_exclusions", ATTACKS, False),
        (f"honest sites are excluded in at most 10 % of {rounds} without attack", "excluded", (NONE,), False),
    ):
        every = [late_mean(results, row_of(n, p, attack, defence), figure) for n, p in at for attack in attacks]
        shares = [None if share is None else 100 * share for share in _listed(mean_by_seed(every))]
        judged = judge_at_least(shares, 90) if is_hostile else judge_at_most(shares, 10)
        means = [100 * mean(values) for values in every if values]
        note = f"scenarios from {min(means):.1f} to {max(means):.1f}" if means else ""
        found.append(judged_finding(f"{defence}: {words}", {"mean %": judged}, seeds, note=note))
    return found


def _listed(values: Figures) -> list[float | None]:
    return [value for _, value in sorted(values.with_failures().items())]


def _late_in_words(size: Size) -> str:
    """Describe the rounds that exclusions are counted in."""
    rounds = [SCALES[size].rounds_of(SCENARIOS[name], partition) for name, partition in places(size)]
    if min(rounds) > LATE:
        return f"rounds after round {LATE}"
    third = "the last third of the rounds"
    return third if max(rounds) <= LATE else f"rounds after round {LATE}, or {third} of shorter runs"
