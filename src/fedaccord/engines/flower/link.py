"""Starts the server of a deployment: Flower's SuperLink on the loopback interface, and the gate in front of it.

    python -m fedaccord.engines.flower.link SERVER_FOLDER

The folder's `link.json` has the addresses and keys: {"host", "port", "link_port", "keys": {site: file}}.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sqlite3
import ssl
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import click
import uvicorn

from fedaccord.durable import atomic_write
from fedaccord.engines.flower.environment import flower_environment
from fedaccord.engines.flower.gate import make_gate
from fedaccord.errors import EngineError
from fedaccord.plain_text import printable

DATABASE = "state.db"  # of the SuperLink
CONNECTION = "deployment"  # name of the SuperLink for Flower's command line
_REGISTERED = "already in use"  # part of Flower's message for a public key that is already registered
_START = 90.0  # seconds for the SuperLink to become ready


def write_connection(folder: Path, link_port: int) -> None:
    """Write the SuperLink's address into the configuration of Flower's command line."""
    home, ca = folder / "flower", json.dumps(str((folder / "tls/link-ca.crt").resolve()))
    home.mkdir(exist_ok=True)
    server = f'[superlink.{CONNECTION}]\naddress = "127.0.0.1:{link_port}"\nroot-certificates = {ca}\n'
    (home / "config.toml").write_text(f'[superlink]\ndefault = "{CONNECTION}"\n\n{server}', encoding="utf-8")


def start_link(folder: Path, link_port: int) -> subprocess.Popen[bytes]:
    """Start the SuperLink and wait until it answers."""
    with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", link_port), timeout=2).close()
        raise EngineError(
            f"port {link_port} of the loopback interface is in use, maybe by the SuperLink of a server that was "
            "killed: end that process, and start again"
        )
    compact(folder / DATABASE)
    tls = folder / "tls"
    process = subprocess.Popen(
        [
            "flower-superlink",
            "--host=127.0.0.1",
            f"--port={link_port}",
            f"--database={folder / DATABASE}",
            f"--ssl-ca-certfile={tls / 'link-ca.crt'}",
            f"--ssl-certfile={tls / 'link.crt'}",
            f"--ssl-keyfile={tls / 'link.key'}",
            "--enable-supernode-auth",
        ],
        stdin=subprocess.DEVNULL,
    )
    try:
        trust = ssl.create_default_context(cafile=str(tls / "link-ca.crt"))
        end = time.monotonic() + _START
        while time.monotonic() < end:
            if process.poll() is not None:
                raise EngineError(f"the SuperLink ended with exit code {process.returncode}; is port {link_port} free?")
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"https://127.0.0.1:{link_port}/health", timeout=2, context=trust).close()
                return process
            time.sleep(0.1)
        raise EngineError(f"the SuperLink did not answer within {_START:g} s")
    except BaseException:
        process.kill()
        process.wait()
        raise


def compact(database: Path) -> None:
    """Give the space of messages that were removed back to the disk.

    Flower removes the messages of a run, but its database never shrinks. Only while no SuperLink runs, which would wait
    for it; a database that is in use after all, or a disk without room for a copy, leaves it as it is.
    """
    if not database.exists():
        return
    try:
        with contextlib.closing(sqlite3.connect(database, timeout=0)) as connection:
            (unused,) = connection.execute("PRAGMA freelist_count").fetchone()
            if unused:
                connection.execute("VACUUM")
    except sqlite3.Error as error:
        print(printable(f"the SuperLink's database was not compacted: {error}"), flush=True)


def register(folder: Path, keys: dict[str, str]) -> None:
    """Register the public keys of the sites at the SuperLink, except those that are already registered."""
    from flwr.cli.app import app

    record = folder / "registered.json"
    registered = json.loads(record.read_text()) if record.exists() else {}
    for site, file in keys.items():
        key = (folder / file).read_text().strip()
        if registered.get(site) != key:
            try:
                # Flower's command in this process, because a process for every key would take seconds each.
                app(["supernode", "register", str(folder / file), CONNECTION], standalone_mode=False)
            except click.ClickException as error:
                if _REGISTERED not in error.message:
                    raise EngineError(f"the key of site '{site}' cannot be registered: {error.message}") from None
            registered[site] = key
            with atomic_write(record) as new:  # after every key, so that an interrupted start can continue
                new.write(json.dumps(registered, indent=1).encode())


def main() -> None:
    """Run the server of a deployment until a signal ends it."""
    try:
        serve_nodes(Path(sys.argv[1]).resolve())
    except EngineError as error:
        sys.exit(printable(f"error: {error}"))


def serve_nodes(folder: Path) -> None:
    """Start the SuperLink and run the gate in front of it; raise EngineError when the SuperLink ends."""
    settings = json.loads((folder / "link.json").read_text(encoding="utf-8"))
    os.environ.update(flower_environment(folder))
    write_connection(folder, settings["link_port"])
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    link = start_link(folder, settings["link_port"])
    try:
        register(folder, settings["keys"])
        tls, local = folder / "tls", f"https://127.0.0.1:{settings['link_port']}"
        keys = tls / "server.crt", tls / "server.key"
        gate = make_gate(settings["host"], settings["port"], *keys, local, tls / "link-ca.crt")
        threading.Thread(target=_stop_with_link, args=(link, gate), daemon=True).start()
        print(f"ready: nodes may connect to port {settings['port']}", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            gate.run()
            raise EngineError(f"the SuperLink ended with exit code {link.poll()}, so the server ends too")
    finally:
        link.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            link.wait(15)
        if link.poll() is None:
            link.kill()
            link.wait()
        compact(folder / DATABASE)


def _stop_with_link(link: subprocess.Popen[bytes], gate: uvicorn.Server) -> None:
    """Stop the gate when the SuperLink ends, so that a service manager sees this process end and restarts both."""
    link.wait()
    gate.should_exit = True


if __name__ == "__main__":
    main()
