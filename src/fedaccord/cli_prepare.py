"""The commands that come before a run: `fedaccord init`, `fedaccord upgrade` and `fedaccord check`."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Annotated

import typer

from fedaccord.cli_options import Change, Config, OwnTrust, console
from fedaccord.config import load_experiment, read_text
from fedaccord.durable import atomic_write
from fedaccord.errors import UserError
from fedaccord.renamed import upgrade_text


def init(folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty folder.")]) -> None:
    """Write a commented example federation with small made-up files that runs as it is."""
    from fedaccord.init import write_federation

    written = write_federation(folder)
    console.print(f"federation: {written}\nnext: fedaccord check {written}", highlight=False, soft_wrap=True)


def upgrade(
    file: Annotated[Path, typer.Argument(help="An experiment file (TOML) of an earlier version.")],
    dry: Annotated[bool, typer.Option("--check", help="Write nothing; exit code 1 if something would change.")] = False,
    out: Annotated[Path | None, typer.Option("--out", help="Write the new text there, and leave FILE alone.")] = None,
) -> None:
    """Rewrite renamed keys of an experiment file; keep comments, order and a backup, FILE.bak."""
    text = read_text(file)
    new, changes = upgrade_text(text, str(file))
    for change in changes:
        console.print(f"line {change.line}\n- {change.old}\n+ {change.new}", highlight=False, soft_wrap=True)
    if not changes:
        console.print(f"{file}: nothing to change", highlight=False, soft_wrap=True)
    if dry:
        raise typer.Exit(1 if changes else 0)
    if changes or out is not None:
        written = _write(file, text, new, out)
        console.print(f"written: {written}", highlight=False, soft_wrap=True)


def _write(file: Path, text: str, new: str, out: Path | None) -> str:
    """Write an upgraded file, and say where it is and where the old text is."""
    if out is not None:
        _replace(out, new)
        return str(out)
    backups = (file.with_name(f"{file.name}.bak{number or ''}") for number in itertools.count())
    backup = next(path for path in backups if not path.exists())
    _replace(backup, text)
    described = file.with_name("run.json")
    if file.name == "config.toml" and described.is_file():  # a run that is resumed must find its own configuration
        from fedaccord.runs.checkpoint import config_digest

        run = json.loads(described.read_text(encoding="utf-8"))
        if run.get("config") == config_digest(text):
            _replace(described, json.dumps(run | {"config": config_digest(new)}, indent=2, ensure_ascii=False) + "\n")
    _replace(file, new)
    return f"{file}; as it was: {backup}"


def _replace(path: Path, text: str) -> None:
    try:
        with atomic_write(path) as file:
            file.write(text.encode())
    except OSError as error:
        raise UserError(f"'{path}' cannot be written: {error.strerror}") from None


def check(
    config: Config,
    change: Change = None,
    trust: OwnTrust = None,
    site: Annotated[
        str | None, typer.Option("--site", help="Read and show only what this site may see: its own part.")
    ] = None,
) -> None:
    """Show which site knows which label, and find problems before training. Exit code 1: warnings; 2: errors."""
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
