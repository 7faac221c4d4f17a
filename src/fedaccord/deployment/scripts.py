"""The texts that a deployment's folders hold beside data and keys: start scripts, units, the Flower app, a README."""

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
    _HEAD.replace("set -u\n", "# Starts the server: Flower's SuperLink, and the gate that lets nodes in.\nset -u\n")
    + """exec python -m fedaccord.engines.flower.link "$here"
"""
)

_RUN = (
    _HEAD.replace("set -u\n", "# Begins a run, or goes on with one that was cut; its folder is under runs/.\nset -u\n")
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
description = "Names the apps of the installed fedaccord"
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

_SERVER_APP = '''"""The server's side, as the installed fedaccord has it."""

from fedaccord.engines.flower.server import server_app

app = server_app("fedaccord.deployment.serving:serve")
'''

_CLIENT_APP = '''"""A site's side, as the installed fedaccord has it."""

from fedaccord.engines.flower.client import app

__all__ = ["app"]
'''

_README = """# @NAME@: a federation of @COUNT@ sites

Written by `fedaccord deploy`, version @VERSION@. Every machine needs Python 3.11 or newer and that same version:

    pip install "fedaccord[flower]==@VERSION@"

The scripts take `python`, `flwr` and `flower-supernode` from the PATH, or from the folder named by FEDACCORD_BIN.

## Who gets what

| folder | goes to | holds |
| --- | --- | --- |
| `server/` | the server | the experiment, the sites' public keys, its own certificate; no sample |
@ROWS@
| `authority/` | nobody: keep it in a safe place | the key that signs certificates |

A site's folder holds its private key and its samples: send it to that site alone, over a channel you trust. It names
only labels of that site's own; how many labels there are in all, the shape of the model tells.

## What each side types

At the server, whose address is `@ADDRESS@`:

    ./start.sh                      starts the server; leave it running
    fedaccord deploy --check .      says what is wrong, in a sentence each
    ./run.sh                        begins the run, or goes on with one that was cut

At each site:

    fedaccord deploy --check .
    ./start.sh                      starts the node; leave it running

The run is written to `server/runs/`, with its report. One that was cut goes on as it was begun, whatever `config.toml`
says by then: to give it up and begin anew, remove its folder there. A site's own log is `log.txt` in its folder; what
went wrong at a site is told there in full, and to the server in one sentence.

To have systemd start and restart them: put the folder under `~/fedaccord/`, an environment under
`~/fedaccord/venv`, and

    systemctl --user enable --now ~/fedaccord/SITE/fedaccord-node.service
    systemctl --user enable --now ~/fedaccord/server/fedaccord-server.service
    loginctl enable-linger          so that they start with the machine, and stay when you log out

## Who can do what

- The server listens on port @PORT@ and lets only nodes through, each with the key that is registered for its site.
- Runs are begun on port @LINK@ of the server's own loopback. Whoever has an account on that machine can begin a run and
  so have code run at every site: give accounts on it accordingly, and open no other port than @PORT@.
- Certificates are valid until @UNTIL@.
"""


def node_script() -> str:
    """Return a site's start script."""
    return _NODE


def server_script() -> str:
    """Return the server's start script."""
    return _SERVER


def run_script() -> str:
    """Return the script that begins a run."""
    return _RUN


def unit(what: str, folder: str) -> str:
    """Return a systemd user unit that keeps a start script running."""
    return _UNIT.replace("@WHAT@", what.replace("%", "%%")).replace("@FOLDER@", folder)


def app_files() -> dict[str, str]:
    """Return the Flower app, by file name: it names apps of the installed package and holds no code of its own."""
    return {
        "pyproject.toml": _APP_TOML,
        f"{APP}/__init__.py": '"""Names the apps of the installed fedaccord."""\n',
        f"{APP}/server_app.py": _SERVER_APP,
        f"{APP}/client_app.py": _CLIENT_APP,
    }


def readme(places: Mapping[str, str], **told: object) -> str:
    """Return the README; `places` are the sites' folders by name."""
    holds = "its part, its private key, its samples"
    rows = "\n".join(f"| `sites/{place}/` | site {name} | {holds} |" for name, place in places.items())
    text = _README.replace("@ROWS@", rows).replace("@COUNT@", str(len(places)))
    for key, value in told.items():
        text = text.replace(f"@{key.upper()}@", str(value))
    return text
