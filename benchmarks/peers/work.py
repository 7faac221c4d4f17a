"""The workloads, and the measurement that all contestants share.

Initial weights, the order of batches (no shuffling) and each round's cohort are fixed, so all contestants must
reach the same model, except for rounding. A contestant's script does this:

    options = arguments()
    work, clock = Work(options.workload), Clock(options)
    clock.begin()            just before the first round
    clock.mark()             at the end of every round
    clock.finish(work, state_dict)
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

CACHE = Path(os.environ.get("PEERS_CACHE", os.path.join(tempfile.gettempdir(), "fedaccord-peers-data")))
LR, BATCH, CLASSES, DIM = 0.01, 32, 10, 784
HELD_OUT = 2000


@dataclass(frozen=True)
class Spec:
    """A workload: the model, the number of clients, the samples of each, and the number of clients in a round."""

    model: str
    clients: int
    samples: int
    cohort: int


SPECS = {
    "W1": Spec("mlp", 100, 300, 100),
    "W2": Spec("lenet", 10, 600, 10),
    "W3": Spec("mlp", 1000, 60, 100),
    "T1": Spec("mlp", 8, 70, 8),  # tiny workloads, to test that a contestant works
    "T2": Spec("lenet", 4, 70, 4),
    "T3": Spec("mlp", 12, 40, 4),
}


def generate(name: str) -> Path:
    """Write a workload's synthetic data once; all contestants map the same files into memory."""
    spec, where = SPECS[name], CACHE / name
    if (where / "done").exists():
        return where
    where.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(20240)
    centres = rng.standard_normal((CLASSES, DIM), dtype=np.float32)

    def draw(samples: int) -> tuple[np.ndarray, np.ndarray]:
        y = rng.integers(0, CLASSES, samples)
        return rng.standard_normal((samples, DIM), dtype=np.float32) + 0.25 * centres[y], y.astype(np.int64)

    x, y = draw(spec.clients * spec.samples)
    np.save(where / "x.npy", x.reshape(spec.clients, spec.samples, DIM))
    np.save(where / "y.npy", y.reshape(spec.clients, spec.samples))
    for file, array in zip(("tx.npy", "ty.npy"), draw(HELD_OUT), strict=True):
        np.save(where / file, array)
    (where / "done").touch()
    return where


def make_model(kind: str):
    """Return the model with its fixed initial weights."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    if kind == "mlp":
        return nn.Sequential(nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(400, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, 10),
    )


class Work:
    """A workload's data, model and cohorts."""

    def __init__(self, name: str) -> None:
        self.name, self.spec, self._where = name, SPECS[name], generate(name)
        self._shape = (1, 28, 28) if self.spec.model == "lenet" else (DIM,)
        # A copy-on-write mapping: the file's pages in memory are shared by all processes.
        self.x = np.load(self._where / "x.npy", mmap_mode="c").reshape(self.spec.clients, -1, *self._shape)
        self.y = np.load(self._where / "y.npy", mmap_mode="c")

    def cohorts(self, rounds: int) -> list[list[int]]:
        """Return the clients of each round, the same for every contestant."""
        rng, spec = np.random.default_rng(7), self.spec
        if spec.cohort == spec.clients:
            return [list(range(spec.clients))] * rounds
        return [sorted(rng.choice(spec.clients, spec.cohort, replace=False).tolist()) for _ in range(rounds)]

    def client(self, number: int):
        """Return one client's data as tensors, without a copy."""
        import torch

        return torch.from_numpy(self.x[number]), torch.from_numpy(self.y[number])

    def batches(self, number: int):
        """Return one client's batches, as slices."""
        x, y = self.client(number)
        return [(x[i : i + BATCH], y[i : i + BATCH]) for i in range(0, len(y), BATCH)]

    def model(self):
        return make_model(self.spec.model)

    def loss(self, state: Mapping) -> float:
        """Return the held-out loss of a trained model."""
        import torch

        model = self.model()
        model.load_state_dict({name: value.detach().clone().contiguous() for name, value in state.items()})
        x, y = (torch.from_numpy(np.load(self._where / file)) for file in ("tx.npy", "ty.npy"))
        with torch.no_grad():
            return float(torch.nn.functional.cross_entropy(model.eval()(x.view(-1, *self._shape)), y))


def arguments(extra: Callable[[argparse.ArgumentParser], None] | None = None) -> argparse.Namespace:
    """Parse the options that `run.py` passes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workload", default="T1", choices=sorted(SPECS))
    parser.add_argument("--rounds", type=int, default=6, help="number of rounds; the first is a warm-up")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--launched", type=float, default=None, help="time at which run.py started this process")
    parser.add_argument(
        "--out", type=Path, default=None, help="write the result to this JSON file instead of printing it"
    )
    if extra is not None:
        extra(parser)
    return parser.parse_args()


class Clock:
    """Measure the time of each round."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.launched = options.launched or time.time()
        self.marks: list[float] = []

    def begin(self) -> None:
        """Mark the start of the first round; later calls have no effect."""
        if not self.marks:
            self.marks.append(time.time())

    def mark(self) -> None:
        """Mark the end of a round."""
        self.marks.append(time.time())

    def finish(self, work: Work, state: Mapping) -> None:
        """Write or print the times and the held-out loss."""
        seconds = [after - before for before, after in zip(self.marks, self.marks[1:], strict=False)]
        result = {"start": self.marks[0] - self.launched, "rounds": seconds, "loss": work.loss(state)}
        if self.options.out is not None:
            self.options.out.write_text(json.dumps(result))
        else:
            print(
                f"{work.name}: start {result['start']:.2f} s, first round {seconds[0]:.3f} s, fastest "
                f"{min(seconds):.4f} s, loss {result['loss']:.6f}"
            )


def let_torchvision_import() -> None:
    """Let torchvision be imported if its compiled operators do not load with this torch; they are not used."""
    import sys
    import types

    for name in ("_meta_registrations", "_autograd_registrations"):
        sys.modules[f"torchvision.{name}"] = types.ModuleType(f"torchvision.{name}")
