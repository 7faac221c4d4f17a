"""Figures for TensorBoard and MLflow, read back with their own readers and held against metrics.jsonl."""

from __future__ import annotations

import json
import os
import warnings
from unittest import mock

import pytest

from command_line import SMALL, command, write
from fedaccord.runs.tracking import Tracking

NAMES = 'data.names=["Long Beach", "Long_Beach"]'


def from_tensorboard(run):
    """Return {tag: {round: value}}; a round that is there twice is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    events = EventAccumulator(str(run / "tracking" / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    found = {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    return {tag: once(pairs) for tag, pairs in found.items()}


def from_mlflow(run):
    with warnings.catch_warnings(), mock.patch.dict(os.environ, MLFLOW_ALLOW_FILE_STORE="true", DO_NOT_TRACK="true"):
        warnings.simplefilter("ignore")
        from mlflow import MlflowClient

        client = MlflowClient((run / "tracking" / "mlflow").as_uri())
        (experiment,) = [e for e in client.search_experiments() if e.name != "Default"]
        (only,) = client.search_runs([experiment.experiment_id])
        assert (experiment.name, only.info.run_name, only.info.status) == ("small", "small", "FINISHED")
        found = {tag: client.get_metric_history(only.info.run_id, tag) for tag in only.data.metrics}
    return {tag: once([(metric.step, metric.value) for metric in history]) for tag, history in found.items()}


READERS = {"tensorboard": from_tensorboard, "mlflow": from_mlflow}


def once(pairs):
    assert len({step for step, _ in pairs}) == len(pairs), f"a round is there twice: {pairs}"
    return dict(pairs)


def expected(run):
    """What metrics.jsonl says, by tag and round, told in another way than the code tells it."""
    found = {}
    sites = {"Long Beach": "Long_Beach", "Long_Beach": "Long_Beach-2"}
    for text in (run / "metrics.jsonl").read_text().splitlines():
        line = json.loads(text)
        figures = {}
        if line["scope"] == "round":
            figures = {"round/loss": line["loss"], "round/replied": 2, "round/dropped": 0}
        elif line["scope"] == "global":
            figures = {"global/accuracy": line["metrics"]["accuracy"], "global/nll": line["metrics"]["nll"]}
        elif line["scope"] == "sites":
            figures = {"sites/mean/accuracy": line["mean"]["accuracy"], "sites/max/nll": line["max"]["nll"]}
        elif line["scope"] == "site":
            figures = {f"site/{sites[line['site']]}/accuracy": line["metrics"]["accuracy"]}
        elif line["scope"] == "classes":
            figures = {f"class/{name}/recall": value for name, value in line["recall"].items() if value is not None}
        for tag, value in figures.items():
            found.setdefault(tag, {})[line["round"]] = value
    return found


def assert_mirrored(run, rounds):
    wanted = expected(run)
    assert set(wanted) >= {"global/accuracy", "sites/mean/accuracy", "site/Long_Beach-2/accuracy", "class/3/recall"}
    for name, reader in READERS.items():
        found = reader(run)
        assert sorted(found["round/loss"]) == list(range(1, rounds + 1))
        assert found["seconds/train"][rounds] > 0
        for tag, values in wanted.items():
            assert found[tag] == {step: pytest.approx(value, rel=1e-6) for step, value in values.items()}, (name, tag)


def options(rounds=4):
    return [
        "--set",
        NAMES,
        "--set",
        f"method.rounds={rounds}",
        "--set",
        "run.checkpoint_every=2",
        "--track",
        "tensorboard",
        "--track",
        "mlflow",
    ]


class TestMirrors:
    def test_of_a_whole_run(self, nursery, tmp_path):
        write(tmp_path, SMALL)
        life = nursery.live("run", "experiment.toml", *options(), "--out", "run", cwd=tmp_path, offline=True)
        assert (life.code, life.err) == (0, "")
        assert_mirrored(tmp_path / "run", 4)

    def test_of_a_run_that_was_killed_twice(self, nursery, tmp_path):
        """The first time after round 3, whose figures were sent already while its checkpoint is that of round 2."""
        write(tmp_path, SMALL)
        at = ("half:metrics.jsonl", 4)
        assert nursery.live("run", "experiment.toml", *options(6), "--out", "run", cwd=tmp_path, at=at).killed
        cut = from_tensorboard(tmp_path / "run")["global/accuracy"]
        assert sorted(cut) == [1, 2, 3]
        for events in (tmp_path / "run" / "tracking" / "tensorboard").iterdir():
            events.write_bytes(events.read_bytes()[:-7])  # as if it had been killed in the middle of this write, too
        assert nursery.live("resume", "run", cwd=tmp_path, at=("half:metrics.jsonl", 3)).killed
        assert sorted(from_tensorboard(tmp_path / "run")["global/accuracy"]) == [1, 2, 3, 4]
        life = nursery.live("resume", "run", cwd=tmp_path)
        assert (life.code, life.err) == (0, "")
        assert_mirrored(tmp_path / "run", 6)

    def test_in_the_experiment_file(self, nursery, tmp_path):
        write(tmp_path, SMALL + 'track = ["tensorboard"]\n')
        assert nursery.live("run", "experiment.toml", "--out", "run", cwd=tmp_path).code == 0
        assert [path.name for path in (tmp_path / "run" / "tracking").iterdir()] == ["tensorboard"]
        assert sorted(from_tensorboard(tmp_path / "run")["global/accuracy"]) == [1, 2]

    def test_none_unless_asked_for(self, nursery, tmp_path):
        write(tmp_path, SMALL)
        hidden = ["tensorboard", "mlflow"]
        assert nursery.live("run", "experiment.toml", "--out", "run", cwd=tmp_path, hide=hidden).code == 0
        assert not (tmp_path / "run" / "tracking").exists()


class TestMistakes:
    @pytest.mark.parametrize("name", READERS)
    def test_the_extra_is_missing(self, nursery, tmp_path, name):
        write(tmp_path, SMALL)
        life = nursery.live("run", "experiment.toml", "--track", name, "--out", "run", cwd=tmp_path, hide=[name])
        assert life.code == 2
        assert life.err == (
            f"error: tracking with {name} needs the package '{name}', which is not installed; "
            f"install the extra: pip install 'fedaccord[{name}]'\n"
        )
        assert not (tmp_path / "run").exists()

    def test_an_unknown_one(self, tmp_path):
        path = write(tmp_path, SMALL)
        done = command("run", path, "--track", "tensorbord", cwd=tmp_path)
        assert (done.code, done.err) == (
            2,
            f"error: {path}: run.track[0] is 'tensorbord'; did you mean 'tensorboard'?\n",
        )


class Broken:
    def put(self, step, figures):
        raise ValueError("the disk of the mirror is gone")

    def close(self):
        raise AssertionError("it was left out before")


class Kept:
    def __init__(self):
        self.got = []

    def put(self, step, figures):
        self.got.append((step, figures))

    def close(self):
        self.got.append("closed")


def test_a_tracker_that_fails_is_left_out_and_the_run_goes_on():
    told, kept = [], Kept()
    tracking = Tracking({"broken": Broken(), "kept": kept}, told.append)
    for number in (1, 2):
        tracking.put([{"round": number, "scope": "global", "metrics": {"nll": 0.5}}])
    tracking.close()
    assert told == ["tracking with broken ended: ValueError: the disk of the mirror is gone"]
    assert kept.got == [(1, {"global/nll": 0.5}), (2, {"global/nll": 0.5}), "closed"]


def test_names_that_a_tracker_would_not_take():
    sites = ["a b", "a_b", "a/b", "..", "Zürich", "a_b"]
    lines = [{"round": 1, "scope": "site", "site": site, "metrics": {"f": i}} for i, site in enumerate(sites)]
    assert Tracking({}, print).scalars(lines) == {
        "site/a_b/f": 0,
        "site/a_b-2/f": 5,
        "site/a_b-3/f": 2,
        "site/__/f": 3,
        "site/Z_rich/f": 4,
    }
