"""Whole runs of the momentum family: identities by the digest of the model, resume, personal models, public data."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from fedaccord import Exact, Federation, LabelSpace, Site
from fedaccord.config import check_experiment
from fedaccord.experiment import load_federation, resume_experiment, run_experiment
from fedaccord.runs.folder import RunFolder
from fedaccord.runs.trained_model import TrainedModel

VIEWS = {
    "crowd": {"kind": "candidates", "generate": "uniform"},
    "groups": {"kind": "coarse", "correspondence": "shape"},
    "some": {"known": ["0", "1", "2", "3", "4"]},
}


def experiment(method, views=None, **more):
    return check_experiment(
        {
            "name": "momentum",
            "seed": 4,
            "data": {
                "dataset": "digits",
                "samples": 400,
                "partition": {"kind": "quantity", "sizes": [160, 120, 80]},
                "names": ["crowd", "groups", "some"],
                "views": views or {},
            },
            "server": {"labelled": {"per_class": 6}},
            "model": {"hidden": [16]},
            "method": {"rounds": 4, "steps": 4, "lr": 0.1, "batch": 16, **method},
            "run": {"workers": 0, "checkpoint_every": 1},
            **more,
        }
    )


def run(tmp_path, name, *args, **more):
    folder = RunFolder(tmp_path / name)
    summary = run_experiment(experiment(*args, **more), tmp_path, folder)
    folder.close()
    return summary


def digest(tmp_path, name, method):
    summary = run(tmp_path, name, method, VIEWS)
    assert summary["dropped"] == 0
    return summary["model_sha256"]


class TestIdentities:
    """On sites that label in three ways."""

    def test_pi_zero_is_fednag(self, tmp_path):
        ours = digest(tmp_path, "ours", {"name": "pfedmo", "pi": 0.0})
        assert ours == digest(tmp_path, "theirs", {"name": "fednag"})
        assert ours != digest(tmp_path, "other", {"name": "pfedmo", "pi": 1.0})

    def test_the_printed_rule_without_momentum_is_fedavg(self, tmp_path):
        ours = digest(tmp_path, "ours", {"name": "pfedmo", "gamma": 0.0, "rule": "printed"})
        assert ours == digest(tmp_path, "theirs", {"name": "fedavg", "momentum": 0.0})


@pytest.mark.parametrize("name", ["pfedmo", "mime", "fastslowmo"])
def test_a_cut_run_ends_as_if_it_had_never_been_cut(tmp_path, name):
    whole = run(tmp_path, "whole", {"name": name}, VIEWS)
    again = tmp_path / "again"
    shutil.copytree(tmp_path / "whole", again)
    (again / "summary.json").unlink()
    sorted((again / "checkpoints").iterdir())[-1].unlink()  # goes on from the round before the last
    folder = RunFolder(again, reopen=True)
    resumed = resume_experiment(folder)
    folder.close()
    assert resumed["model_sha256"] == whole["model_sha256"]
    assert resumed["final"] == whole["final"]


def test_sites_predict_with_the_models_they_got_back(tmp_path):
    summary = run(tmp_path, "run", {"name": "pfedmo"})
    trained = TrainedModel.load(tmp_path / "run" / "model")
    models = [trained.network(site).head.weight for site in (None, "crowd", "groups")]
    assert not torch.equal(models[0], models[1])
    assert not torch.equal(models[1], models[2])
    made = load_federation(experiment({"name": "pfedmo"}), tmp_path)
    test = made.sites["crowd"].test
    right = (trained.network("crowd").eval()(test.x).argmax(-1) == test.truth).float().mean().item()
    assert right == pytest.approx(summary["final"]["sites"]["each"]["crowd"]["accuracy"])


def test_public_samples_are_no_site_s_and_not_tested_on(tmp_path):
    made = load_federation(experiment({"name": "pfedmo"}), tmp_path)
    parts = [made.labelled[0], *(part.x for site in made.sites.values() for part in (site.train, site.test))]
    rows = np.concatenate([part.reshape(len(part), -1).numpy() for part in parts])
    assert len(np.unique(rows, axis=0)) == len(rows) == 60 + 360
    judged = {row.numpy().tobytes() for row in made.test[0]}
    assert judged
    assert not any(row.numpy().tobytes() in judged for row in made.labelled[0])
    assert torch.bincount(made.labelled[1]).tolist() == [6] * 10


def test_equal_weights_look_at_no_sizes(tmp_path):
    equal, by_size = (
        run(tmp_path, weights, {"name": "fedavg", "weights": weights}) for weights in ("equal", "samples")
    )
    assert equal["model_sha256"] != by_size["model_sha256"]


def test_from_python_with_data_in_memory():
    space = LabelSpace(["left", "right"])
    rng = np.random.default_rng(0)

    def drawn(number):
        labels = rng.integers(0, 2, number)
        return rng.normal(size=(number, 3)) + 3 * labels[:, None] - 1.5, [space.names[c] for c in labels]

    sites = [Site(name, *drawn(40), Exact(space)) for name in ("a", "b")]
    federation = Federation(sites, test=drawn(60), labelled=drawn(20))
    result = federation.train("pfedmo", model="linear", iterations=40, steps=10, lr=0.1)
    assert result.summary["rounds"] == 4
    assert result.summary["final"]["global"]["accuracy"] > 0.9
    result.close()


def test_linear_regression_as_a_classifier(tmp_path):
    summary = run(
        tmp_path, "linear", {"name": "fednag", "loss": "squared", "rounds": 30, "lr": 0.2}, model={"name": "linear"}
    )
    assert summary["final"]["global"]["accuracy"] > 0.7
    assert Path(tmp_path / "linear" / "report.html").is_file()
