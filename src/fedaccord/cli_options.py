"""What several commands share: the console, and the options that name an experiment or code to trust."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedaccord.extensions import INSTALLED, importable, trusting

console = Console(emoji=False, markup=False)  # a name such as "[a]:b:" is neither markup nor a picture

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
"""For commands that take a person's own experiment: the names that installed packages register may be used."""
