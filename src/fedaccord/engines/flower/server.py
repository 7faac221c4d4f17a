"""The Flower ServerApp, which passes its grid to a function of ours."""

from __future__ import annotations

import importlib
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedaccord.errors import ConfigError

FOLDER = "folder"  # key of the run configuration that holds the path of the server's folder
TRUST = "trust"  # key of the run configuration that holds packages outside FedAccord, separated by commas


def server_app(entry: str) -> ServerApp:
    """Return an app that calls "package.module:function" with the grid, the server's folder and trusted packages."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        folder = context.run_config.get(FOLDER)
        if not isinstance(folder, str) or not folder:
            raise ConfigError(f"the run was started without --run-config '{FOLDER}=\"...\"'")
        module, _, function = entry.partition(":")
        trust = [package for package in str(context.run_config.get(TRUST, "")).split(",") if package]
        getattr(importlib.import_module(module), function)(grid, Path(folder), trust)

    return app
