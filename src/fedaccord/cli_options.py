"""The console, and the options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from fedaccord.extensions import INSTALLED, importable, trusting
from fedaccord.terminal import Terminal

console = Terminal(emoji=False, markup=False)  # names such as "[a]:b:" are printed as they are


def say(text: str) -> None:
    """Print a text as it is: no highlighting, and no line breaks at the width of the terminal."""
    console.print(text, highlight=False, soft_wrap=True)


def print_table(table: Table) -> None:
    """Print a table; into a file or a pipe as wide as it needs to be."""
    wide = Terminal(emoji=False, markup=False, width=250, file=console.file)
    (console if console.is_terminal else wide).print(table)


def complain(*parts: str | tuple[str, str]) -> None:
    """Print a note or an error to stderr; a part may have a style."""
    # As Text, because a message may contain what rich would read as markup.
    Terminal(stderr=True).print(Text.assemble(*parts), soft_wrap=True)


Config = Annotated[Path, typer.Argument(help="The experiment file (TOML).")]
Change = Annotated[
    list[str] | None,
    typer.Option("--set", help="Change a key of the file, e.g. --set method.rounds=50. May be repeated."),
]


def _trust(context: typer.Context, packages: list[str] | None) -> list[str] | None:
    if packages:
        context.with_resource(trusting(packages))
        context.with_resource(importable(Path.cwd()))
    return packages


def _trust_installed(context: typer.Context, packages: list[str] | None) -> list[str] | None:
    context.with_resource(trusting([INSTALLED]))
    return _trust(context, packages)


_HELP = "Allow code of this package to run. May be repeated."
Trust = Annotated[list[str] | None, typer.Option("--trust", metavar="PACKAGE", callback=_trust, help=_HELP)]
OwnTrust = Annotated[
    list[str] | None, typer.Option("--trust", metavar="PACKAGE", callback=_trust_installed, help=_HELP)
]
"""For commands that run the user's experiment: names that installed packages register are trusted."""
