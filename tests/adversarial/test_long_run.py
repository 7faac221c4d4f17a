"""A long run of many sites must not grow."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest

from fedaccord.config import check_experiment
from fedaccord.experiment import load_federation
from fedaccord.recording import play
from fedaccord.session import open_server

MEGABYTE = 2**20


def resident():
    """Return the megabytes that this process and its workers hold."""
    children = Path("/proc/self/task").glob("*/children")
    pids = ["self", *(pid for file in children for pid in file.read_text().split())]
    return sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * mmap.PAGESIZE for pid in pids) / MEGABYTE


@pytest.mark.slow
def test_two_hundred_rounds_of_a_hundred_sites_take_no_more_memory_than_fifty():
    experiment = check_experiment(
        {
            "data": {"dataset": "digits", "partition": {"kind": "iid", "sites": 100}},
            "model": {"name": "mlp", "hidden": [64]},
            "method": {"name": "accord", "rounds": 200, "steps": 1},
            "run": {"workers": 1, "evaluate_every": 0},
        }
    )
    sizes = {}
    with open_server(experiment, load_federation(experiment, Path())) as server:
        for record in play(experiment, server):
            if record.round in (50, 200):
                sizes[record.round] = resident()
    assert sizes[200] - sizes[50] < 10
