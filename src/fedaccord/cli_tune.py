"""The command `tune`, which chooses settings by rows that sites keep apart from training."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from fedaccord.cli_options import Config, OwnTrust, complain, console, print_table, say
from fedaccord.durable import write_file
from fedaccord.errors import RunFolderError
from fedaccord.runs.seed_runs import parse_seeds

if TYPE_CHECKING:
    from fedaccord.settings_search.cells import Cell
    from fedaccord.settings_search.grid import Grid
    from fedaccord.settings_search.ranking import Ranked
    from fedaccord.settings_search.search import Search

_VALUES = "Values to choose from, e.g. --set method.lr=0.01,0.03,0.1; one value fixes a key. May be repeated."


def tune(
    config: Config,
    change: Annotated[list[str], typer.Option("--set", help=_VALUES)],
    seeds: Annotated[str, typer.Option("--seeds", help="Seeds of every setting: 3 (that is 0-2), 0-7 or 0,2,5.")] = "3",
    by: Annotated[
        str, typer.Option("--by", metavar="METRIC", help="Figure to choose by, e.g. accuracy, map, global.accuracy.")
    ] = "nll",
    budget: Annotated[
        int | None, typer.Option("--budget", min=1, help="Try this many combinations, drawn at random.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="File for the chosen settings; default: NAME.tuned.toml beside NAME.toml."),
    ] = None,
    workers: Annotated[int | None, typer.Option("--workers", min=1, help="Runs at a time; default: all cores.")] = None,
    trust: OwnTrust = None,
) -> None:
    """Choose settings by their figures on rows that sites keep apart from training; test rows are never read."""
    from fedaccord.settings_search.chosen_file import check_target, default_target, write_chosen
    from fedaccord.settings_search.grid import read_grid
    from fedaccord.settings_search.search import Search

    numbers = parse_seeds(seeds)
    grid, base = read_grid(config, change, budget)
    target = out or default_target(config)
    check_target(target)
    search = Search(grid, numbers, base, Path("runs") / f"{grid.settings[0].experiment.name}-tune")
    most = min(workers or os.cpu_count() or 1, len(search.cells))
    say(f"{_budget(grid, numbers)}, {search.finished_before()} of them finished before, {most} at a time")
    ranked, not_judged = _run(search, by, most)
    print_table(_table(ranked, grid.keys, by))
    sentences = _sentences(ranked, grid.keys, by)
    say("\n".join(["chosen: " + sentences[0], *sentences[1:]]))
    if not_judged:
        say(f"not judged, because they have too few annotated training rows to keep any apart: {', '.join(not_judged)}")
    content = json.dumps(_as_json(ranked, numbers, by), indent=1) + "\n"
    say(f"table: {write_file(search.folder / 'table.json', content, RunFolderError)}")
    say(f"chosen settings: {write_chosen(config, ranked[0].setting, target, sentences[0])}")


def _budget(grid: Grid, seeds: Sequence[int]) -> str:
    number = len(grid.settings)
    left_out = f" ({grid.skipped} combinations are left out)" if grid.skipped else ""
    of_seeds = "1 seed" if len(seeds) == 1 else f"{len(seeds)} seeds"
    runs = "1 run" if number * len(seeds) == 1 else f"{number * len(seeds)} runs"
    return f"{number} settings{left_out} x {of_seeds} = {runs}"


def _run(search: Search, by: str, workers: int) -> tuple[list[Ranked], list[str]]:
    """Run the search with a line of progress; a signal keeps the finished runs."""
    from fedaccord.stopping import Stopped, signals_stop

    columns = TextColumn("tune"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    progress = Progress(*columns, console=console, disable=not console.is_terminal)
    before = search.finished_before()
    try:
        with signals_stop(), progress:
            task = progress.add_task("", total=len(search.cells), completed=before)

            def done(cell: Cell, error: str) -> None:
                progress.advance(task)
                if error or not console.is_terminal:
                    ended = f"failed: {error}" if error else "finished"
                    progress.console.print(f"{cell.setting.words(search.grid.keys)}, seed {cell.seed}: {ended}")

            return search.run(by, workers, done)
    except Stopped as stopped:
        kept = f"{search.finished_before()} of {len(search.cells)} runs are kept in {search.folder}"
        complain(f"{stopped}; {kept}, and the same command goes on from there")
        raise typer.Exit(stopped.exit_code) from None


def _table(ranked: Sequence[Ranked], keys: Sequence[str], by: str) -> Table:
    table = Table("rank", "setting", by, "95 % interval", "seeds", "")
    for column in (table.columns[0], *table.columns[2:5]):
        column.justify = "right"
    for place, row in enumerate(ranked, start=1):
        found, number = row.interval, len(row.values)
        notes = ["the file's own"] if row.setting.is_own and row.setting.words(keys) != "the file's own" else []
        notes += [f"{row.dropped} dropped replies"] if row.dropped else []
        notes += [f"failed: {row.failures[0]}"] if row.failures else []
        table.add_row(
            "–" if row.failures else str(place),
            row.setting.words(keys),
            _number(found.mean) if found.n else "–",
            f"{_number(found.low)} to {_number(found.high)}" if found.n > 1 else "–",
            str(found.n) if found.n == number else f"{found.n} of {number}",
            "; ".join(notes),
        )
    return table


def _sentences(ranked: Sequence[Ranked], keys: Sequence[str], by: str) -> list[str]:
    """Return what was chosen, how sure that is, and whether other values should be tried."""
    from fedaccord.settings_search.ranking import against_own, at_an_edge

    best, found = ranked[0], ranked[0].interval
    within = f", 95 % interval {_number(found.low)} to {_number(found.high)}" if found.n > 1 else ""
    said = [f"{best.setting.words(keys)}, with {by} {_number(found.mean)}{within} on rows kept apart from training"]
    judged = against_own(ranked, by)
    if best.setting.is_own:
        said.append("the file's own setting is the best of those tried")
    elif judged is not None and judged.verdict == "holds":
        said.append(f"the chosen setting is better than the file's own ({judged.sentence})")
    elif judged is not None:
        said.append(f"the seeds cannot tell the chosen setting from the file's own ({judged.sentence})")
    for key in at_an_edge(ranked, keys):
        said.append(f"{key}={best.setting.values[key]} is at the edge of the values tried; try values beyond it")
    return said


def _number(value: float) -> str:
    return f"{value:.4f}" if abs(value) < 1e4 else f"{value:.3g}"  # the loss of a diverged run has many digits


def _as_json(ranked: Sequence[Ranked], seeds: Sequence[int], by: str) -> dict[str, object]:
    """Return the table for scripts."""
    rows = [
        {
            "setting": dict(row.setting.values),
            "own": row.setting.is_own,
            "values": {str(seed): row.values.get(seed) for seed in seeds},
            "failures": row.failures,
            "dropped": row.dropped,
        }
        for row in ranked
    ]
    return {"by": by, "seeds": list(seeds), "rows": rows}
