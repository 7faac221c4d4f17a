"""Flower's simulation on this machine, with its grid and its Ray actors but our round loop.

Flower calls a ServerApp and returns when that returns. Here it runs in a thread, and its ServerApp only provides the
grid and waits until the engine is closed.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import shutil
import tempfile
import threading
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import ray  # noqa: F401  (if it is missing, Flower exits the process when the simulation starts)
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from fedaccord.engines.engine import HostSpec
from fedaccord.engines.flower.client import client_app
from fedaccord.engines.flower.engine import FlowerEngine
from fedaccord.engines.flower.environment import QUIET
from fedaccord.engines.flower.nodes import Roster
from fedaccord.engines.flower.site_folder import write_site_folder
from fedaccord.errors import EngineError

_RAY: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False, "logging_level": "error"}
_PATIENCE = 300.0  # Ray takes half a minute to start on a busy machine


def simulated_engine(hosts: dict[str, HostSpec], workers: int, code: Sequence[str] = ()) -> FlowerEngine:
    """Start a simulation with one node per site and `workers` processes.

    The sites' data are in a temporary folder, as in a deployment, until the engine is closed. `code` lists the folders
    with the modules of the model.
    """
    os.environ.update(QUIET)
    place = Path(tempfile.mkdtemp(prefix="fedaccord-flower-"))
    names = sorted(hosts)
    for number, site in enumerate(names):
        write_site_folder(place / str(number), site, hosts[site], "", "", code)
        trust = json.dumps(hosts[site].spec.get("trust", []))  # given to this process, which plays all sites
        (place / str(number) / "site.toml").write_text(f"trust = {trust}\n", encoding="utf-8")
    simulation = _Simulation(place, len(names), max(1, workers))
    try:
        grid = simulation.start()
    except BaseException:
        simulation.stop()
        raise
    return FlowerEngine(
        grid,
        Roster(tuple(names)),
        carries_memories=True,
        patience=_PATIENCE,
        close=simulation.stop,
        alive=simulation.check,
    )


class _Simulation:
    def __init__(self, place: Path, nodes: int, workers: int) -> None:
        self._place, self._nodes, self._workers = place, nodes, workers
        self._grids: queue.Queue[Grid] = queue.Queue()
        self._done = threading.Event()
        self._problem: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> Grid:
        self._thread.start()
        while True:
            with contextlib.suppress(queue.Empty):
                return self._grids.get(timeout=0.2)
            self.check()

    def check(self) -> None:
        """Raise EngineError if the simulation has ended by itself."""
        if not self._thread.is_alive() and not self._done.is_set():
            raise EngineError(f"Flower's simulation ended: {self._problem or 'no reason given'}")

    def stop(self) -> None:
        self._done.set()
        if self._thread.ident is not None:
            self._thread.join(60)
        shutil.rmtree(self._place, ignore_errors=True)

    def _run(self) -> None:
        server = ServerApp()

        @server.main()
        def main(grid: Grid, context: Context) -> None:
            self._grids.put(grid)
            self._done.wait()

        try:
            logging.getLogger("flwr").setLevel(logging.ERROR)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the function is deprecated, and Ray warns too
                run_simulation(
                    server,
                    client_app(partial(_numbered_folder, str(self._place))),
                    self._nodes,
                    backend_config={
                        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
                        "init_args": {"num_cpus": self._workers, **_RAY},
                    },
                )
        except (Exception, SystemExit) as error:
            self._problem = error


def _numbered_folder(place: str, context: Context) -> Path:
    return Path(place, str(context.node_config["partition-id"]))
