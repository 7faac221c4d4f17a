"""The command line of the tables: `python -m papers TABLE`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import click
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedaccord.data.registry import DATA_VARIABLE
from fedaccord.errors import FedAccordError, UserError
from fedaccord.stopping import Stopped
from papers.harness.cells import Size
from papers.harness.registry import TABLES, find_table

app = typer.Typer(name="papers", add_completion=False, pretty_exceptions_enable=False)
console = Console(emoji=False, markup=False)


def main() -> None:
    """Run the command line; print known errors as one sentence and exit with their code."""
    try:
        app(prog_name="python -m papers")
    except FedAccordError as error:
        known = str(error) if isinstance(error, Stopped) else f"error: {error}"
        Console(stderr=True, markup=False, highlight=False).print(known, soft_wrap=True)
        sys.exit(error.exit_code)


@app.command()
def reproduce(
    table: Annotated[str | None, typer.Argument(help="The table to run; without it, list the tables.")] = None,
    data: Annotated[Path | None, typer.Option("--data", help=f"The data folder; by default {DATA_VARIABLE}.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A small version, in minutes.")] = False,
    full: Annotated[bool, typer.Option("--full", help="The paper's size; takes long.")] = False,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for the cells and the page; by default reproduce/TABLE.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, help="Cells run in parallel. Default: all cores; on a GPU, one.")
    ] = None,
    device: Annotated[
        str, typer.Option("--device", click_type=click.Choice(["cpu", "cuda"]), help="Device the cells run on.")
    ] = "cpu",
    archive: Annotated[
        bool,
        typer.Option("--archive", help="Write the finished cells into the repository too."),
    ] = False,
    verify: Annotated[
        int,
        typer.Option("--verify", min=0, help="Cells to run again as `fedaccord run` does, stopped and resumed."),
    ] = 0,
) -> None:
    """Run a paper's table and compare its figures with ours; an interrupted run continues with the missing cells."""
    if table is None:
        _list_tables()
        return
    if quick and full:
        raise UserError("--quick and --full are two sizes; give one of them")
    size: Size = "quick" if quick else "full" if full else "default"
    find_table(table)
    if data is not None:
        os.environ[DATA_VARIABLE] = str(data.resolve())
    # Imported here: torch takes seconds to load, and the list or a wrong name should not wait for it.
    from papers.harness.reproduce import reproduce_table

    name = table if size == "default" else f"{table}-{size}"
    folder = out or Path("reproduce") / name
    page, results = reproduce_table(table, size, folder, workers, console, device, archive, verify)
    console.print(f"table: {page}", highlight=False, soft_wrap=True)
    if results.failed:
        raise typer.Exit(1)


def _list_tables() -> None:
    listed = Table("table", "", box=None, pad_edge=False)
    for entry in TABLES.values():
        listed.add_row(Text(entry.name, "bold"), Text(entry.summary))
    console.print(listed)
