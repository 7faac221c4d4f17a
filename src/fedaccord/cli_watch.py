"""The command `watch`, which shows the report of a run in a browser while the run goes on."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Annotated

import typer

from fedaccord.cli_options import OwnTrust, say


def watch(
    run: Annotated[Path, typer.Argument(help="The folder of a run: going on, cut off or finished.")],
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port on this machine; 0: a free one.")] = 0,
    trust: OwnTrust = None,
) -> None:
    """Show the report of a run in a browser on this machine, updated every few seconds, until Ctrl-C."""
    # Imported here: torch takes seconds to load, and --help should not wait for it.
    from fedaccord.runs.progress import read_progress
    from fedaccord.runs.watching import serving

    ended = threading.Event()
    before = {number: signal.signal(number, lambda *_: ended.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with serving(run, port) as address:
            say(f"{run}: {read_progress(run)}\nreport: {address}\nCtrl-C ends this; the run is not affected")
            ended.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
