"""Choosing settings from the command line: what is printed, written and kept, and a search that is cut."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from command_line import SMALL, children, command, wait_for, write

TUNED = SMALL.replace("rounds = 2", "rounds = 6   # few").replace("steps = 2", "steps = 4\nlr = 0.2  # a guess")
LR = "method.lr=1e-9,0.2"


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tune")
    write(folder, TUNED)
    return folder, command("tune", "experiment.toml", "--set", LR, "--seeds", "2", cwd=folder)


def rows(text):
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if line.startswith("│")]


def test_the_setting_that_learns_is_chosen_and_written(tuned):
    folder, done = tuned
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("2 settings x 2 seeds = 4 runs, 0 of them finished before")
    first, second = rows(done.out)
    assert (first[:2], first[4:]) == (["1", "lr=0.2"], ["2", "the file's own"])
    assert (second[:2], second[4:]) == (["2", "lr=1e-9"], ["2", ""])
    assert float(first[2]) < float(second[2])
    assert "the file's own setting is the best of those tried" in done.out
    written = (folder / "experiment.tuned.toml").read_text()
    assert written.partition("\n")[2] == TUNED
    assert written.startswith("# Settings chosen by `fedaccord tune`: lr=0.2, with nll ")
    table = json.loads((folder / "runs" / "small-tune" / "table.json").read_text())
    assert [row["setting"] for row in table["rows"]] == [{"method.lr": "0.2"}, {"method.lr": "1e-9"}]


def test_finished_runs_are_kept_and_judged_by_another_figure_without_running_again(tuned):
    folder, _ = tuned
    again = command("tune", "experiment.toml", "--set", LR, "--seeds", "2", "--by", "accuracy", cwd=folder)
    assert again.out.startswith("2 settings x 2 seeds = 4 runs, 4 of them finished before")
    assert "seed 0: finished" not in again.out
    assert [row[1] for row in rows(again.out)] == ["lr=0.2", "lr=1e-9"]
    wrong = command("tune", "experiment.toml", "--set", LR, "--seeds", "2", "--by", "acuracy", cwd=folder)
    assert (wrong.code, wrong.err.count("\n")) == (2, 1)
    assert "did you mean 'accuracy'" in wrong.err


def test_a_setting_that_fails_is_shown_and_not_chosen(tmp_path):
    """A method that trains at the server finds only at its start that the server has no labelled samples."""
    write(tmp_path, TUNED)
    options = ["--set", "method.name=fedavg,single", "--seeds", "5-5", "--workers", "1"]
    done = command("tune", "experiment.toml", *options, cwd=tmp_path)
    assert done.code == 0
    first, second = rows(done.out)
    assert first[:2] == ["1", "name=fedavg"]
    assert second[:5] == ["–", "name=single", "–", "–", "0 of 1"]
    assert second[5].startswith("failed: seed 5: the method trains on labelled samples of the server")


def test_an_interrupted_search_keeps_its_runs_and_goes_on(tmp_path):
    write(tmp_path, TUNED)
    options = ["tune", "experiment.toml", "--set", "method.lr=0.1,0.2", "--seeds", "40", "--workers", "1"]
    child = subprocess.Popen(
        [sys.executable, "-m", "fedaccord", *options],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    cells = tmp_path / "runs" / "small-tune" / "cells"
    try:
        wait_for(lambda: cells.exists() and len(list(cells.glob("*.json"))) > 1, seconds=60)
        workers = children(child.pid)
        os.killpg(child.pid, signal.SIGINT)  # as Ctrl-C in a terminal
        out, err = child.communicate(timeout=60)
    finally:
        child.kill()
        child.wait()
    assert child.returncode == 130
    assert (len(workers), any(Path(f"/proc/{pid}").exists() for pid in workers)) == (1, False)
    assert f"stopped by SIGINT; {len(list(cells.glob('*.json')))} of 80 runs are kept in runs/small-tune" in err
    assert "Traceback" not in out + err
    # A search with fewer seeds uses the runs that are there, and makes a damaged one again.
    before = {path: json.loads(path.read_text()) for path in cells.iterdir()}
    damaged = next(path for path, cell in before.items() if cell["seed"] == 0)
    damaged.write_text("{")
    again = command(*options[:5], "1", "--workers", "1", cwd=tmp_path)
    assert (again.code, again.out.count(": finished")) == (0, 1)
    assert json.loads(damaged.read_text())["result"]["figures"] == before[damaged]["result"]["figures"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--set", "method.lr=0.1"], "needs a --set with several values"),
        (["--set", LR, "--seeds", "x"], "--seeds takes a number of seeds"),
        (["--set", LR, "--out", "experiment.toml"], "exists and was not written by tune"),
        (["--set", "method.lr=1,-1"], "method.lr"),
    ],
)
def test_mistakes_are_one_sentence_and_nothing_is_written(tmp_path, options, message):
    write(tmp_path, TUNED)
    done = command("tune", "experiment.toml", *options, cwd=tmp_path)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert message in done.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["experiment.toml"]
