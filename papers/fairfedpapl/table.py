"""Fairness under partial labels and attributes: FairFedPAPL's defence, four others, and robust rules."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from papers.fairfedpapl.cells import (
    ALONE,
    ATTACKS,
    DEFENCES,
    HOSTILE,
    NONE,
    SCALES,
    SCENARIOS,
    SCORES,
    SITES,
    Scale,
    cells,
    places,
    row_of,
)
from papers.fairfedpapl.figures import (
    LATE,
    delta_eod,
    delta_spd,
    delta_text,
    excluded_shares,
    figure_path,
    late_mean,
    level,
    precision,
)
from papers.fairfedpapl.findings import bars
from papers.fairfedpapl.published import TABLES, published_grids, published_of
from papers.fairfedpapl.studies import general_attacks, other_readings, over_shares, over_sites, variants
from papers.harness.cells import Results, Row, Size
from papers.harness.claims import load_ledger
from papers.harness.ledger import FigureOf, claims_chapter
from papers.harness.pages import Block, Chapter, Grid
from papers.harness.statistics import spread

__all__ = ["TITLE", "cells", "chapters"]

OWN_FIGURES: dict[str, FigureOf] = {  # in the ledger
    "delta EOD": delta_eod,
    "delta SPD": delta_spd,
    "hostile excluded": partial(late_mean, figure="hostile_excluded"),
    "honest excluded": partial(late_mean, figure="false_exclusions"),
}
TITLE = "Fairness under partial labels and attributes: FairFedPAPL"


def chapters(results: Results, size: Size) -> list[Chapter]:
    """Return the page."""
    scale = SCALES[size]
    at = places(size)
    parts = [
        Chapter("What was run", _what_was_run(scale, size)),
        claims_chapter(load_ledger(Path(__file__).with_name("claims.toml")), results, cells(size), OWN_FIGURES),
        Chapter("False exclusions", [_false_exclusions(results, at)]),
        Chapter("Criteria", bars(results, size)),
        *(Chapter(f"{name}, {partition}", _scenario(results, name, partition)) for name, partition in at),
        Chapter("As published", published_grids()),
    ]
    if size != "quick":
        few = results.of_seeds(range(scale.first_seed, scale.first_seed + scale.study_seeds))
        parts += [
            Chapter("Shares of hostile sites", [over_shares(few)]),
            Chapter("More sites", over_sites(few)),
            Chapter("Settings of the defences", [variants(few)]),
            Chapter("General attacks", general_attacks(few)),
            Chapter("Other definitions of the labels", [other_readings(few)]),
        ]
    return parts


def _what_was_run(scale: Scale, size: Size) -> list[Block]:
    published = "COMPAS 50, Student 20 iid and 60 skewed"
    rounds = f"as published ({published})" if scale.rounds is None else f"{scale.rounds} (published: {published})"
    adult = (
        " Adult is evaluated on 4000 rows of its published test part." if "Adult, women" in dict(places(size)) else ""
    )
    return [
        f"{SITES} sites, {HOSTILE} of them hostile, split i.i.d. (iid) or by Dirichlet 1.0 over labels (skewed); "
        f"{scale.seeds} paired seeds, {scale.study_seeds} in the studies; rounds: {rounds}. Candidate labels come from "
        "uniform flips of 0.3, candidate groups from uniform flips of 0.1; the latter are inputs of the model (cyclic "
        "flips were not run). The model is an MLP with one hidden layer of 64 (the published sizes are not known; two "
        "layers of 64 and 32 were not run), trained with CLPL, one epoch per round in batches of 32, SGD with momentum "
        "0.9. Rows whose set holds all labels carry no information and are not used in training. Test labels are "
        "clean. Test rows have candidate groups as inputs, as at a site, and figures are measured by true groups.",
        "Rows are split over the sites first. Each site then holds out a fifth of its rows at random, regardless of "
        "label and group; together these are the test data. This is not a single 80/20 split before partitioning, "
        f"stratified by label and group, so small cells vary more from seed to seed.{adult}",
        "EOD and SPD are the rates of the others minus those of the group, so an attack that pushes the group towards "
        "the label lowers both. A delta is the absolute difference, by seed, to the run without attack and defence. "
        f"`{ALONE}` excludes the sites that would be hostile: the result of a perfect defence. COMPAS, Asian is "
        "measured by candidate groups, and also by true ones: almost no test row has the true group Asian and the "
        "label High. If a figure is undefined in some runs because a cell has no rows, the number of seeds is given. "
        f"Shares of excluded sites are over the rounds after the {LATE}th{_how_many_late(scale)}; for runs of {LATE} "
        "rounds or fewer, over the last third. Precision is the share of hostile sites among the sites excluded in "
        "these rounds; recall is the share of hostile sites that are excluded.",
    ]


def _how_many_late(scale: Scale) -> str:
    """Name the rounds after the 20th if runs are shorter than published."""
    if scale.rounds is None or scale.rounds <= LATE:
        return ""
    return f", here {scale.rounds - LATE} rounds, {LATE + 1} to {scale.rounds}"


def _false_exclusions(results: Results, at: Sequence[tuple[str, str]]) -> Grid:
    """Return the share of honest sites that are excluded, without attack and under each attack."""
    lines = []
    for name, partition in at:
        for defence in SCORES:
            unattacked = late_mean(results, row_of(name, partition, NONE, defence), "excluded")
            hit = [late_mean(results, row_of(name, partition, a, defence), "false_exclusions") for a in ATTACKS]
            lines.append([f"{name}, {partition}: {defence}", *(spread(values) for values in (unattacked, *hit))])
    return Grid(("honest sites excluded, %", "no attack", *ATTACKS), lines)


def _scenario(results: Results, name: str, partition: str) -> list[Block]:
    ending = SCENARIOS[name].ending
    eod, spd = figure_path(name, "eod"), figure_path(name, "spd")
    unattacked = row_of(name, partition, NONE, NONE)
    about = (
        f"Without attack and defence: accuracy {spread(results.values(unattacked))}, "
        f"EOD {level(results, unattacked, eod)}, SPD {level(results, unattacked, spd)}; "
        f"{_people(results, unattacked, ending)}"
    )
    about += f" by candidate groups, {_people(results, unattacked, '')} by true ones." if ending else "."
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
                        level(results, row, eod),
                        delta_text(results, row, eod),
                        delta_text(results, row, spd),
                        *_by_true_groups(results, row, ending),
                        excluded_shares(results, row),
                        precision(results, row),
                        *(published_of(name, partition, attack, defence) if name in TABLES else ()),
                    ]
                )
    true = ("EOD, true groups", "delta EOD, true groups") if ending else ()
    excluded = ("hostile / honest excluded, %", "precision, %")
    published = ("published accuracy, %", "published delta EOD") if name in TABLES else ()
    head = ("defence", "attack", "accuracy, %", "EOD", "delta EOD", "delta SPD", *true, *excluded, *published)
    return [about, Grid(head, lines)]


def _by_true_groups(results: Results, row: Row, ending: str) -> list[str]:
    """Return EOD and its delta by true groups, if the scenario is measured by candidate groups."""
    return [level(results, row, "global.eod"), delta_text(results, row, "global.eod")] if ending else []


def _people(results: Results, row: Row, ending: str) -> str:
    members, having, others, others_having = (
        spread(results.values(row, f"global.{cell}{ending}"), 1.0, digits=0)
        for cell in ("members", "members_with_label", "others", "others_with_label")
    )
    return f"{members} test rows in the group ({having} with the label) and {others} others ({others_having} with it)"
