"""The command that takes a federation to several machines: `fedaccord deploy`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedaccord.cli_options import Change, OwnTrust, console
from fedaccord.config import load_experiment
from fedaccord.errors import UserError

_File = Annotated[Path | None, typer.Option(help="Of the server, with the other two: a certificate you have already.")]


def deploy(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="The experiment file; with --check, a folder.")],
    folder: Annotated[Path | None, typer.Argument(metavar="DIR", help="A new or empty folder.")] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Test a deployment, or one folder of it, and change nothing.")
    ] = False,
    address: Annotated[
        str, typer.Option("--address", help="Where nodes find the server: host:port.")
    ] = "localhost:9443",
    local_port: Annotated[
        int, typer.Option("--local-port", min=1, max=65000, help="First port used on a machine's own loopback.")
    ] = 9444,
    site: Annotated[
        str | None, typer.Option("--site", help="Put only this site's own samples into its folder, DIR.")
    ] = None,
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
        for problem in problems:
            console.print(problem, highlight=False, soft_wrap=True)
        if not problems:
            console.print("nothing is wrong", highlight=False)
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
        console.print(f"{folder / 'data'}", highlight=False, soft_wrap=True)
        return
    own = None if not given else GivenCertificate(*given)
    sites = write_deployment(experiment, base, folder, Address.parse(address), local_port, own)
    for place in ("server", *sites):
        console.print(f"{folder / place}", highlight=False, soft_wrap=True)
    console.print(f"next: {folder / 'README.md'}", highlight=False, soft_wrap=True)
