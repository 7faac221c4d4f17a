"""The commands after a run: `report` and `compare`."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from fedaccord.cli_options import OwnTrust, complain, print_table, say
from fedaccord.errors import UserError
from fedaccord.evaluation.judge import mean_interval
from fedaccord.runs import contestants as rivals
from fedaccord.runs.compare import DEFAULT_NAME, verdict_words, write_comparison
from fedaccord.runs.contestants import Contestant
from fedaccord.runs.page import NOTHING, decimal, percent, signed
from fedaccord.runs.reading import read_run
from fedaccord.runs.seed_runs import expand

_ONE_OR_MORE = "Run folders; several are put side by side. A folder of seeds stands for its runs."
Runs = Annotated[list[Path], typer.Argument(metavar="RUN...", help=_ONE_OR_MORE)]
PageFile = Annotated[
    Path | None, typer.Option("--out", help="File for a comparison; by default comparison.html in this folder.")
]


def report(runs: Runs, out: PageFile = None, trust: OwnTrust = None) -> None:
    """Write the report of a run again, or one page that compares several runs."""
    from fedaccord.runs.examined import recorded_alone
    from fedaccord.runs.report import write_report

    folders = _expanded(runs)
    if len(folders) == 1 and out is not None:
        raise UserError("--out is for a comparison of several runs; the report of one run goes into its folder")
    if len(folders) == 1:
        written = write_report(folders[0], recorded_alone(folders[0]), note=lambda text: complain(f"note: {text}"))
    else:
        written = write_comparison(folders, out or Path(DEFAULT_NAME))
    say(f"{'report' if len(folders) == 1 else 'comparison'}: {written}")


def compare(runs: Runs, out: PageFile = None) -> None:
    """Compare runs seed by seed: print means, differences, their 95 % intervals and verdicts, and write one page."""
    folders = _expanded(runs)
    if len(folders) == 1:
        raise UserError("a comparison needs at least two runs; `fedaccord report RUN` shows a single one")
    written = write_comparison(folders, out or Path(DEFAULT_NAME))
    contestants = rivals.find_contestants([read_run(folder) for folder in folders])
    print_figures(contestants)
    if len(contestants) > 1:
        print_pairs(contestants)
    said, warns = rivals.federation_sentence(contestants)
    if warns:
        complain(f"warning: {said}")
    for problem in rivals.run_problems(contestants):
        complain(("problem:", "bold red"), f" {problem}")
    say(f"comparison: {written}")


def print_figures(contestants: Sequence[Contestant]) -> None:
    """Print mean, standard deviation and interval over seeds of every measure, last round."""
    table = _table(["", "last round"], ["seeds", "mean", "std", "95 % interval"])
    for contestant in contestants:
        for measure in rivals.measures(contestants):
            values = list(contestant.values(measure).values())
            if not values:
                continue
            write, some = (percent if measure.share else decimal), len(values) < len(contestant.runs)
            spread = statistics.stdev(values) if len(values) > 1 else None
            table.add_row(
                contestant.label,
                measure.words,
                f"{len(values)} of {len(contestant.runs)}" if some else str(len(values)),
                write(statistics.fmean(values)),
                NOTHING if spread is None else f"{100 * spread:.1f}" if measure.share else decimal(spread),
                rivals.interval_words(mean_interval(values), measure.share),
            )
    print_table(table)


def print_pairs(contestants: Sequence[Contestant]) -> None:
    """Print the differences between contestants over the seeds that they share, a table for each pair."""
    for first, second in combinations(contestants, 2):
        claim = f"{first.label} better than {second.label}?"
        table = _table([claim], ["seeds", "difference", "95 % interval", "verdict"])
        for measure in rivals.measures(contestants):
            found = rivals.paired(first.measured(measure), second.measured(measure), measure.share)
            if found is not None:
                factor, decimals = (100, 2) if measure.share else (1, 3)
                table.add_row(
                    measure.words,
                    str(len(found.seeds)),
                    signed(factor * found.difference.mean, decimals),
                    rivals.interval_words(found.difference, measure.share, difference=True),
                    verdict_words(found),
                )
        if table.rows:
            print_table(table)
        else:
            say(f"{claim} They have no figure of the same seed.")


def _expanded(runs: Sequence[Path]) -> list[Path]:
    folders, unfinished = expand(runs)
    for folder in unfinished:
        complain(f"note: the run in {folder} is not finished, so it is left out")
    return folders


def _table(words: Sequence[str], numbers: Sequence[str]) -> Table:
    """Return an empty table with columns of words, then columns of numbers."""
    table = Table(*words, *numbers)
    for column in table.columns[len(words) :]:
        column.justify = "right"
    return table
