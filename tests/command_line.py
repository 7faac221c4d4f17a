"""The command line, run in this process or as a real one, and experiment files small enough for a test."""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import numpy as np

from fedaccord import cli

SMALL = """
name = "small"

[data]
dataset = "digits"
samples = 200
partition = { kind = "iid", sites = 2 }

[model]
name = "mlp"
hidden = [16]

[method]
name = "fedavg"
rounds = 2
steps = 2

[run]
workers = 0
"""


@dataclass
class Outcome:
    """How a command ended and what it said."""

    code: int
    out: str
    err: str


def command(*arguments: str | Path, cwd: Path) -> Outcome:
    """Run the command line in this process; what would be a traceback for the user is one in `err`, with code 1."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    argv = ["fedaccord", *map(str, arguments)]
    caught = contextlib.redirect_stdout(out), contextlib.redirect_stderr(err)
    with contextlib.chdir(cwd), mock.patch.object(sys, "argv", argv), caught[0], caught[1]:
        try:
            cli.main()
        except SystemExit as end:
            code = end.code or 0
        except Exception:
            traceback.print_exc(file=err)
            code = 1
    return Outcome(code, out.getvalue(), err.getvalue())


def process(*arguments: str | Path, cwd: Path, **variables: str) -> Outcome:
    """Run the command line as a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "fedaccord", *map(str, arguments)],
        cwd=cwd,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


def write(folder: Path, text: str, name: str = "experiment.toml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def register(folder: Path, package: str, **groups: dict[str, str]) -> None:
    """Make a folder look like one into which a package with entry points was installed."""
    place = folder / f"{package}-1.0.dist-info"
    place.mkdir()
    (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines = [[f"[fedaccord.{group}]", *(f"{n} = {o}" for n, o in named.items())] for group, named in groups.items()]
    (place / "entry_points.txt").write_text("\n".join(line for group in lines for line in group) + "\n")


def file_on_page(page: Path, name: str) -> str:
    """Return the text of a file that a page of the documentation shows."""
    return re.search(rf"```\w+ file={re.escape(name)}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)[1]


def checkpoint(run: Path, round_: int) -> Path:
    (path,) = (run / "checkpoints").glob(f"round-{round_:06d}.*")
    return path


def blobs(n: int, classes: int = 3, features: int = 4, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Samples of classes that a linear model can tell apart."""
    rng = np.random.default_rng(seed)
    y = rng.permutation(np.arange(n) % classes)
    centres = np.random.default_rng(99).normal(scale=3, size=(classes, features))
    return (centres[y] + rng.normal(size=(n, features))).astype(np.float32), y


def wait_for(condition: Callable[[], bool], seconds: float) -> None:
    """Wait until a condition is true; fail after some seconds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.05)


def children(pid: int) -> list[int]:
    """Return the processes that a process has started."""
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(child) for child in file.read().split()]
