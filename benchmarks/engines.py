"""Measure the cost of a round in each engine: embedded, Flower's simulation, and a deployment on the loopback.

    python benchmarks/engines.py [--rounds 3] [--sites 3 10] [--only embedded flower deployed bytes]

An MLP 64-32-10 on digits, five steps at every site, an evaluation in each round. The output is the median time of a
round, the time outside the rounds (starting processes, joining), and whether the final models are identical. `bytes`
measures the size of a message to a site that knows 10 of 100 labels: with its own head rows only, and with the whole
head.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/engines/flower")]

TEXT = """
name = "engines"
[data]
dataset = "digits"
partition = {{ kind = "iid", sites = {sites} }}
[model]
hidden = [32]
[method]
rounds = {rounds}
steps = 5
"""


def measured(run: Path, began: float) -> tuple[float, float, str]:
    """Return the median seconds of a round, the seconds outside the rounds, and the digest of the model."""
    lines = [json.loads(text) for text in (run / "metrics.jsonl").read_text().splitlines()]
    rounds = [sum(line["seconds"].values()) for line in lines if line["scope"] == "round"]
    digest = json.loads((run / "summary.json").read_text())["model_sha256"]
    return statistics.median(rounds), time.monotonic() - began - sum(rounds), digest


def by_command(folder: Path, text: str, engine: str) -> tuple[float, float, str]:
    (folder / "e.toml").write_text(text)
    began = time.monotonic()
    words = [sys.executable, "-m", "fedaccord", "run", "e.toml", "--engine", engine, "--out", engine]
    subprocess.run(words, cwd=folder, check=True, capture_output=True)
    return measured(folder / engine, began)


def deployed(folder: Path, text: str) -> tuple[float, float, str]:
    from fleet import Fleet

    with Fleet(folder / "d", text) as fleet:
        fleet.start(*[path.name for path in (folder / "d/sites").iterdir()])
        began = time.monotonic()
        fleet.begin()
        fleet.finish(3600)
        return measured(fleet.run_folder(), began)


def count_bytes(labels: int = 100, known: int = 10, width: int = 128) -> None:
    import torch

    from fedaccord.federation.sharing import Sharing
    from fedaccord.messages.message import Message, encoded_size
    from fedaccord.models.catalogue import build
    from fedaccord.models.layout import Layout

    network = build("mlp", {"hidden": [width]}, (1, 8, 8), labels, 0)
    layout = Layout.of(network)
    tensors, knows = dict(network.named_parameters()), torch.arange(labels) < known
    for name, own in (("own rows", True), ("whole head", False)):
        sent = Sharing(own_rows=own).outgoing(layout, {n: t.detach() for n, t in tensors.items()}, knows)
        size = encoded_size(Message(sent, {"round": 1}, {"run": "0" * 32}))
        print(f"{name:11} {known} of {labels} labels, width {width}: {size:,} bytes each way")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sites", type=int, nargs="+", default=[3, 10])
    parser.add_argument("--only", nargs="+", default=["embedded", "flower", "deployed", "bytes"])
    given = parser.parse_args()
    for sites in given.sites:
        text, digests = TEXT.format(sites=sites, rounds=given.rounds), set()
        for engine in given.only:
            if engine == "bytes" or (engine == "deployed" and sites > 5):
                continue  # with more nodes on one machine, their load dominates the result
            with tempfile.TemporaryDirectory() as place:
                folder = Path(place)
                a_round, around, digest = (
                    deployed(folder, text) if engine == "deployed" else by_command(folder, text, engine)
                )
            digests.add(digest)
            print(
                f"{sites:4} sites  {engine:9} {a_round:8.3f} s per round, {around:6.1f} s outside the rounds",
                flush=True,
            )
        print(f"{sites:4} sites  the models are {'the same' if len(digests) == 1 else 'NOT the same'}", flush=True)
    if "bytes" in given.only:
        count_bytes()


if __name__ == "__main__":
    main()
