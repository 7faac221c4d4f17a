"""A server with few labels and sites with coarse names, from the command line: run, report, predict, resume."""

from __future__ import annotations

import csv
import json
import re
import shutil

import numpy as np
import pytest
import torch

import fedaccord
from command_line import blobs, checkpoint, command, write
from fedaccord.config import load_experiment
from fedaccord.errors import DataError
from fedaccord.experiment import load_federation
from fedaccord.labels.judging import site_metrics
from fedaccord.labels.space import LabelSpace
from fedaccord.labels.views import Coarse
from fedaccord.runs.trained_model import TrainedModel

pytestmark = pytest.mark.usefixtures("one_thread")
MIXED = """
name = "mixed"

[data]
dataset = "digits"
samples = 500
partition = { kind = "iid", sites = 2 }
view = { kind = "coarse", correspondence = "shape" }

[server]
labelled = { per_class = 4 }

[model]
hidden = [32]

[method]
name = "fedmt+"
rounds = 4
lr = 0.05
warmup = 150

[run]
workers = 0
checkpoint_every = 2
"""


def lines(run, scope):
    every = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [line for line in every if line["scope"] == scope]


def run(folder, *changes, text=MIXED, out="out"):
    file = write(folder, text)
    sets = [part for change in changes for part in ("--set", change)]
    done = command("run", file, "--out", folder / out, *sets, cwd=folder)
    assert done.code == 0, done.err
    return folder / out


@pytest.fixture(scope="module")
def mixed(tmp_path_factory, one_thread):
    return run(tmp_path_factory.mktemp("mixed"))


class TestTheRunFolder:
    def test_every_round_tells_how_sure_the_sites_were_and_how_well_the_server_fits(self, mixed):
        figures = [line["figures"] for line in lines(mixed, "round")]
        assert len(figures) == 4
        assert all(0 < f["confident"] <= 1 and f["server_accuracy"] > 0.8 for f in figures)
        means = [line["mean"] for line in lines(mixed, "sites")]
        assert all({"accuracy", "confident", "matrix_error"} <= mean.keys() for mean in means)
        assert "matrix_change" in means[-1]

    def test_the_last_round_has_what_every_site_found(self, mixed):
        found = lines(mixed, "correspondence")
        assert [(line["round"], line["site"], line["names"]) for line in found] == [
            (4, site, ["round", "straight", "open"]) for site in ("site-0", "site-1")
        ]
        matrix = np.array(found[0]["matrix"])
        assert matrix.shape == (3, 10)
        assert np.allclose(matrix.sum(0), 1, atol=1e-3)
        assert matrix[0, [0, 6, 8]].min() > 0.5  # the round digits

    def test_the_report_draws_it(self, mixed):
        page = (mixed / "report.html").read_text()
        for said in (
            "Estimated correspondences of coarse names",
            ", estimated",
            "distance from the declared matrix",
            "Pseudo-labels",
            "confident samples of the sites",
        ):
            assert said in page

    def test_other_methods_have_no_such_parts(self, tmp_path):
        out = run(tmp_path, "method.name=single", "method.rounds=1", "method.warmup=5")
        page = (out / "report.html").read_text()
        assert "Estimated correspondences" not in page
        assert "the server's own samples, fitted" in page
        assert not json.loads((out / "summary.json").read_text())["warnings"]
        assert lines(out, "correspondence") == []

    def test_the_papers_threshold_without_a_warm_up_is_told_everywhere(self, tmp_path):
        out = run(tmp_path, "method.name=fedmt", "method.warmup=0", "method.rounds=2", "method.lr=0.001")
        said = "in all 2 rounds no sample of any site was above the threshold 0.95"
        assert any(said in warning for warning in json.loads((out / "summary.json").read_text())["warnings"])
        assert f"warning: {said}" in (out / "log.txt").read_text()
        assert f"Warning: {said}" in (out / "report.html").read_text()
        assert re.search(r"round 2: server_accuracy 0\.\d+, confident 0\n", (out / "log.txt").read_text())
        assert "the model is untrained" not in (out / "log.txt").read_text()


class TestPredictions:
    @pytest.mark.parametrize("change", ["method.estimator=em-pool", "method.estimator=counts"])
    def test_a_sites_own_answers_are_through_the_matrix_it_found(self, tmp_path, change):
        out = run(tmp_path, change, "method.rounds=2")
        model = TrainedModel.load(out)
        view = model.site("site-0").view
        (found,) = (np.array(x["matrix"]) for x in lines(out, "correspondence") if x["site"] == "site-0")
        assert np.allclose(view.matrix.numpy(), found, atol=1e-4)
        x, _ = blobs(5, features=64)
        np.savez(tmp_path / "new.npz", x=np.tanh(x).reshape(5, 1, 8, 8))
        done = command("predict", out, "new.npz", "--site", "site-0", "--answers", "own", cwd=tmp_path)
        assert done.code == 0, done.err
        with (tmp_path / "predictions.csv").open() as file:
            rows = list(csv.DictReader(file))
        assert list(rows[0])[2:] == ["round", "straight", "open"]
        command("predict", out, "new.npz", "--site", "site-0", "--out", "classes.csv", cwd=tmp_path)
        with (tmp_path / "classes.csv").open() as file:
            classes = np.array([[float(row[str(d)]) for d in range(10)] for row in csv.DictReader(file)])
        own = np.array([[float(row[name]) for name in ("round", "straight", "open")] for row in rows])
        assert np.allclose(own, classes @ view.matrix.numpy().T, atol=1e-5)

    @pytest.mark.parametrize("method", ["fedrep", "fedtrans"])
    def test_a_head_of_the_sites_own_gives_its_answers(self, tmp_path, method):
        out = run(tmp_path, f"method.name={method}", "method.rounds=3", "method.server_epochs=2", "method.warmup=0")
        experiment, base = load_experiment(out / "config.toml")
        data, model = load_federation(experiment, base), TrainedModel.load(out)
        for name, site in data.sites.items():
            answers = model.predict(site.test.x, name, "own")
            assert model.view(name, "own").answers == ("round", "straight", "open")
            told = next(x["metrics"] for x in reversed(lines(out, "site")) if x["site"] == name)
            accuracy = (answers.argmax(-1) == site.test.target).float().mean()
            assert float(accuracy) == pytest.approx(told["accuracy"])
            classes = model.predict(site.test.x, name)
            assert classes.shape[1] == 10
            through = classes @ site.view.matrix.T  # the declared one, by the server's head
            assert not torch.allclose(answers, through, atol=1e-3)

    def test_where_nobody_found_out_what_names_stand_for_own_answers_are_refused(self, tmp_path):
        out = run(tmp_path, "method.name=fedmt", "method.rounds=1", "method.warmup=0", "method.lr=0.001")
        np.savez(tmp_path / "new.npz", x=np.zeros((2, 1, 8, 8)))
        done = command("predict", out, "new.npz", "--site", "site-0", "--answers", "own", cwd=tmp_path)
        assert done.code == 2
        assert "the correspondence of site 'site-0' was not estimated" in done.err
        assert command("predict", out, "new.npz", "--site", "site-0", cwd=tmp_path).code == 0

    def test_a_stored_model_is_judged_as_the_run_judged_it(self, mixed):
        experiment, base = load_experiment(mixed / "config.toml")
        data, model = load_federation(experiment, base), TrainedModel.load(mixed)
        for name, site in data.sites.items():
            metrics, _ = site_metrics(model.site(name).view, model.logits(site.test.x, name), site.test.target, None)
            told = next(x["metrics"] for x in reversed(lines(mixed, "site")) if x["site"] == name)
            assert metrics["accuracy"] == told["accuracy"]
            assert metrics["nll"] == pytest.approx(told["nll"], rel=1e-5)


@pytest.mark.parametrize(
    "settings",
    [
        (),
        ("method.name=fedmt", "method.correspondence=learnable-average", "method.threshold=0.5"),
        ("method.name=fedmt", "method.threshold=0.5", "method.local=scaffold"),
        ("method.name=fedrep",),
        ("method.name=fedtrans", "method.server_epochs=5", "method.warmup=0"),
    ],
)
def test_a_resumed_run_ends_as_if_it_had_never_been_cut(tmp_path, settings):
    whole = run(tmp_path, *settings)
    cut = shutil.copytree(whole, tmp_path / "cut")
    (cut / "summary.json").unlink()
    checkpoint(cut, 4).unlink()
    done = command("resume", cut, cwd=tmp_path)
    assert done.code == 0, done.err
    ends = [json.loads((folder / "summary.json").read_text()) for folder in (whole, cut)]
    assert ends[0]["model_sha256"] == ends[1]["model_sha256"]
    assert ends[0]["final"] == ends[1]["final"]


NAMES = """
name = "names"

[labels]
classes = ["a", "b", "c"]

[server]
labelled = "few.csv"
label = "y"

[model]
hidden = [16]

[method]
name = "accord"
rounds = 4
lr = 0.3

[run]
workers = 0
checkpoint_every = 2
"""


def test_accord_finds_out_what_names_stand_for_resumes_and_answers_in_them(tmp_path):
    x, y = blobs(300)
    table = "[[sites]]\nname = '{0}'\ndata = '{0}.csv'\nlabel = 'y'\nview = {{ kind = 'coarse', names = ['ab', 'c'] }}"
    parts = {"one": (slice(0, 120), ["ab", "ab", "c"]), "two": (slice(120, 240), ["ab", "ab", "c"])}
    parts |= {"few": (slice(240, 264), ["a", "b", "c"]), "new": (slice(264, 300), ["ab", "ab", "c"])}
    for name, (rows, words) in parts.items():
        lines_of = [",".join([*map(str, row), words[k]]) for row, k in zip(x[rows], y[rows], strict=True)]
        header = ",".join([*(f"f{i}" for i in range(x.shape[1])), "y"])
        (tmp_path / f"{name}.csv").write_text("\n".join([header, *lines_of]) + "\n")
    whole = run(tmp_path, text="\n".join([NAMES, table.format("one"), table.format("two"), ""]))
    (one, two) = (np.array(line["matrix"]) for line in lines(whole, "correspondence"))
    assert np.allclose(one, two)
    assert np.abs(one - [[1, 1, 0], [0, 0, 1]]).max() < 0.3
    done = command("predict", whole, "new.csv", "--site", "one", "--answers", "own", cwd=tmp_path)
    assert done.code == 0, done.err
    with (tmp_path / "predictions.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0])[2:] == ["ab", "c"]
    right = [(float(row["c"]) > 0.5) == (k == 2) for row, k in zip(rows, y[264:], strict=True)]
    assert np.mean(right) > 0.9
    cut = shutil.copytree(whole, tmp_path / "cut")
    (cut / "summary.json").unlink()
    checkpoint(cut, 4).unlink()
    assert command("resume", cut, cwd=tmp_path).code == 0
    ends = [json.loads((folder / "summary.json").read_text()) for folder in (whole, cut)]
    assert ends[0]["model_sha256"] == ends[1]["model_sha256"]
    assert ends[0]["final"] == ends[1]["final"]


@pytest.mark.slow
def test_workers_change_nothing(tmp_path):
    ends = []
    for workers in (0, 2):
        out = run(tmp_path, "method.rounds=2", "method.participation=1", f"run.workers={workers}", out=f"w{workers}")
        summary = json.loads((out / "summary.json").read_text())
        ends.append((summary["model_sha256"], summary["final"]))
    assert ends[0] == ends[1]


def test_from_python_with_names_alone():
    space = LabelSpace(["a", "b", "c"])
    x, y = blobs(240)
    names = np.array(["ab", "ab", "c"])
    view = Coarse(space, names=["ab", "c"])
    sites = [fedaccord.Site(f"s{i}", x[i::2][:100], names[y[i::2][:100]], view) for i in (0, 1)]
    few, test = (slice(200, 212), slice(212, 240))
    federation = fedaccord.Federation(
        sites, test=(x[test], [space.names[k] for k in y[test]]), labelled=(x[few], [space.names[k] for k in y[few]])
    )
    result = federation.train("fedmt+", rounds=4, lr=0.05, warmup=60)
    assert result.summary["final"]["global"]["accuracy"] > 0.9
    assert result.summary["final"]["sites"]["mean"]["accuracy"] > 0.9
    found = result.trained.site("s0").view.matrix
    assert found[0, :2].min() > 0.7
    assert found[1, 2] > 0.7
    with pytest.raises(DataError, match="labelled: there are 12 samples but 3 class names"):
        fedaccord.Federation(sites, labelled=(x[few], list(space.names))).train("fedmt+", rounds=1)
