"""Command lines that can be killed cheaply: a nursery imports torch once and forks a child for each of them.

As a module: `Nursery`, the test's end. As a script: the nursery itself, which takes one life after the other on stdin.
"""

from __future__ import annotations

import contextlib
import fnmatch
import json
import os
import pathlib
import resource
import signal
import subprocess
import sys
import time
import traceback
import uuid
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Life:
    """How a command ended and what it said; `code` is None when it was killed."""

    code: int | None
    out: str
    err: str
    seconds: float

    @property
    def killed(self) -> bool:
        return self.code is None


class Nursery:
    """Starts commands in processes of their own, which may be told how to die."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.mark = folder, uuid.uuid4().hex
        one = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        # Without what tells packages that they are being tested.
        usual = {key: value for key, value in os.environ.items() if key != "CI" and not key.startswith("PYTEST_")}
        self.process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            env=usual | one | {"FEDACCORD_NURSERY": self.mark},
        )

    def live(self, *arguments, cwd, **fate) -> Life:
        """Run a command line.

        Its fate: `after=s` kills it after that many seconds; `at=(event, n)` at the n-th event, one of "fsync",
        "replace" (before), "replaced" (after), "half:PATTERN" (when half of such a file is written); `signal=(number,
        file, lines)` signals it when the file has so many lines; `limit=bytes` is the longest file it may write once it
        has begun with metrics.jsonl; `hide=[module]` takes away modules; `offline=True` tells on stderr who asks
        for the network.
        """
        task = {"arguments": list(map(str, arguments)), "cwd": str(cwd), **fate}
        said = {name: self.folder / name for name in ("out", "err")}
        task["said"] = {name: str(path) for name, path in said.items()}
        self.process.stdin.write(json.dumps(task) + "\n")
        ended = json.loads(self.process.stdout.readline())
        return Life(ended["code"], said["out"].read_text(), said["err"].read_text(), ended["seconds"])

    def left_over(self) -> list[int]:
        """Return the processes that a life left behind."""
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if self.mark.encode() in path.read_bytes() and int(path.parent.name) != self.process.pid:
                    found.append(int(path.parent.name))
        return found

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(20)
        self.process.stdout.close()


# What follows runs in the nursery.


def personal(settings):
    """A method whose sites keep a layer of their own between the shared encoder and the shared head."""
    from fedaccord.aggregation.mean import per_label
    from fedaccord.federation.recipe import Recipe
    from fedaccord.methods.candidate_sets.recipe import with_personal_layer

    return Recipe(settings, per_label, network=with_personal_layer)


def normed(input_shape, classes, width=5):
    """A model with batch norm: its buffers are averaged, its counters are not."""
    import math

    from torch import nn

    from fedaccord.models.network import Network

    size = math.prod(input_shape)
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(size, width), nn.BatchNorm1d(width), nn.ReLU())
    return Network(encoder, nn.Linear(width, classes))


def fragile(input_shape, classes):
    """A model that some batches break, so that replies are dropped: always the same ones."""
    import math

    import torch
    from torch import nn

    from fedaccord.models.network import Network

    class Fragile(nn.Flatten):
        def forward(self, x):
            x = super().forward(x)
            broken = self.training and int(x.double().sum() * 1000) % 3 == 0
            return x * torch.nan if broken else x

    return Network(nn.Sequential(Fragile(), nn.Linear(math.prod(input_shape), 4)), nn.Linear(4, classes))


def _nursery() -> None:
    import sklearn.datasets  # noqa: F401
    import torch

    import fedaccord.display
    import fedaccord.experiment  # noqa: F401
    from fedaccord.methods import registry
    from fedaccord.methods.accord.settings import AccordSettings
    from fedaccord.methods.entry import MethodEntry

    torch.set_num_threads(1)
    registry.METHODS["personal"] = MethodEntry("personal", AccordSettings, "mortal:personal")
    for line in sys.stdin:
        task = json.loads(line)
        began = time.monotonic()
        pid = os.fork()
        if pid == 0:
            _child(task)
        print(json.dumps({"code": _wait(pid, task), "seconds": time.monotonic() - began}), flush=True)


def _wait(pid: int, task: dict) -> int | None:
    if "after" in task:
        time.sleep(task["after"])
        os.kill(pid, signal.SIGKILL)
    if "signal" in task:
        number, file, lines = task["signal"]
        while os.waitpid(pid, os.WNOHANG) == (0, 0):
            with contextlib.suppress(FileNotFoundError):
                if Path(file).read_bytes().count(b"\n") >= lines:
                    os.kill(pid, number)
                    break
            time.sleep(0.002)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    return None if code == -signal.SIGKILL else code


def _child(task: dict) -> None:
    code = 99
    try:
        for name, fd in (("out", 1), ("err", 2)):
            os.dup2(os.open(task["said"][name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), fd)
        os.chdir(task["cwd"])
        if "at" in task:
            _die_at(*task["at"])
        if "limit" in task:
            _limit_files(task["limit"])
        sys.modules.update(dict.fromkeys(task.get("hide", [])))
        if task.get("offline"):
            sys.addaudithook(_no_network)
        sys.argv = ["fedaccord", *task["arguments"]]
        from fedaccord import cli
        from fedaccord.extensions import trusting

        with trusting(["mortal"]):
            cli.main()
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _die_at(event: str, number: int) -> None:
    """Make this process kill itself at the n-th event."""
    left = [number]

    def count() -> None:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    kind, _, pattern = event.partition(":")
    fsync, replace, open_ = os.fsync, pathlib.Path.replace, pathlib.Path.open

    def counted_fsync(fd):
        count()
        fsync(fd)

    def counted_replace(path, target):
        if kind == "replace":
            count()
        done = replace(path, target)
        if kind == "replaced":
            count()
        return done

    def half_open(path, mode="r", *arguments, **options):
        file = open_(path, mode, *arguments, **options)
        if mode[0] in "wa" and fnmatch.fnmatch(path.name, pattern):
            write = file.write

            def half(data):
                if left[0] == 1:
                    write(data[: len(data) // 2])
                    file.flush()
                count()
                return write(data)

            return _Half(file, half)
        return file

    if kind == "fsync":
        os.fsync = counted_fsync
    elif kind == "half":
        pathlib.Path.open = half_open
    else:
        pathlib.Path.replace = counted_replace


def _no_network(event: str, arguments: tuple) -> None:
    if event in ("socket.connect", "socket.getaddrinfo"):
        os.write(2, f"{event} {arguments}\n".encode())


def _limit_files(size: int) -> None:
    """Let no file grow beyond a size; from the first line of metrics.jsonl on, since the engine's memory is a file."""
    open_ = pathlib.Path.open

    def limited_open(path, mode="r", *arguments, **options):
        if path.name == "metrics.jsonl" and mode == "a":
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        return open_(path, mode, *arguments, **options)

    pathlib.Path.open = limited_open


class _Half:
    def __init__(self, file, write) -> None:
        self.file, self.write = file, write
        self.flush, self.fileno = file.flush, file.fileno

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()


if __name__ == "__main__":
    _nursery()
