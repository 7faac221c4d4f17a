"""Runs that end before their last round: why is told everywhere, and what can go on does."""

from __future__ import annotations

import json
import shutil
import signal
import time
import tomllib

import pytest

from command_line import SMALL, command, write
from fedaccord.runs.checkpoint import read_checkpoint


def read(run):
    return json.loads((run / "summary.json").read_text())


def lines(run, scope):
    texts = (run / "metrics.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, texts) if line["scope"] == scope]


REASON = "sites.mean.accuracy did not improve in 2 evaluations"


@pytest.fixture(scope="module")
def still(tmp_path_factory):
    """A run whose learning rate is too small to change any prediction: accuracy stands still from the beginning."""
    folder = tmp_path_factory.mktemp("still")
    changes = ["method.rounds=30", "method.lr=1e-9", "stop.metric=sites.mean.accuracy", "stop.patience=2"]
    options = [part for change in changes for part in ("--set", change)]
    done = command("run", write(folder, SMALL), *options, "--out", "out", cwd=folder)
    assert (done.code, done.err) == (0, "")
    return folder / "out", done.out


class TestAFigureThatNoLongerImproves:
    def test_the_run_ends(self, still):
        run, _ = still
        summary = read(run)
        assert (summary["rounds"], summary["stopped"]) == (3, REASON)
        assert [path.name for path in (run / "checkpoints").iterdir()] == ["round-000003.checkpoint"]
        assert {line["round"] for line in lines(run, "confusion")} == {3}

    def test_it_is_told(self, still):
        folder, out = still
        assert f"small (fedavg): stopped early, after round 3 of 30: {REASON}" in out.splitlines()
        assert f"stopped early, after round 3 of 30: {REASON}" in (folder / "log.txt").read_text()
        assert f"stopped early: {REASON}" in (folder / "report.html").read_text()

    def test_a_cut_after_the_stop_plays_no_further_round(self, still, tmp_path):
        run, _ = still
        again = shutil.copytree(run, tmp_path / "again")
        (again / "summary.json").unlink()
        assert command("resume", "again", cwd=tmp_path).code == 0
        assert read(again) | {"seconds": 0} == read(run) | {"seconds": 0}
        told, before = ([line["round"] for line in lines(folder, "round")] for folder in (again, run))
        assert told == before == [1, 2, 3]

    def test_a_figure_that_improves_does_not_end_it(self, tmp_path):
        changes = ["method.rounds=6", "stop.metric=global.nll", "stop.patience=2"]
        options = [part for change in changes for part in ("--set", change)]
        assert command("run", write(tmp_path, SMALL), *options, "--out", "out", cwd=tmp_path).code == 0
        assert (read(tmp_path / "out")["rounds"], read(tmp_path / "out")["stopped"]) == (6, None)
        assert "stopped early" not in (tmp_path / "out" / "report.html").read_text()


class TestATimeBudget:
    def test_the_last_model_is_judged_also_between_evaluations(self, tmp_path):
        changes = ["method.rounds=30", "stop.seconds=1e-6", "run.evaluate_every=10"]
        options = [part for change in changes for part in ("--set", change)]
        done = command("run", write(tmp_path, SMALL), *options, "--out", "out", cwd=tmp_path)
        assert (done.code, done.err) == (0, "")
        run = tmp_path / "out"
        reason = "the time budget of 1e-06 s is used up"
        assert (read(run)["rounds"], read(run)["stopped"]) == (1, reason)
        assert read(run)["final"]["global"]["accuracy"] > 0
        assert [line["round"] for line in lines(run, "global")] == [1]
        # Only the checkpoint knows why: by the clock alone nobody could tell any more.
        state, _ = read_checkpoint(run / "checkpoints" / "round-000001.checkpoint")
        assert state.words["stopped"] == reason
        config = (run / "config.toml").read_text().replace("seconds = 1e-06", "seconds = 1e6")
        (run / "config.toml").write_text(config)
        before = read(run)
        (run / "summary.json").unlink()
        assert command("resume", "out", cwd=tmp_path).code == 0
        assert read(run) | {"seconds": 0} == before | {"seconds": 0}

    def test_without_evaluations(self, tmp_path):
        changes = ["method.rounds=30", "stop.seconds=1e-6", "run.evaluate_every=0"]
        options = [part for change in changes for part in ("--set", change)]
        assert command("run", write(tmp_path, SMALL), *options, "--out", "out", cwd=tmp_path).code == 0
        assert read(tmp_path / "out")["rounds"] == 1


class TestWrongMetrics:
    @pytest.mark.parametrize(
        ("metric", "said"),
        [
            ("accuracy", "'accuracy' does not say whose figure it is; did you mean 'global.accuracy'?"),
            ("site.mean.nll", "'site.mean.nll' does not say whose figure it is; did you mean 'sites.mean.nll'?"),
            ("sites.std.nll", "'sites.std.nll' does not say whose figure it is; did you mean 'sites.median.nll'?"),
        ],
    )
    def test_a_name_of_the_wrong_form(self, tmp_path, metric, said):
        path = write(tmp_path, SMALL)
        done = command("run", path, "--set", f"stop.metric={metric}", cwd=tmp_path)
        assert (done.code, done.err) == (2, f"error: {path}: stop.metric: {said}\n")
        assert not (tmp_path / "runs").exists()

    def test_a_figure_that_nobody_measures(self, tmp_path):
        path = write(tmp_path, SMALL)
        options = ["--set", "stop.metric=sites.mean.acuracy", "--set", "method.rounds=100000"]
        done = command("run", path, *options, "--out", "out", cwd=tmp_path)
        assert done.code == 2
        assert done.err == (
            "error: stop.metric: unknown metric 'sites.mean.acuracy'; did you mean 'sites.mean.accuracy'?\n"
        )
        assert not (tmp_path / "out").exists()  # so that the next try finds its folder free

    def test_nothing_is_measured(self, tmp_path):
        path = write(tmp_path, SMALL)
        options = ["--set", "stop.metric=global.nll", "--set", "run.evaluate_every=0"]
        done = command("run", path, *options, cwd=tmp_path)
        assert done.code == 2
        assert done.err == (
            f"error: {path}: stop.metric is 'global.nll', but run.evaluate_every = 0 means that nothing is measured\n"
        )

    @pytest.mark.parametrize("early", ["stop.metric=global.nll", "stop.seconds=60"])
    @pytest.mark.parametrize(
        ("method", "late"),
        [
            (["name=private-labels", "tuning=balance"], 'method.tuning = "balance" works'),
            (["name=fedtrans"], 'method.name = "fedtrans" trains its head'),
            (["name=spherefed"], 'method.name = "spherefed" solves for its head'),
        ],
    )
    def test_a_step_after_the_last_round_might_never_come(self, tmp_path, early, method, late):
        path = write(tmp_path, SMALL)
        options = [word for setting in method for word in ("--set", f"method.{setting}")]
        done = command("run", path, *options, "--set", early, cwd=tmp_path)
        assert done.code == 2
        key = early.partition("=")[0]
        said = f"{key} may end the run early, but {late} only after the last round; leave one of them out\n"
        assert done.err == f"error: {path}: {said}"
        assert not (tmp_path / "runs").exists()


class TestSignals:
    @pytest.mark.parametrize(
        ("number", "workers", "code"),
        [
            pytest.param(signal.SIGTERM, 1, 143, marks=pytest.mark.slow),
            (signal.SIGTERM, 0, 143),
            (signal.SIGINT, 0, 130),
        ],
        ids=str,
    )
    def test_a_stopped_run_keeps_what_it_has(self, nursery, tmp_path, number, workers, code):
        options = ["--set", "method.rounds=60", "--set", "run.checkpoint_every=0", "--workers", workers]
        write(tmp_path, SMALL)
        at = (int(number), str(tmp_path / "cut" / "metrics.jsonl"), 12)
        life = nursery.live("run", "experiment.toml", *options, "--out", "cut", cwd=tmp_path, signal=at)
        assert life.code == code
        assert life.err == f"stopped by {number.name}; go on with: fedaccord resume cut --trust mortal\n"
        end = time.monotonic() + 10
        while nursery.left_over():
            assert time.monotonic() < end, "a process was left"
            time.sleep(0.05)
        run = tmp_path / "cut"
        (path,) = (run / "checkpoints").iterdir()
        state, _ = read_checkpoint(path)
        finished = max(line["round"] for line in lines(run, "round"))
        assert state.numbers["round"] == finished
        assert 2 <= finished < 60
        assert f"stopped by {number.name} after round {finished}" in (run / "log.txt").read_text()
        assert not (run / "summary.json").exists()
        life = nursery.live("resume", "cut", "--workers", "0", cwd=tmp_path)
        assert (life.code, life.err) == (0, "")
        assert f"resumed after round {finished}" in life.out
        assert nursery.live("run", "experiment.toml", *options[:4], "--out", "whole", cwd=tmp_path).code == 0
        for key in ("model_sha256", "rounds", "final", "best", "stopped"):
            assert read(run)[key] == read(tmp_path / "whole")[key]

    def test_before_the_first_round(self, nursery, tmp_path):
        write(tmp_path, SMALL)
        at = (int(signal.SIGTERM), str(tmp_path / "cut" / "log.txt"), 1)
        life = nursery.live("run", "experiment.toml", "--workers", "1", "--out", "cut", cwd=tmp_path, signal=at)
        assert life.code == 143
        assert life.err == "stopped by SIGTERM; go on with: fedaccord resume cut --trust mortal\n"
        assert tomllib.loads((tmp_path / "cut" / "config.toml").read_text())["run"]["workers"] == 1
        life = nursery.live("resume", "cut", "--workers", "0", cwd=tmp_path)
        assert (life.code, life.err) == (0, "")
        assert "no checkpoint: starts from round 1" in life.out
        assert read(tmp_path / "cut")["rounds"] == 2
