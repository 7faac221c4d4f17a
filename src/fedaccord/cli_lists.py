"""The commands that list methods, models, views and data sets, and say where the tables of papers are."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from fedaccord.cli_options import console, say
from fedaccord.data.registry import DATA_VARIABLE, DATASETS
from fedaccord.extensions import listed_packages
from fedaccord.labels.views.registry import VIEWS
from fedaccord.methods.registry import METHODS
from fedaccord.models.registry import MODELS


def reproduce(
    context: typer.Context, table: Annotated[str, typer.Argument(help="The table, e.g. fedmt.")] = "TABLE"
) -> None:
    """Print how to run a table of a paper from a clone of the repository."""
    _say_where_tables_are(table, *context.args)
    raise typer.Exit(2)


def tables() -> None:
    """Print how to list the tables of papers from a clone of the repository."""
    _say_where_tables_are()


def _say_where_tables_are(*arguments: str) -> None:
    here = Path.cwd()
    clone = next((folder for folder in (here, *here.parents) if (folder / "papers" / "__main__.py").is_file()), None)
    if clone is None:
        target = f"reproduce TABLE={arguments[0]}" if arguments else "reproduce"
        text = (
            f"The tables of papers are in a clone of FedAccord's repository, not in the package. There: make {target}"
        )
    else:
        command = shlex.join(["python", "-m", "papers", *arguments])
        text = f"The tables of papers are in this clone. In {clone}, run: {command}"
    say(text)


def methods() -> None:
    """List the methods, ours and those of installed packages."""
    _list("method", {entry.name: entry.summary for entry in METHODS.values()} | listed_packages("methods"))


def models() -> None:
    """List the networks, ours and those of installed packages."""
    _list("model", {entry.name: entry.summary for entry in MODELS.values()} | listed_packages("models"))


def views() -> None:
    """List the kinds of views, ours and those of installed packages."""
    _list("view", {kind: view.words for kind, view in VIEWS.items() if view.words} | listed_packages("views"))


def datasets() -> None:
    """List the data sets that an experiment can name."""
    _list("data set", {entry.name: entry.summary for entry in DATASETS.values()})
    say(
        f"\nAll but digits are read from the folder named by {DATA_VARIABLE}. "
        "Any .npz file can be named by its path instead."
    )


def _list(what: str, entries: dict[str, str]) -> None:
    table = Table(what, "", box=None, pad_edge=False)
    for name, summary in entries.items():
        table.add_row(Text(name, "bold"), Text(summary))
    console.print(table)
