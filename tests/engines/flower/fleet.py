"""A deployment on the loopback, started by the scripts that `fedaccord deploy` wrote, every process ended by its id."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path

from command_line import command

BIN = Path(sys.executable).parent
TWO_SITES = """
[data]
dataset = "digits"
samples = 100
partition = { kind = "quantity", sizes = [40, 30] }
names = ["north", "south"]

[method]
name = "fedavg"
rounds = 1
"""


def free_ports(number: int) -> int:
    """Return the first of so many ports in a row that nobody uses."""
    while True:
        with socket.socket() as first:
            first.bind(("127.0.0.1", 0))
            start = first.getsockname()[1]
        if start + number < 65000 and all(map(_is_free, range(start, start + number))):
            return start


def _is_free(port: int) -> bool:
    with socket.socket() as trial:
        try:
            trial.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def within(seconds: float, happens, what: str):
    """Wait until something is true, and return it."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = happens()
        if found:
            return found
        time.sleep(0.1)
    raise AssertionError(f"not within {seconds:g} s: {what}")


class Fleet:
    """The server and the nodes of a deployment."""

    def __init__(self, folder: Path, experiment: str, *changes: str, base: Path | None = None) -> None:
        self.folder, self.mark = folder, uuid.uuid4().hex
        self.port = free_ports(10)
        config = (base or folder.parent) / f"{folder.name}.toml"
        config.write_text(experiment, encoding="utf-8")
        options = [word for change in changes for word in ("--set", change)]
        done = command(
            "deploy",
            config,
            folder,
            "--address",
            f"localhost:{self.port}",
            "--local-port",
            self.port + 1,
            *options,
            cwd=folder.parent,
        )
        assert done.code == 0, done.err
        self.server = folder / "server"
        self.processes: dict[str, subprocess.Popen] = {}
        self.environment = {
            key: value for key, value in os.environ.items() if key != "CI" and not key.startswith("PYTEST_")
        } | {
            "FEDACCORD_BIN": str(BIN),
            "FEDACCORD_FLEET": self.mark,
            "RETRY_SECONDS": "3",
            "PYTHONUNBUFFERED": "1",
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        }

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def site(self, name: str) -> Path:
        return self.folder / "sites" / name

    def start(self, *nodes: str) -> None:
        """Start the server, wait for it, and start these nodes."""
        self.start_server()
        within(60, lambda: "ready:" in self.said("server"), "the server is ready")
        for node in nodes:
            self.start_node(node)

    def start_server(self) -> subprocess.Popen:
        self._script("server", self.server / "start.sh")
        return self.processes["server"]

    def start_node(self, name: str, **variables: str) -> None:
        self._script(name, self.site(name) / "start.sh", **variables)

    def begin(self) -> None:
        """Begin the run, or go on with it."""
        done = subprocess.run(
            [self.server / "run.sh", "--format", "json"],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        answer = json.loads(done.stdout)
        assert answer["success"], done.stdout + done.stderr  # Flower's exit code is 0 all the same

    def finish(self, seconds: float, number: int = 1) -> dict:
        """Wait until so many runs are finished, and return the summary of the last."""
        found = within(
            seconds,
            # The report is the last that a run writes, after its summary.
            lambda: (ended := sorted(self.runs().glob("*/report.html"))) and len(ended) >= number and ended,
            f"{number} finished runs\n{self.tell()}",
        )
        newest = max(found, key=lambda path: path.stat().st_mtime)
        return json.loads(newest.with_name("summary.json").read_text())

    def runs(self) -> Path:
        return self.server / "runs"

    def run_folder(self) -> Path:
        return max(self.runs().glob("*"), key=lambda path: path.stat().st_mtime)

    def lines(self, scope: str = "round") -> list[dict]:
        """Return the lines of a scope that the newest run has written so far."""
        try:
            texts = (self.run_folder() / "metrics.jsonl").read_text().splitlines()
        except (FileNotFoundError, ValueError):
            return []
        return [line for line in map(json.loads, texts) if line["scope"] == scope]

    def log(self) -> str:
        return (self.run_folder() / "log.txt").read_text()

    def said(self, name: str) -> str:
        return (self.folder / f"{name}.out").read_text(errors="replace")

    def tell(self) -> str:
        return "\n".join(f"--- {name}\n{self.said(name)[-1500:]}" for name in self.processes)

    def pids(self, *words: str) -> list[int]:
        """Return the processes of this fleet whose command line holds all these words."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if self.mark.encode() in (path / "environ").read_bytes():
                    line = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    if all(word in line for word in words):
                        found.append(int(path.name))
        return found

    def kill(self, *words: str) -> None:
        """Kill the processes whose command line holds all these words, without a chance to say goodbye."""
        found = self.pids(*words)
        assert found, words
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(15)
        with contextlib.suppress(AssertionError):
            within(5, lambda: not self.pids(), "all processes have ended by themselves")
        within(20, self._all_killed, "all processes are gone")
        for process in self.processes.values():
            process.kill()
            process.wait()

    def _all_killed(self) -> bool:
        """Kill what is left, among it what was started meanwhile; a process takes a moment to be gone."""
        left = self.pids()
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not left

    def _script(self, name: str, script: Path, **variables: str) -> None:
        with (self.folder / f"{name}.out").open("ab") as out:
            self.processes[name] = subprocess.Popen(
                [script],
                env=self.environment | variables,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
