"""Fairness under partial labels and attributes: attacks, robust rules, FairFedPAPL's defence and four others."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import product

from papers.fairfedpapl.cells import (
    ALONE,
    ATTACKS,
    BATCH,
    DEFENCES,
    GENERAL,
    HOSTILE,
    MORE_SITES,
    NONE,
    PARTITIONS,
    PUBLISHED,
    READ_BY,
    READINGS,
    RULES,
    SCALES,
    SCENARIOS,
    SCORES,
    SITES,
    STUDY,
    VARIANTS,
    Scale,
    batch_of,
    places,
    row_of,
)
from papers.fairfedpapl.cells import cells as cells
from papers.fairfedpapl.published import TABLES, published_grids, published_of
from papers.harness.bars import verdict
from papers.harness.cells import Results, Row, Size
from papers.harness.pages import Block, Chapter, Finding, Grid, findings_grid
from papers.harness.statistics import Paired, mean, paired, spread

LATE = 20  # rounds after which exclusions count
VISIBLE = 1.0  # points of accuracy that an attack must cost to be seen
TITLE = "Fairness under partial labels and attributes: FairFedPAPL"


def chapters(results: Results, size: Size) -> list[Chapter]:
    """Return the page: what is excluded wrongly first."""
    scale = SCALES[size]
    at = places(size)
    parts = [
        Chapter("What was run", _what_was_run(scale, size)),
        Chapter("False exclusions", [_false_exclusions(results, at)]),
        Chapter("Bars", _bars(results, size)),
        *(Chapter(f"{name}, {partition}", _scenario(results, name, partition)) for name, partition in at),
        Chapter("As published", published_grids()),
    ]
    if size != "quick":
        few = results.of_seeds(range(scale.first_seed, scale.first_seed + scale.study_seeds))
        parts += [
            Chapter("Shares of hostile sites", [_over_shares(few)]),
            Chapter("More sites", _over_sites(few)),
            Chapter("Settings of the defences", [_variants(few)]),
            Chapter("General attacks", _general(few)),
            Chapter("Other readings of the labels", [_readings(few)]),
        ]
    return parts


def _what_was_run(scale: Scale, size: Size) -> list[Block]:
    published = "COMPAS 50, Student 20 iid and 60 skewed"
    rounds = f"as published ({published})" if scale.rounds is None else f"{scale.rounds} (published: {published})"
    adult = " Adult is judged on 4000 rows of its published test part." if "Adult, women" in dict(places(size)) else ""
    return [
        f"{SITES} sites, {HOSTILE} of them hostile, dealt alike (iid) or by Dirichlet 1.0 over labels (skewed); "
        f"{scale.seeds} paired seeds, {scale.study_seeds} in the studies; rounds: {rounds}. Candidate labels by "
        "uniform flips of 0.3, candidate groups by uniform flips of 0.1, fed to the model as they are (cyclic flips "
        "were not run); an MLP with one layer of 64 hidden units (the published sizes are not known; two layers, of 64 "
        "and 32, were not run), CLPL, one pass of batches of 32 a round, SGD with momentum 0.9; rows whose set "
        "holds all labels say nothing and are not trained on. Test labels are clean; "
        "test rows have candidate groups as inputs, as a site would have them, and are measured by true ones.",
        "Rows are dealt to the sites first, and each site keeps a fifth of its own, drawn without regard to labels and "
        "groups, as test rows; all of these together are the test. This is not one split of 80 to 20 before rows are "
        f"dealt, stratified by label and group where possible: small cells vary more from seed to seed.{adult}",
        "EOD and SPD are rates of the others less those of the group, so an attack that pushes the group towards the "
        "label lowers both. A delta is the absolute difference, by seed, to the run without attack and defence; "
        f"`{ALONE}` leaves out the sites that would be hostile and is what a perfect defence would come to. COMPAS, "
        "Asian is measured by candidate groups, with true ones beside: hardly any test row is truly Asian and High. A "
        "figure that some runs do not have, since a cell of people is empty, says of how many seeds it is. Shares of "
        f"excluded sites are over the rounds after the {LATE}th{_how_many_late(scale)}; of runs of {LATE} rounds or "
        "fewer, the last third. Precision is the share of hostile sites among those excluded in these rounds; the "
        "share of the hostile ones that are excluded is the recall.",
    ]


def _how_many_late(scale: Scale) -> str:
    """Say which rounds come after the 20th where runs were cut short."""
    if scale.rounds is None or scale.rounds <= LATE:
        return ""
    return f", which here are {scale.rounds - LATE} rounds, {LATE + 1} to {scale.rounds}"


def _figure(name: str, figure: str) -> str:
    return f"global.{figure}{(SCENARIOS | READINGS)[name].ending}"


def _delta(results: Results, row: Row, figure: str) -> dict[int, float]:
    """Return |figure - that of the run without attack and defence| by seed; seeds without either are left out."""
    name, partition, sites, *_ = row
    calm = results.values((name, partition, sites, "30% hostile", NONE, NONE), figure)
    values = results.values(row, figure)
    return {seed: abs(values[seed] - calm[seed]) for seed in sorted(values.keys() & calm.keys())}


def _late(results: Results, row: Row, figure: str) -> dict[int, float]:
    """Return the mean of a server's figure over the rounds after the 20th, or a shorter run's last third, by seed."""
    found = {}
    for seed, result in results.cells.get(row, {}).items():
        steps = result.get("steps", [])
        before = LATE if len(steps) > LATE else 2 * len(steps) // 3
        late = [step[figure] for step in steps if step["round"] > before and figure in step]
        if late:
            found[seed] = statistics.fmean(late)
    return found


def _shares(results: Results, row: Row) -> str:
    right, wrong = (_late(results, row, figure) for figure in ("hostile_excluded", "false_exclusions"))
    return f"{100 * mean(right):.0f} / {100 * mean(wrong):.0f}" if right else "–"


def _precision(results: Results, row: Row) -> str:
    """Write the share of hostile sites among the excluded ones; a seed on which nobody was excluded has none."""
    hostile = float(row[3].removesuffix("% hostile")) / 100
    right, wrong = (_late(results, row, figure) for figure in ("hostile_excluded", "false_exclusions"))
    found = {seed: hostile * right[seed] for seed in right.keys() & wrong.keys()}
    out = {seed: found[seed] + (1 - hostile) * wrong[seed] for seed in found}
    precision = {seed: found[seed] / out[seed] for seed in sorted(out) if out[seed]}
    return _plain(precision, len(results.cells.get(row, {})), 100.0, 1)


def _false_exclusions(results: Results, at: Sequence[tuple[str, str]]) -> Grid:
    """Show the share of honest sites left out: nobody attacks, and under each attack."""
    lines = []
    for name, partition in at:
        for defence in SCORES:
            calm = _late(results, row_of(name, partition, NONE, defence), "excluded")
            hit = [_late(results, row_of(name, partition, a, defence), "false_exclusions") for a in ATTACKS]
            lines.append([f"{name}, {partition}: {defence}", *(spread(values) for values in (calm, *hit))])
    return Grid(("honest sites excluded, %", "no attack", *ATTACKS), lines)


def _scenario(results: Results, name: str, partition: str) -> list[Block]:
    ending = SCENARIOS[name].ending
    eod, spd = _figure(name, "eod"), _figure(name, "spd")
    calm = row_of(name, partition, NONE, NONE)
    about = (
        f"Without attack and defence: accuracy {spread(results.values(calm))}, EOD {_level(results, calm, eod)}, "
        f"SPD {_level(results, calm, spd)}; {_people(results, calm, ending)}"
    )
    about += f" by candidate groups, {_people(results, calm, '')} by true ones." if ending else "."
    lines = []
    for defence in (*DEFENCES, ALONE):
        for attack in (NONE, *ATTACKS) if defence != ALONE else (NONE,):
            row = row_of(name, partition, attack, defence)
            if row in results.cells:
                lines.append(
                    [
                        defence,
                        attack,
                        spread(results.values(row)),
                        _level(results, row, eod),
                        _shift(results, row, eod),
                        _shift(results, row, spd),
                        *_by_true_groups(results, row, ending),
                        _shares(results, row),
                        _precision(results, row),
                        *(published_of(name, partition, attack, defence) if name in TABLES else ()),
                    ]
                )
    true = ("EOD, true groups", "delta EOD, true groups") if ending else ()
    excluded = ("hostile / honest excluded, %", "precision, %")
    published = ("published accuracy, %", "published delta EOD") if name in TABLES else ()
    head = ("defence", "attack", "accuracy, %", "EOD", "delta EOD", "delta SPD", *true, *excluded, *published)
    return [about, Grid(head, lines)]


def _by_true_groups(results: Results, row: Row, ending: str) -> list[str]:
    """Return EOD and its delta by true groups, for a scenario that is measured by candidate ones."""
    return [_level(results, row, "global.eod"), _shift(results, row, "global.eod")] if ending else []


def _people(results: Results, row: Row, ending: str) -> str:
    members, having, others, others_having = (
        spread(results.values(row, f"global.{cell}{ending}"), 1.0, digits=0)
        for cell in ("members", "members_with_label", "others", "others_with_label")
    )
    return f"{members} test rows in the group ({having} with the label) and {others} others ({others_having} with it)"


def _level(results: Results, row: Row, figure: str) -> str:
    return _plain(results.values(row, figure), len(results.cells.get(row, {})))


def _shift(results: Results, row: Row, figure: str) -> str:
    return _plain(_delta(results, row, figure), len(results.cells.get(row, {})))


def _plain(values: Mapping[int, float], ran: int, scale: float = 1.0, digits: int = 3) -> str:
    """Write mean and deviation; and how many of the seeds that ran have the figure, if not all do."""
    told = spread(values, scale, digits)
    return f"{told} ({len(values)} of {ran} seeds)" if 0 < len(values) < ran else told


def _pooled(results: Results, at: Sequence[tuple[str, str]], defence: str, attacks: Sequence[str]) -> dict[int, float]:
    """Return delta EOD by seed, averaged over scenarios and attacks; seeds that miss one are left out."""
    every = [_delta(results, row_of(n, p, a, defence), _figure(n, "eod")) for n, p in at for a in attacks]
    shared = set.intersection(*(set(values) for values in every)) if every else set()
    return {seed: statistics.fmean(values[seed] for values in every) for seed in sorted(shared)}


def _bars(results: Results, size: Size) -> list[Block]:
    """Judge the best defence and the published one, once all that they are compared with was measured on every seed."""
    at, seeds = places(size), SCALES[size].seeds
    pooled = {defence: _pooled(results, at, defence, ATTACKS) for defence in DEFENCES}
    if any(len(values) < seeds for values in pooled.values()):
        statement = "The best defence and the published one against no defence and robust rules"
        return [findings_grid([Finding(statement, None, "not every attack and defence was measured on every seed")])]
    told = ", ".join(f"{defence} {_plain(values, seeds)}" for defence, values in pooled.items())
    best = min(SCORES, key=lambda defence: mean(pooled[defence]))
    about = (
        f"Delta EOD over all scenarios and attacks: {told}. The bars are for the lowest of the defences here, "
        f"`{best}`; the published one has its own lines."
    )
    found = []
    for defence in dict.fromkeys((best, PUBLISHED)):
        found += _lower_deltas(results, at, defence)
        found += _close(results, at, defence, seeds)
        found += _told_apart(results, size, defence)
    return [about, findings_grid(found)]


def _lower_deltas(results: Results, at: Sequence[tuple[str, str]], defence: str) -> list[Finding]:
    """Say whether a defence's delta EOD is lower than without one, and than that of the best robust rule."""
    found: list[Finding] = []
    for attack in ATTACKS:
        gap = paired(_pooled(results, at, NONE, [attack]), _pooled(results, at, defence, [attack]), 1.0)
        found.append(_lower(f"{defence}: delta EOD under {attack} is lower than without defence", gap))
    rules = {rule: _pooled(results, at, rule, ATTACKS) for rule in RULES}
    best = min(rules, key=lambda rule: mean(rules[rule]))
    gap = paired(rules[best], _pooled(results, at, defence, ATTACKS), 1.0)
    return [*found, _lower(f"{defence}: delta EOD is lower than the best robust rule's ({best})", gap)]


def _lower(statement: str, gap: Paired | None) -> Finding:
    """Say whether the second of a pair is lower than the first."""
    assert gap is not None  # bars are judged only where every seed has every delta
    error = "" if math.isnan(gap.error) else f", se {gap.error:.3f}"
    return Finding(statement, gap.mean > 0, f"{-gap.mean:+.3f}{error}, lower on {gap.wins} of {gap.seeds} seeds")


def _close(results: Results, at: Sequence[tuple[str, str]], defence: str, seeds: int) -> list[Finding]:
    """Say whether accuracy under attack stays within a point of that without any, on average and everywhere."""
    rows = [row_of(name, partition, attack, defence) for name, partition in at for attack in ATTACKS]
    gaps = {f"{row[0]}, {row[1]}, {row[4]}": _lost(results, row) for row in rows}
    means = {place: gap.mean for place, gap in gaps.items() if gap is not None}
    statement = f"{defence}: accuracy within 1 point of the run without attack"
    everywhere = f"{statement}, in every scenario under every attack"
    if not means:
        return [Finding(statement, None, "–"), Finding(everywhere, None, "–")]
    middle, worst = statistics.fmean(means.values()), min(means, key=lambda place: means[place])
    whole = verdict(gaps.values(), seeds, lambda gap: gap.mean >= -1)
    alone = [gap.mean for gap in (_lost(results, row_of(*place, NONE, ALONE)) for place in at) if gap is not None]
    without = f"; honest sites only: mean {statistics.fmean(alone):+.1f}, worst {min(alone):+.1f}" if alone else ""
    return [
        Finding(statement, None if whole is None else middle >= -1, f"mean {middle:+.1f}{without}"),
        Finding(everywhere, whole, f"worst {worst}, {means[worst]:+.1f}"),
    ]


def _lost(results: Results, row: Row) -> Paired | None:
    """Return how far a run's accuracy is from that of the run without attack and defence."""
    name, partition, *_ = row
    return paired(results.values(row), results.values(row_of(name, partition, NONE, NONE)))


def _told_apart(results: Results, size: Size, defence: str) -> list[Finding]:
    """Say how often hostile and honest sites were left out; nothing unless it is known of every scenario and seed."""
    at, seeds, rounds, found = places(size), SCALES[size].seeds, _late_in_words(size), []
    for words, figure, attacks, holds in (
        (f"hostile sites are excluded in at least 90 % of {rounds}", "hostile_excluded", ATTACKS, lambda m: m >= 0.9),
        (f"honest ones in at most 10 % of {rounds} under attack", "false_exclusions", ATTACKS, lambda m: m <= 0.1),
        (f"honest ones in at most 10 % of {rounds} when nobody attacks", "excluded", (NONE,), lambda m: m <= 0.1),
    ):
        every = [_late(results, row_of(n, p, attack, defence), figure) for n, p in at for attack in attacks]
        whole, statement = all(len(values) >= seeds for values in every), f"{defence}: {words}"
        means = [mean(values) for values in every if values]
        if not means:
            found.append(Finding(statement, None, "–"))
            continue
        middle = statistics.fmean(means)
        said = f"mean {100 * middle:.1f} %, from {100 * min(means):.1f} to {100 * max(means):.1f}"
        found.append(Finding(statement, holds(middle) if whole else None, said))
    return found


def _late_in_words(size: Size) -> str:
    """Say over which rounds shares of excluded sites are taken."""
    rounds = [SCALES[size].rounds_of(SCENARIOS[name], partition) for name, partition in places(size)]
    if min(rounds) > LATE:
        return f"rounds after round {LATE}"
    third = "the last third of the rounds"
    return third if max(rounds) <= LATE else f"rounds after round {LATE}, or {third} where there are no more"


def _over_shares(results: Results) -> Grid:
    lines = []
    eod = _figure(STUDY, "eod")
    for defence in (NONE, *SCORES):
        rows = [row_of(STUDY, "iid", "plfa", defence, share=share) for share in (0.1, 0.2, 0.3)]
        lines.append([defence, *(f"{_shift(results, row, eod)}; {_shares(results, row)}" for row in rows)])
    return Grid(("delta EOD; hostile / honest excluded, %", "10 % hostile", "20 %", "30 %"), lines)


def _over_sites(results: Results) -> list[Block]:
    lines = []
    for defence in (NONE, *SCORES):
        line = [defence]
        for sites in (SITES, *MORE_SITES):
            row = row_of(STUDY, "iid", "plfa", defence, sites=sites)
            calm = _late(results, row_of(STUDY, "iid", NONE, defence, sites=sites), "excluded")
            gaps = " / ".join(_shift(results, row, _figure(STUDY, figure)) for figure in ("eod", "spd"))
            line.append(f"{gaps}; {_shares(results, row)}; {spread(calm)}")
        lines.append(line)
    batches = ", ".join(f"{batch_of(sites)} with {sites} sites" for sites in MORE_SITES)
    said = (
        f"The same rows at more sites: each has fewer, and batches of {BATCH} leave it few steps a round, in which the "
        "model hardly learns, so that an attack on it does not show. Batches are therefore smaller here, "
        f"{batches} instead of {BATCH}: a site takes about as many steps in a round as one of {SITES} does. All else "
        "is the same."
    )
    head = "delta EOD / delta SPD; hostile / honest excluded; without attack, %"
    return [said, Grid((head, f"{SITES} sites", *map(str, MORE_SITES)), lines)]


def _variants(results: Results) -> Grid:
    lines = []
    eod = _figure(STUDY, "eod")
    for variant in (*SCORES, *VARIANTS):
        row, calm = (row_of(STUDY, "iid", attack, variant) for attack in ("plfa", NONE))
        excluded = spread(_late(results, calm, "excluded"))
        lines.append([variant, _shift(results, row, eod), _shares(results, row), excluded])
    return Grid(("under plfa", "delta EOD", "hostile / honest excluded, %", "excluded without attack, %"), lines)


def _general(results: Results) -> list[Block]:
    lines = []
    for defence in DEFENCES:
        calm = row_of(STUDY, "iid", NONE, defence)
        rows = [row_of(STUDY, "iid", attack, defence) for attack in GENERAL]
        left_out = f"; {spread(_late(results, calm, 'excluded'))}" if defence in SCORES else ""
        under = [f"{spread(results.values(row))}; {_shares(results, row)}" for row in rows]
        lines.append([defence, f"{spread(results.values(calm))}{left_out}", *under])
    strengths = ", ".join(f"{attack} {strength:g}" for attack, strength in GENERAL.items() if strength is not None)
    said = (
        "Attacks on the model as a whole. These defences look at one group and one label, so that they can only see "
        f"such an attack by chance; robust rules are made for it. Strengths: {strengths}; the defaults are weaker. "
        f"{_harm(results)}Without attack there are no hostile sites, and the second figure is the share of all sites "
        "that are excluded."
    )
    head = ("accuracy; hostile / honest excluded, %", "no attack", *GENERAL)
    return [said, Grid(head, lines)]


def _harm(results: Results) -> str:
    """Say what each general attack costs where nobody defends, and which cost less than a point."""
    found = {attack: _lost(results, row_of(STUDY, "iid", attack, NONE)) for attack in GENERAL}
    gaps = {attack: gap.mean for attack, gap in found.items() if gap is not None}
    if not gaps:
        return ""
    told = ", ".join(f"{attack} {gap:+.1f}" for attack, gap in gaps.items())
    none = [attack for attack, gap in gaps.items() if gap > -VISIBLE]
    seen = f"no visible harm is done by {', '.join(none)}" if none else "each does visible harm"
    return f"Points of accuracy without defence, against no attack: {told}; {seen}. "


def _readings(results: Results) -> Grid:
    lines = []
    for name, partition, attack, defence in product(READINGS, PARTITIONS, (NONE, "plfa"), READ_BY):
        row, eod = row_of(name, partition, attack, defence), _figure(name, "eod")
        gaps = (_level(results, row, eod), _shift(results, row, eod))
        line = [f"{name}, {partition}: {defence}", attack, spread(results.values(row)), *gaps]
        lines.append([*line, _shares(results, row)])
    head = ("labels: defence", "attack", "accuracy, %", "EOD", "delta EOD", "hostile / honest excluded, %")
    return Grid(head, lines)
