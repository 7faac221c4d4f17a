"""The commands that come before a run: `fedaccord init` and `fedaccord check`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedaccord.config import load_experiment

console = Console(emoji=False, markup=False)  # a name such as "[a]:b:" is neither markup nor a picture

Config = Annotated[Path, typer.Argument(help="The experiment file (TOML).")]
Change = Annotated[
    list[str] | None,
    typer.Option("--set", help="Change a key of the file, e.g. --set method.rounds=50. May be repeated."),
]


def init(folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty folder.")]) -> None:
    """Write a commented federation with small made-up files, to run as it is and to change."""
    from fedaccord.init import write_federation

    written = write_federation(folder)
    console.print(f"federation: {written}\nnext: fedaccord check {written}", highlight=False, soft_wrap=True)


def check(
    config: Config,
    change: Change = None,
    site: Annotated[
        str | None, typer.Option("--site", help="Read and show only what this site may see: its own part.")
    ] = None,
) -> None:
    """Tell who knows which label and what will not work, before any training. Exit code 1: warnings; 2: errors."""
    experiment, base = load_experiment(config, change or [])
    # Imported here: torch takes seconds to load, and --help or a wrong file should not wait for it.
    from fedaccord.checks.display import print_report, print_site
    from fedaccord.checks.federation import check_experiment_data, check_own_data, exit_code

    if site is not None:
        own = check_own_data(experiment, base, site)
        print_site(own, console)
        raise typer.Exit(exit_code(own.findings))
    report = check_experiment_data(experiment, base)
    print_report(report, console)
    raise typer.Exit(report.exit_code)
