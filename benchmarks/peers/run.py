"""Compare FedAccord, other frameworks and loops written by hand on the same work, and print one table.

    python benchmarks/peers/run.py [--only fedaccord,bare] [--workloads W1,W3] [--repeat 2] [--out FILE]

Every measurement is a new process in the contestant's own environment (created by `make bench-peers`). Contestants take
turns in an order that is rotated in every repetition, so that drift of the machine's speed affects all of them. Only
the standard library and Linux are needed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from process_tree import Sampler, busy_seconds, kill_tree

HERE = Path(__file__).resolve().parent
WORKLOADS = ("W1", "W2", "W3")
REFERENCE, OURS = "bare loop, 2 processes", "FedAccord"
TINY = {"T1": "W1", "T2": "W2", "T3": "W3"}
SAME_LOSS = 1e-5


@dataclass(frozen=True)
class Contestant:
    """A framework or loop: its name, environment, script and options."""

    name: str
    environment: str
    script: str
    arguments: tuple[str, ...] = ()
    workloads: tuple[str, ...] = WORKLOADS
    threads: int = 1


DENSE = ("W1", "W3")
STACKED, POOL_FIRST = (("--loop", loop, "--processes", "2") for loop in ("stacked", "pool-first"))
CONTESTANTS = (
    Contestant(OURS, "fedaccord", "fedaccord_peer.py"),
    Contestant(REFERENCE, "fedaccord", "bare.py", ("--processes", "2")),
    Contestant("bare loop, 1 process", "fedaccord", "bare.py"),
    Contestant("bare loop, stacked clients, 2 processes", "fedaccord", "bare.py", STACKED, DENSE),
    Contestant("bare loop, pooling before ReLU, 2 processes", "fedaccord", "bare.py", POOL_FIRST, ("W2",)),
    Contestant("pfl, 2 processes", "pfl", "pfl_peer.py", ("--processes", "2")),
    Contestant("pfl, 1 process", "pfl", "pfl_peer.py"),
    Contestant("FedLab, 1 thread", "fedlab", "fedlab_peer.py"),
    Contestant("FedLab, 2 threads", "fedlab", "fedlab_peer.py", threads=2),
    Contestant("fluke, 1 thread", "fluke", "fluke_peer.py"),
    Contestant("fluke, 2 threads", "fluke", "fluke_peer.py", threads=2),
    Contestant("Flower simulation", "flower", "flower_peer.py"),
)


@dataclass
class Measured:
    """The measurements of one process."""

    rounds: list[float] = field(default_factory=list)
    ready: float = 0.0  # seconds from launch to the end of the first round, minus the median round
    loss: float = 0.0
    rss: float = 0.0  # MB, peak of the process tree; shared pages count in each process
    pss: float = 0.0  # MB, peak of the process tree; shared pages count once
    processes: int = 0
    cpu: float = 0.0  # seconds of processor time per round
    others: float = 0.0  # share of the machine used by other processes
    error: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.rounds[1:])


def python_of(environment: str, environments: Path) -> str:
    return sys.executable if environment == "fedaccord" else str(environments / environment / "bin" / "python")


def measure(contestant: Contestant, workload: str, rounds: int, environments: Path, timeout: float) -> Measured:
    """Run one contestant once, in a separate process."""
    with tempfile.TemporaryDirectory() as place:
        out = Path(place, "result.json")
        launched, busy = time.time(), busy_seconds()
        command = [
            python_of(contestant.environment, environments),
            str(HERE / contestant.script),
            *contestant.arguments,
            "--threads",
            str(contestant.threads),
            "--workload",
            workload,
            "--rounds",
            str(rounds),
            "--launched",
            repr(launched),
            "--out",
            str(out),
        ]
        threads = {"OMP_NUM_THREADS": str(contestant.threads), "PYTHONDONTWRITEBYTECODE": "1"}
        with Path(place, "log").open("w+") as log:
            options = {"env": os.environ | threads, "stdout": log, "stderr": log, "start_new_session": True}
            process = subprocess.Popen(command, **options)
            sampler = Sampler(process.pid)
            sampler.start()
            try:
                process.wait(timeout)
            except subprocess.TimeoutExpired:
                kill_tree(process.pid)
                process.wait()
            sampler.finish()
            if not out.exists():
                log.seek(0)
                return Measured(error=log.read()[-300:] or "timed out")
        output = json.loads(out.read_text())
    wall = time.time() - launched
    result = Measured(
        output["rounds"],
        loss=output["loss"],
        rss=sampler.rss / 2**20,
        pss=sampler.pss / 2**20,
        processes=sampler.processes,
    )
    result.ready = output["start"] + result.rounds[0] - result.median
    first_over = launched + output["start"] + result.rounds[0]
    result.cpu = sampler.cpu_between(first_over, first_over + sum(result.rounds[1:])) / (len(result.rounds) - 1)
    result.others = max(0.0, (busy_seconds() - busy - sampler.cpu_seconds()) / (wall * (os.cpu_count() or 1)))
    return result


def table(results: dict[tuple[str, str], list[Measured]], workload: str) -> list[str]:
    """Return the rows of one workload as Markdown."""
    good = {name: [m for m in ms if not m.error] for (w, name), ms in results.items() if w == workload}
    speed = {name: statistics.median(m.median for m in ms) for name, ms in good.items() if ms}
    expected = next((m.loss for m in good.get(REFERENCE, [])), None)
    lines = [
        f"### {workload}",
        "",
        "| contestant | s/round, each repetition | median | ratio to the reference | ratio to FedAccord | "
        "CPU s/round | start-up s | RSS MB | PSS MB | processes | held-out loss | others' CPU |",
        "|" + " --- |" * 12,
    ]
    for name, ms in good.items():
        if not ms:
            failed = results[workload, name][0].error.strip().splitlines()
            lines.append(f"| {name} | failed: {(failed or ['?'])[-1][:60]} |" + " |" * 10)
            continue
        same = expected is None or all(abs(m.loss - expected) < SAME_LOSS for m in ms)
        lines.append(
            f"| {name} | {', '.join(f'{m.median:.3f}' for m in ms)} | **{speed[name]:.3f}** "
            f"| {_ratio(speed, name, REFERENCE)} | {_ratio(speed, name, OURS)} "
            f"| {statistics.median(m.cpu for m in ms):.3f} | {statistics.median(m.ready for m in ms):.1f} "
            f"| {max(m.rss for m in ms):.0f} | {max(m.pss for m in ms):.0f} | {max(m.processes for m in ms)} "
            f"| {ms[-1].loss:.5f}{'' if same else ' DIFFERS'} | {max(m.others for m in ms):.0%} |"
        )
    return [*lines, ""]


def _ratio(speed: dict[str, float], name: str, other: str) -> str:
    return f"{speed[name] / speed[other]:.2f}" if other in speed else "-"


def machine() -> str:
    """Describe the machine and the time of the measurement."""
    model = next(
        (
            line.split(":")[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    return f"{os.cpu_count()} x {model}, Linux {platform.release()}, {time.strftime('%Y-%m-%d %H:%M')}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environments", type=Path, default=HERE.parents[1] / ".peers")
    parser.add_argument("--only", default="", help="prefixes of contestants' names, separated by commas")
    parser.add_argument(
        "--workloads", default=",".join(WORKLOADS), help="separated by commas; T1, T2 and T3 are tiny ones"
    )
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=11, help="rounds of each process; the first is a warm-up")
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds allowed for one process")
    parser.add_argument("--out", type=Path, default=None, help="write the table to this Markdown file")
    given = parser.parse_args()
    wanted = tuple(name.strip().lower() for name in given.only.split(","))
    chosen = [c for c in CONTESTANTS if c.name.lower().startswith(wanted)]
    results: dict[tuple[str, str], list[Measured]] = {}
    for turn in range(given.repeat):
        for workload in given.workloads.split(","):
            taking_part = [c for c in chosen if TINY.get(workload, workload) in c.workloads]
            first = turn * len(taking_part) // given.repeat
            for contestant in taking_part:
                results.setdefault((workload, contestant.name), [])
            for contestant in taking_part[first:] + taking_part[:first]:
                measured = measure(contestant, workload, given.rounds, given.environments, given.timeout)
                results[workload, contestant.name].append(measured)
                outcome = measured.error[-200:] or f"{measured.median:.4f} s/round, ready after {measured.ready:.1f} s"
                print(f"{turn + 1} {workload} {contestant.name:32} {outcome}", file=sys.stderr, flush=True)
    lines = [machine(), ""]
    for workload in given.workloads.split(","):
        lines += table(results, workload)
    text = "\n".join(lines)
    print(text)
    if given.out is not None:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(text)


if __name__ == "__main__":
    main()
