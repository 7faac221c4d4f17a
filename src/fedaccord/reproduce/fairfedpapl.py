"""Fairness under partial labels and attributes: attacks, robust rules, FairFedPAPL's defence and three others."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from fedaccord.reproduce.cells import Results, Row, Size
from fedaccord.reproduce.fairfedpapl_cells import (
    ALONE,
    ATTACKS,
    DEFENCES,
    GENERAL,
    HOSTILE,
    NONE,
    PARTITIONS,
    PUBLISHED,
    READINGS,
    RULES,
    SCALES,
    SCENARIOS,
    SCORES,
    SITES,
    STUDY,
    VARIANTS,
    Scale,
    places,
    row_of,
)
from fedaccord.reproduce.fairfedpapl_cells import cells as cells
from fedaccord.reproduce.fairfedpapl_published import published_grids
from fedaccord.reproduce.pages import Block, Chapter, Finding, Grid, findings_grid
from fedaccord.reproduce.statistics import Paired, mean, paired, spread

TITLE = "Fairness under partial labels and attributes: FairFedPAPL"


def chapters(results: Results, size: Size) -> list[Chapter]:
    """Return the page: what is excluded wrongly first."""
    scale = SCALES[size]
    seen = [(n, p) for n in SCENARIOS for p in PARTITIONS if row_of(n, p, NONE, NONE) in results.cells]
    parts = [
        Chapter("What was run", _what_was_run(scale, size)),
        Chapter("False exclusions", [_false_exclusions(results, seen)]),
        Chapter("Bars", _bars(results, size)),
        *(Chapter(f"{name}, {partition}", _scenario(results, name, partition)) for name, partition in seen),
        Chapter("As published", published_grids()),
    ]
    if size != "quick":
        parts += [
            Chapter("Shares of hostile sites", [_over_shares(results)]),
            Chapter("More sites", [_over_sites(results)]),
            Chapter("Settings of the defences", [_variants(results)]),
            Chapter("General attacks", _general(results)),
            Chapter("Other readings of the labels", [_readings(results)]),
        ]
    return parts


def _what_was_run(scale: Scale, size: Size) -> list[Block]:
    rounds = "as published (COMPAS 50, Student 20 and 60)" if scale.rounds is None else str(scale.rounds)
    return [
        f"{SITES} sites, {HOSTILE} of them hostile, dealt alike (iid) or by Dirichlet 1.0 over labels (skewed); "
        f"{scale.seeds} paired seeds, {scale.study_seeds} in the studies; rounds: {rounds}. Candidate labels by flips "
        "of 0.3, candidate groups by flips of 0.1, fed to the model as they are; an MLP with 64 hidden units, CLPL, "
        "one pass of batches of 32 a round, SGD with momentum 0.9. Test labels are clean; test rows have candidate "
        "groups as inputs, as a site would have them, and are measured by true ones.",
        "EOD and SPD are rates of the others less those of the group, so an attack that pushes the group towards the "
        "label lowers both. A delta is the absolute difference, by seed, to the run without attack and defence; "
        f"`{ALONE}` leaves out the sites that would be hostile and is what a perfect defence would come to. COMPAS, "
        "Asian is measured by candidate groups: by true groups hardly any test row is Asian and High. Shares of "
        "excluded sites are over the rounds after the 20th, or the last third of shorter runs.",
    ]


def _figure(name: str, figure: str) -> str:
    return f"global.{figure}{(SCENARIOS | READINGS)[name].ending}"


def _delta(results: Results, row: Row, figure: str) -> dict[int, float]:
    """Return |figure - that of the run without attack and defence| by seed; seeds without either are left out."""
    name, partition, sites, *_ = row
    calm = results.values((name, partition, sites, "30% hostile", NONE, NONE), figure)
    values = results.values(row, figure)
    return {seed: abs(values[seed] - calm[seed]) for seed in sorted(values.keys() & calm.keys())}


def _late(results: Results, row: Row, figure: str) -> dict[int, float]:
    """Return the mean of a server's figure over the late rounds, by seed."""
    found = {}
    for seed, result in results.cells.get(row, {}).items():
        steps = result.get("steps", [])
        first = min(20, 2 * len(steps) // 3)
        late = [step[figure] for step in steps if step["round"] > first and figure in step]
        if late:
            found[seed] = statistics.fmean(late)
    return found


def _shares(results: Results, row: Row) -> str:
    right, wrong = (_late(results, row, figure) for figure in ("hostile_excluded", "false_exclusions"))
    return f"{100 * mean(right):.0f} / {100 * mean(wrong):.0f}" if right else "–"


def _false_exclusions(results: Results, seen: Sequence[tuple[str, str]]) -> Grid:
    """Show the share of honest sites left out: nobody attacks, and under each attack."""
    lines = []
    for name, partition in seen:
        for defence in SCORES:
            calm = _late(results, row_of(name, partition, NONE, defence), "excluded")
            hit = [_late(results, row_of(name, partition, a, defence), "false_exclusions") for a in ATTACKS]
            lines.append([f"{name}, {partition}: {defence}", *(spread(values) for values in (calm, *hit))])
    return Grid(("honest sites excluded, %", "no attack", *ATTACKS), lines)


def _scenario(results: Results, name: str, partition: str) -> list[Block]:
    eod, spd = _figure(name, "eod"), _figure(name, "spd")
    calm = row_of(name, partition, NONE, NONE)
    cells = {k: mean(results.values(calm, _figure(name, k))) for k in ("members", "members_with_label")}
    about = (
        f"Without attack and defence: accuracy {spread(results.values(calm))}, "
        f"EOD {_plain(results.values(calm, eod))}, "
        f"SPD {_plain(results.values(calm, spd))}; {cells['members']:.0f} test rows in the group, "
        f"{cells['members_with_label']:.0f} of them with the label (mean over seeds)."
    )
    lines = []
    for defence in (*DEFENCES, ALONE):
        for attack in (NONE, *ATTACKS) if defence != ALONE else (NONE,):
            row = row_of(name, partition, attack, defence)
            if row in results.cells:
                lines.append([
                    defence, attack, spread(results.values(row)), _plain(results.values(row, eod)),
                    _plain(_delta(results, row, eod)), _plain(_delta(results, row, spd)), _shares(results, row),
                ])  # fmt: skip
    head = ("defence", "attack", "accuracy, %", "EOD", "delta EOD", "delta SPD", "hostile / honest excluded, %")
    return [about, Grid(head, lines)]


def _plain(values: Mapping[int, float]) -> str:
    return spread(values, 1.0, digits=3)


def _pooled(
    results: Results, seen: Sequence[tuple[str, str]], defence: str, attacks: Sequence[str]
) -> dict[int, float]:
    """Return delta EOD by seed, averaged over scenarios and attacks; seeds that miss one are left out."""
    every = [_delta(results, row_of(n, p, a, defence), _figure(n, "eod")) for n, p in seen for a in attacks]
    shared = set.intersection(*(set(values) for values in every)) if every else set()
    return {seed: statistics.fmean(values[seed] for values in every) for seed in sorted(shared)}


def best_defence(results: Results, seen: Sequence[tuple[str, str]]) -> str:
    """Return the defence with the lowest delta EOD over all scenarios and attacks."""
    pooled = {defence: mean(_pooled(results, seen, defence, ATTACKS)) for defence in SCORES}
    return min(pooled, key=lambda defence: pooled[defence] if not math.isnan(pooled[defence]) else math.inf)


def _bars(results: Results, size: Size) -> list[Block]:
    """Judge the best defence and the published one, once all that they are compared with has been run."""
    at = places(size)
    rows = [row_of(name, partition, a, d) for name, partition in at for a in (NONE, *ATTACKS) for d in DEFENCES]
    if not results.ran(rows, SCALES[size].seeds):
        statement = "The best defence and the published one against no defence and robust rules"
        return [findings_grid([Finding(statement, None, "not every attack and defence has been run on every seed")])]
    told = ", ".join(f"{defence} {_plain(_pooled(results, at, defence, ATTACKS))}" for defence in DEFENCES)
    best = best_defence(results, at)
    about = (
        f"Delta EOD over all scenarios and attacks: {told}. The bars are for the lowest of the four defences here, "
        f"`{best}`; the published one has its own lines."
    )
    return [about, findings_grid(f for d in dict.fromkeys((best, PUBLISHED)) for f in _bars_of(results, at, d))]


def _bars_of(results: Results, at: Sequence[tuple[str, str]], defence: str) -> list[Finding]:
    found: list[Finding] = []
    for attack in ATTACKS:
        gap = paired(_pooled(results, at, NONE, [attack]), _pooled(results, at, defence, [attack]), 1.0)
        found.append(_lower(f"{defence}: delta EOD under {attack} is lower than without defence", gap))
    rules = {rule: mean(_pooled(results, at, rule, ATTACKS)) for rule in RULES}
    best = min(rules, key=lambda rule: rules[rule])
    gap = paired(_pooled(results, at, best, ATTACKS), _pooled(results, at, defence, ATTACKS), 1.0)
    found.append(_lower(f"{defence}: delta EOD is lower than the best robust rule's ({best})", gap))
    found.append(_close(results, at, defence))
    found += _told_apart(results, at, defence)
    return found


def _lower(statement: str, gap: Paired | None) -> Finding:
    """Say whether the second of a pair is lower than the first."""
    if gap is None:
        return Finding(statement, None, "–")
    error = "" if math.isnan(gap.error) else f", se {gap.error:.3f}"
    return Finding(statement, gap.mean > 0, f"{-gap.mean:+.3f}{error}, lower on {gap.wins} of {gap.seeds} seeds")


def _close(results: Results, seen: Sequence[tuple[str, str]], defence: str) -> Finding:
    """Say whether accuracy under attack stays within a point of that without any, in the mean of every scenario."""
    gaps = {}
    for name, partition in seen:
        for attack in ATTACKS:
            row = row_of(name, partition, attack, defence)
            gap = paired(results.values(row), results.values(row_of(name, partition, NONE, NONE)))
            if gap is not None:
                gaps[f"{name}, {partition}, {attack}"] = gap.mean
    statement = f"{defence}: accuracy within 1 point of the run without attack"
    if not gaps:
        return Finding(statement, None, "–")
    worst = min(gaps, key=lambda key: gaps[key])
    return Finding(
        statement, gaps[worst] >= -1, f"mean {statistics.fmean(gaps.values()):+.1f}; worst {worst}, {gaps[worst]:+.1f}"
    )


def _told_apart(results: Results, seen: Sequence[tuple[str, str]], defence: str) -> list[Finding]:
    rows = [row_of(name, partition, attack, defence) for name, partition in seen for attack in ATTACKS]
    right = [mean(_late(results, row, "hostile_excluded")) for row in rows if _late(results, row, "hostile_excluded")]
    wrong = [mean(_late(results, row, "false_exclusions")) for row in rows if _late(results, row, "false_exclusions")]
    calm = [_late(results, row_of(name, partition, NONE, defence), "excluded") for name, partition in seen]
    alone = [mean(values) for values in calm if values]

    def said(values: list[float]) -> str:
        return f"mean {100 * statistics.fmean(values):.0f} %, from {100 * min(values):.0f} to {100 * max(values):.0f}"

    found = []
    for statement, values, holds in (
        ("hostile sites are excluded in at least 90 % of rounds", right, lambda m: m >= 0.9),
        ("honest ones in at most 10 % under attack", wrong, lambda m: m <= 0.1),
        ("honest ones in at most 10 % when nobody attacks", alone, lambda m: m <= 0.1),
    ):
        verdict = holds(statistics.fmean(values)) if values else None
        found.append(Finding(f"{defence}: {statement}", verdict, said(values) if values else "–"))
    return found


def _over_shares(results: Results) -> Grid:
    lines = []
    eod = _figure(STUDY, "eod")
    for defence in (NONE, *SCORES):
        rows = [row_of(STUDY, "iid", "plfa", defence, share=share) for share in (0.1, 0.2, 0.3)]
        lines.append([defence, *(f"{_plain(_delta(results, row, eod))}; {_shares(results, row)}" for row in rows)])
    return Grid(("delta EOD; hostile / honest excluded, %", "10 % hostile", "20 %", "30 %"), lines)


def _over_sites(results: Results) -> Grid:
    lines = []
    eod = _figure(STUDY, "eod")
    for defence in (NONE, *SCORES):
        line = [defence]
        for sites in (SITES, 50, 100):
            row = row_of(STUDY, "iid", "plfa", defence, sites=sites)
            calm = _late(results, row_of(STUDY, "iid", NONE, defence, sites=sites), "excluded")
            line.append(f"{_plain(_delta(results, row, eod))}; {_shares(results, row)}; {spread(calm)}")
        lines.append(line)
    return Grid(("delta EOD; hostile / honest excluded; without attack, %", "10 sites", "50", "100"), lines)


def _variants(results: Results) -> Grid:
    lines = []
    eod = _figure(STUDY, "eod")
    for variant in (*SCORES, *VARIANTS):
        row, calm = (row_of(STUDY, "iid", attack, variant) for attack in ("plfa", NONE))
        excluded = spread(_late(results, calm, "excluded"))
        lines.append([variant, _plain(_delta(results, row, eod)), _shares(results, row), excluded])
    return Grid(("under plfa", "delta EOD", "hostile / honest excluded, %", "excluded without attack, %"), lines)


def _general(results: Results) -> list[Block]:
    lines = []
    for defence in DEFENCES:
        rows = [row_of(STUDY, "iid", attack, defence) for attack in GENERAL]
        lines.append([defence, *(f"{spread(results.values(row))}; {_shares(results, row)}" for row in rows)])
    said = (
        "Attacks on the model as a whole. The four defences look at one group and one label, so that they can only see "
        "such an attack by chance; robust rules are made for it."
    )
    return [said, Grid(("accuracy; hostile / honest excluded, %", *GENERAL), lines)]


def _readings(results: Results) -> Grid:
    lines = []
    for name in READINGS:
        for attack in (NONE, "plfa"):
            for defence in (NONE, PUBLISHED, "group-update"):
                row = row_of(name, "iid", attack, defence)
                eod = _figure(name, "eod")
                gaps = (results.values(row, eod), _delta(results, row, eod))
                line = [f"{name}: {defence}", attack, spread(results.values(row)), *map(_plain, gaps)]
                lines.append([*line, _shares(results, row)])
    head = ("labels: defence", "attack", "accuracy, %", "EOD", "delta EOD", "hostile / honest excluded, %")
    return Grid(head, lines)
