"""The studies on COMPAS: shares of hostile sites, more sites, settings, general attacks, other labels."""

from __future__ import annotations

from itertools import product

from fedaccord.evaluation.judge import judge_at_most
from papers.fairfedpapl.cells import (
    BATCH,
    DEFENCES,
    GENERAL,
    MORE_SITES,
    NONE,
    PARTITIONS,
    READ_BY,
    READINGS,
    SCORES,
    SITES,
    STUDY,
    VARIANTS,
    batch_of,
    row_of,
)
from papers.fairfedpapl.figures import accuracy_change, delta_text, excluded_shares, figure_path, late_mean, level
from papers.harness.cells import Results
from papers.harness.pages import Block, Grid
from papers.harness.statistics import interval_text, spread

VISIBLE = 1.0  # points of accuracy that a visible attack costs


def over_shares(results: Results) -> Grid:
    """Return the study of the share of hostile sites."""
    lines = []
    eod = figure_path(STUDY, "eod")
    for defence in (NONE, *SCORES):
        rows = [row_of(STUDY, "iid", "plfa", defence, share=share) for share in (0.1, 0.2, 0.3)]
        lines.append([defence, *(f"{delta_text(results, row, eod)}; {excluded_shares(results, row)}" for row in rows)])
    return Grid(("delta EOD; hostile / honest excluded, %", "10 % hostile", "20 %", "30 %"), lines)


def over_sites(results: Results) -> list[Block]:
    """Return the study of the number of sites."""
    lines = []
    for defence in (NONE, *SCORES):
        line = [defence]
        for sites in (SITES, *MORE_SITES):
            row = row_of(STUDY, "iid", "plfa", defence, sites=sites)
            unattacked = late_mean(results, row_of(STUDY, "iid", NONE, defence, sites=sites), "excluded")
            gaps = " / ".join(delta_text(results, row, figure_path(STUDY, figure)) for figure in ("eod", "spd"))
            line.append(f"{gaps}; {excluded_shares(results, row)}; {spread(unattacked)}")
        lines.append(line)
    batches = ", ".join(f"{batch_of(sites)} with {sites} sites" for sites in MORE_SITES)
    text = (
        f"The same rows are split over more sites. With batches of {BATCH} a site would take few steps per round, the "
        "model would hardly learn, and an attack would have no visible effect. Batches are therefore smaller: "
        f"{batches} instead of {BATCH}. A site then takes about as many steps per round as with {SITES} sites. "
        "Everything else is the same."
    )
    head = "delta EOD / delta SPD; hostile / honest excluded; without attack, %"
    return [text, Grid((head, f"{SITES} sites", *map(str, MORE_SITES)), lines)]


def variants(results: Results) -> Grid:
    """Return the study of the settings of the defences."""
    lines = []
    eod = figure_path(STUDY, "eod")
    for variant in (*SCORES, *VARIANTS):
        row, unattacked = (row_of(STUDY, "iid", attack, variant) for attack in ("plfa", NONE))
        excluded = spread(late_mean(results, unattacked, "excluded"))
        lines.append([variant, delta_text(results, row, eod), excluded_shares(results, row), excluded])
    return Grid(("under plfa", "delta EOD", "hostile / honest excluded, %", "excluded without attack, %"), lines)


def general_attacks(results: Results) -> list[Block]:
    """Return the study of attacks on the whole model."""
    lines = []
    for defence in DEFENCES:
        unattacked = row_of(STUDY, "iid", NONE, defence)
        rows = [row_of(STUDY, "iid", attack, defence) for attack in GENERAL]
        left_out = f"; {spread(late_mean(results, unattacked, 'excluded'))}" if defence in SCORES else ""
        under = [f"{spread(results.values(row))}; {excluded_shares(results, row)}" for row in rows]
        lines.append([defence, f"{spread(results.values(unattacked))}{left_out}", *under])
    strengths = ", ".join(f"{attack} {strength:g}" for attack, strength in GENERAL.items() if strength is not None)
    text = (
        "Attacks on the whole model. The defences examine one group and one label, so they detect such an attack only "
        f"by chance; robust rules are designed for such attacks. Strengths: {strengths}; the defaults are weaker. "
        f"{_harm(results)}Without attack there are no hostile sites; the second figure is then the share of all sites "
        "that are excluded."
    )
    head = ("accuracy; hostile / honest excluded, %", "no attack", *GENERAL)
    return [text, Grid(head, lines)]


def _harm(results: Results) -> str:
    """Describe the change in accuracy under each general attack without defence."""
    found = {attack: accuracy_change(results, row_of(STUDY, "iid", attack, NONE)) for attack in GENERAL}
    judged = {attack: judge_at_most(values.with_failures().values(), -VISIBLE) for attack, values in found.items()}
    ran = {attack: judgement for attack, judgement in judged.items() if judgement.interval.n}
    if not ran:
        return ""
    changes = ", ".join(f"{attack} {interval_text(judgement.interval)}" for attack, judgement in ran.items())
    unclear = [attack for attack, judgement in ran.items() if judgement.verdict != "holds"]
    which = f"; a loss of {VISIBLE:g} or more is not shown for {', '.join(unclear)}" if unclear else ""
    return f"Change in accuracy without defence, in points (95 % intervals): {changes}{which}. "


def other_readings(results: Results) -> Grid:
    """Return the study of other definitions of the labels."""
    lines = []
    for name, partition, attack, defence in product(READINGS, PARTITIONS, (NONE, "plfa"), READ_BY):
        row, eod = row_of(name, partition, attack, defence), figure_path(name, "eod")
        gaps = (level(results, row, eod), delta_text(results, row, eod))
        line = [f"{name}, {partition}: {defence}", attack, spread(results.values(row)), *gaps]
        lines.append([*line, excluded_shares(results, row)])
    head = ("labels: defence", "attack", "accuracy, %", "EOD", "delta EOD", "hostile / honest excluded, %")
    return Grid(head, lines)
