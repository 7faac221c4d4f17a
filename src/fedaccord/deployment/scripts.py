"""Text files of a deployment: start scripts, systemd units, the Flower app and a README."""

from __future__ import annotations

from collections.abc import Mapping

APP = "fedaccord_app"

_HEAD = """#!/usr/bin/env bash
set -u
here=$(cd "$(dirname "$0")" && pwd)
export PATH="${FEDACCORD_BIN:+$FEDACCORD_BIN:}$PATH"
"""

_NODE = (
    _HEAD.replace("set -u\n", "# Starts this site's node and keeps it running; Ctrl-C or SIGTERM ends it.\nset -u\n")
    + """exec python -m fedaccord.engines.flower.node "$here"
"""
)

_SERVER = (
    _HEAD.replace("set -u\n", "# Starts the server: Flower's SuperLink and the gate for the nodes.\nset -u\n")
    + """exec python -m fedaccord.engines.flower.link "$here"
"""
)

_RUN = (
    _HEAD.replace("set -u\n", "# Starts a run, or resumes an interrupted one; its folder is in runs/.\nset -u\n")
    + """export FLWR_HOME="$here/flower" FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
exec flwr run "$here/app" deployment --run-config "folder=\\"$here\\"" "${@:---stream}"
"""
)

_UNIT = """[Unit]
Description=FedAccord: @WHAT@
After=network-online.target

[Service]
ExecStart=%h/fedaccord/@FOLDER@/start.sh
Environment=FEDACCORD_BIN=%h/fedaccord/venv/bin
Restart=always
RestartSec=15

[Install]
WantedBy=default.target
"""

_APP_TOML = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "fedaccord-app"
version = "1.0.0"
description = "Refers to the apps of the installed fedaccord"
license = "Apache-2.0"
dependencies = []

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "fedaccord"

[tool.flwr.app.components]
serverapp = "fedaccord_app.server_app:app"
clientapp = "fedaccord_app.client_app:app"

[tool.flwr.app.config]
folder = ""
"""

_SERVER_APP = '''"""The ServerApp of the installed fedaccord."""

from fedaccord.engines.flower.server import server_app

app = server_app("fedaccord.deployment.serving:serve")
'''

_CLIENT_APP = '''"""The ClientApp of the installed fedaccord."""

from fedaccord.engines.flower.client import app

__all__ = ["app"]
'''

_README = """# @NAME@: a federation of @COUNT@ sites

Written by `fedaccord deploy`, version @VERSION@. Every machine needs Python 3.11 or newer and the same version:

    pip install "fedaccord[flower]==@VERSION@"

The scripts use `python`, `flwr` and `flower-supernode` from the PATH, or from the folder in FEDACCORD_BIN.

## Folders

| folder | send it to | contents |
| --- | --- | --- |
| `server/` | the server | the experiment, the sites' public keys, the server's certificate; no samples |
@ROWS@
| `authority/` | nobody: keep it in a safe place | the key that signs certificates |

A site's folder contains its private key and its samples: send it to that site only, over a trusted channel. It names
only the labels that the site knows; the shape of the model reveals the total number of labels.

## Commands

On the server, whose address is `@ADDRESS@`:

    ./start.sh                      start the server; keep it running
    fedaccord deploy --check .      list problems, one sentence each
    ./run.sh                        start the run, or resume an interrupted one

On each site:

    fedaccord deploy --check .
    ./start.sh                      start the node; keep it running

The run and its report are written to `server/runs/`. An interrupted run is resumed with its original settings, even if
`config.toml` has changed: to start a new run instead, remove its folder. A site's log is `log.txt` in its folder; it
has the full trace of an error, while the server receives one sentence.

To start and restart them with systemd, put the folder under `~/fedaccord/` and a virtual environment under
`~/fedaccord/venv`, then run

    systemctl --user enable --now ~/fedaccord/SITE/fedaccord-node.service
    systemctl --user enable --now ~/fedaccord/server/fedaccord-server.service
    loginctl enable-linger          start them at boot and keep them running after logout

## Security

- The server listens on port @PORT@ and accepts only nodes, each with the key registered for its site.
- Runs are started on port @LINK@ of the server's loopback interface. Anyone with an account on that machine can start a
  run, and thereby run code at every site: restrict accounts, and open no port other than @PORT@.
- Certificates are valid until @UNTIL@.
"""


def node_script() -> str:
    """Return a site's start script."""
    return _NODE


def server_script() -> str:
    """Return the server's start script."""
    return _SERVER


def run_script() -> str:
    """Return the script that starts a run."""
    return _RUN


def unit(what: str, folder: str) -> str:
    """Return a systemd user unit that keeps a start script running."""
    return _UNIT.replace("@WHAT@", what.replace("%", "%%")).replace("@FOLDER@", folder)


def app_files() -> dict[str, str]:
    """Return the files of the Flower app by name; they only refer to the apps of the installed package."""
    return {
        "pyproject.toml": _APP_TOML,
        f"{APP}/__init__.py": '"""Refers to the apps of the installed fedaccord."""\n',
        f"{APP}/server_app.py": _SERVER_APP,
        f"{APP}/client_app.py": _CLIENT_APP,
    }


def readme(folders: Mapping[str, str], **fields: object) -> str:
    """Return the README; `folders` are the folders of the sites by name, `fields` replace @FIELD@ in the text."""
    contents = "its part of the experiment, its private key, its samples"
    rows = "\n".join(f"| `sites/{folder}/` | site {name} | {contents} |" for name, folder in folders.items())
    text = _README.replace("@ROWS@", rows).replace("@COUNT@", str(len(folders)))
    for key, value in fields.items():
        text = text.replace(f"@{key.upper()}@", str(value))
    return text
