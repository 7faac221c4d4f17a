"""The commands before a run: `init`, `check`, `upgrade` and `deploy`, and the lists to choose from."""

from __future__ import annotations

import itertools
import json
import shlex
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from fedaccord.cli_options import Change, Config, OwnTrust, console, say
from fedaccord.config import load_experiment, read_text
from fedaccord.data.registry import DATA_VARIABLE, DATASETS
from fedaccord.durable import write_file
from fedaccord.errors import UserError, lists_in_full
from fedaccord.extensions import listed_packages
from fedaccord.labels.views.registry import VIEWS
from fedaccord.methods.registry import METHODS
from fedaccord.models.registry import MODELS
from fedaccord.renamed import upgrade_text

_EXISTING = "PEM file of a certificate that the server already has: give --ca, --certificate and --key."
_File = Annotated[Path | None, typer.Option(help=_EXISTING)]


def init(folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty folder.")]) -> None:
    """Write a commented example federation with small made-up files that runs as it is."""
    from fedaccord.init import write_federation

    written = write_federation(folder)
    say(f"federation: {written}\nnext: fedaccord check {written}")


def upgrade(
    file: Annotated[Path, typer.Argument(help="An experiment file (TOML) of an earlier version.")],
    dry: Annotated[bool, typer.Option("--check", help="Write nothing; exit code 1 if something would change.")] = False,
    out: Annotated[Path | None, typer.Option("--out", help="Write the new text there, and leave FILE alone.")] = None,
) -> None:
    """Rewrite renamed keys of an experiment file; keep comments, order and a backup, FILE.bak."""
    text = read_text(file)
    new, changes = upgrade_text(text, str(file))
    for change in changes:
        say(f"line {change.line}\n- {change.old}\n+ {change.new}")
    if not changes:
        say(f"{file}: nothing to change")
    if dry:
        raise typer.Exit(1 if changes else 0)
    if changes or out is not None:
        say(f"written: {_write(file, text, new, out)}")


def _write(file: Path, text: str, new: str, out: Path | None) -> str:
    """Write an upgraded file and return its path, with that of the backup."""
    if out is not None:
        return str(write_file(out, new, UserError))
    backups = (file.with_name(f"{file.name}.bak{number or ''}") for number in itertools.count())
    backup = next(path for path in backups if not path.exists())
    write_file(backup, text, UserError)
    described = file.with_name("run.json")
    if file.name == "config.toml" and described.is_file():  # a run that is resumed must find its own configuration
        from fedaccord.runs.checkpoint import config_digest

        run = json.loads(described.read_text(encoding="utf-8"))
        if run.get("config") == config_digest(text):
            updated = json.dumps(run | {"config": config_digest(new)}, indent=2, ensure_ascii=False)
            write_file(described, updated + "\n", UserError)
    write_file(file, new, UserError)
    return f"{file}; as it was: {backup}"


def check(
    config: Config,
    change: Change = None,
    trust: OwnTrust = None,
    site: Annotated[str | None, typer.Option(help="Read and show only what this site may see.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Print every list in full.")] = False,
) -> None:
    """Show which site knows which label, and find problems before training. Exit code 1: warnings; 2: errors."""
    with lists_in_full() if everything else nullcontext():
        experiment, base = load_experiment(config, change or [])
        # Imported here: torch takes seconds to load, and --help or a wrong file should not wait for it.
        from fedaccord.checks.display import print_report, print_site
        from fedaccord.checks.federation import check_experiment_data, check_own_data, exit_code

        if site is not None:
            site_report = check_own_data(experiment, base, site)
            print_site(site_report, console)
            raise typer.Exit(exit_code(site_report.findings))
        report = check_experiment_data(experiment, base)
        print_report(report, console)
        raise typer.Exit(report.exit_code)


def deploy(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="The experiment file; with --check, a folder.")],
    folder: Annotated[Path | None, typer.Argument(metavar="DIR", help="A new or empty folder.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Test a deployment, or one folder; change nothing.")] = False,
    address: Annotated[str, typer.Option(help="Where nodes find the server: host:port.")] = "localhost:9443",
    local_port: Annotated[int, typer.Option(min=1, max=65000, help="First port on a machine's own loopback.")] = 9444,
    site: Annotated[str | None, typer.Option(help="Put only this site's own samples into its folder, DIR.")] = None,
    change: Change = None,
    trust: OwnTrust = None,
    ca: _File = None,
    certificate: _File = None,
    key: _File = None,
) -> None:
    """Write the folders of a federation on several machines, or test them with --check."""
    if check:
        if folder is not None:
            raise UserError("--check takes one folder: fedaccord deploy --check DIR")
        from fedaccord.deployment.checking import check_folder

        problems = check_folder(config)
        say("\n".join(problems) or "nothing is wrong")
        raise typer.Exit(1 if problems else 0)
    if folder is None:
        raise UserError("a folder is missing: fedaccord deploy CONFIG DIR")
    given = [file for file in (ca, certificate, key) if file is not None]
    if given and len(given) < 3:
        raise UserError("--ca, --certificate and --key belong together; give all three or none")
    experiment, base = load_experiment(config, change or [])
    # Imported here: torch takes seconds to load, and --help or a wrong file should not wait for it.
    try:
        from fedaccord.deployment.writing import Address, GivenCertificate, write_deployment, write_site_data
    except ImportError as error:
        raise UserError(f'{error.name} is not installed: pip install "fedaccord[flower]"') from None

    if site is not None:
        write_site_data(experiment, base, folder, site)
        say(f"{folder / 'data'}")
        return
    given_certificate = None if not given else GivenCertificate(*given)
    sites = write_deployment(experiment, base, folder, Address.parse(address), local_port, given_certificate)
    say("\n".join(str(folder / place) for place in ("server", *sites)))
    say(f"next: {folder / 'README.md'}")


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
        say(f"The tables of papers are in a clone of FedAccord's repository, not in the package. There: make {target}")
    else:
        command = shlex.join(["python", "-m", "papers", *arguments])
        say(f"The tables of papers are in this clone. In {clone}, run: {command}")


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
