"""A run that is not finished, as its folder tells it at any moment."""

import json
import shutil

import pytest

from command_line import SMALL, command, write
from fedaccord.config import parse_experiment
from fedaccord.experiment import run_experiment
from fedaccord.runs.folder import FolderLock, RunFolder, is_locked
from fedaccord.runs.progress import read_any_run, read_progress


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("progress") / "run"
    run = RunFolder(folder)
    run_experiment(parse_experiment(SMALL, ["method.rounds=3"]), folder.parent, run)
    run.close()
    return folder


@pytest.fixture
def without(finished, tmp_path):
    """Copy the folder as it was at an earlier moment: without some files, and up to a round."""

    def copy(*files, last=3):
        folder = shutil.copytree(finished, tmp_path / "run")
        for name in ("summary.json", "report.html", *files):
            (folder / name).unlink()
        if (metrics := folder / "metrics.jsonl").exists():
            kept = [line for line in metrics.read_text().splitlines(True) if json.loads(line)["round"] <= last]
            metrics.write_text("".join(kept))
        return folder

    return copy


def test_after_its_last_round_it_has_the_figures_of_the_summary(finished, without):
    """A run that was killed just before it wrote its summary."""
    run, whole = read_any_run(without()), read_any_run(finished)
    assert run.progress.startswith("Round 3 of 3, cut off; ")
    assert whole.progress == ""
    for name in ("name", "method", "engine", "seed", "rounds", "final", "best", "dropped", "warnings"):
        assert getattr(run.summary, name) == getattr(whole.summary, name), name


def test_the_figures_are_those_of_the_last_recorded_round(without):
    run = read_any_run(without(last=2))
    (line,) = (line for line in run.of("global") if line.round == 2)
    assert (run.summary.rounds, run.summary.final.overall) == (2, line.metrics)
    assert run.summary.best.round in (1, 2)


@pytest.mark.parametrize("gone", [["metrics.jsonl"], ["metrics.jsonl", "federation.json"]])
def test_before_its_first_round_it_has_a_report_that_says_so(without, gone, tmp_path):
    folder = without(*gone)
    lock = FolderLock(folder)
    done = command("report", folder, cwd=tmp_path)
    lock.release()
    assert (done.code, done.err) == (0, "note: Round 0 of 3, running: no round is finished yet.\n")
    assert "no round is finished yet" in (folder / "report.html").read_text()


def test_the_state_follows_the_lock(finished, without):
    folder = without(last=1)
    assert str(read_progress(folder)) == "round 1 of 3, cut"
    lock = FolderLock(folder)
    assert is_locked(folder)
    assert str(read_progress(folder)) == "round 1 of 3, running"
    lock.release()
    assert not is_locked(folder)
    assert str(read_progress(finished)) == "round 3 of 3, finished"


@pytest.mark.parametrize(
    ("key", "told"), [("in_memory", "its samples were only in memory"), ("deployed", "continue it with run.sh")]
)
def test_the_way_on_is_that_of_the_run(without, key, told):
    folder = without(last=1)
    run = json.loads((folder / "run.json").read_text())
    write(folder, json.dumps(run | {key: True}), "run.json")
    assert told in read_progress(folder).in_words()
    assert "fedaccord resume" not in read_progress(folder).in_words()


def test_a_resumed_run_replaces_the_report_of_its_cut(without, tmp_path):
    folder = without(last=1)
    assert command("report", folder, cwd=tmp_path).code == 0
    page = (folder / "report.html").read_text()
    assert "cut off" in page
    assert "The model is examined on test rows at the end of the run." in page
    assert command("resume", folder, cwd=tmp_path).code == 0
    assert "cut off" not in (folder / "report.html").read_text()
