"""The model does not depend on where sites run, on how many workers there are, or on the order of the sites.

Compared bit for bit: the digest of the global model, what the sites keep, and every figure.
"""

from __future__ import annotations

import functools
import json

import numpy as np
import pytest
import torch

from command_line import blobs, checkpoint
from fedaccord.config import parse_experiment
from fedaccord.experiment import run_experiment
from fedaccord.runs.checkpoint import read_checkpoint
from fedaccord.runs.folder import RunFolder
from pace import mostly_slow

FOUR_VIEWS = """
seed = 3

[data]
dataset = "digits"
samples = 260
partition = { kind = "quantity", sizes = [70, 60, 50, 40, 30] }
names = ["exact", "some", "groups", "crowd", "mute"]

[data.views]
some = { known = ["1", "3", "5", "7"] }
groups = { kind = "coarse", correspondence = "shape" }
crowd = { kind = "candidates", generate = "uniform" }
mute = { kind = "unlabelled" }

[method]
rounds = 2
steps = 3
batch = 16
"""
LENET = '[model]\nname = "lenet5"\n'  # convolutions, in channels_last
MLP = "[model]\nhidden = [16]\n"
METHODS = {
    "fedavg": (LENET, "softmax='view'"),
    "fedprox": (MLP, "mu=0.1"),
    "scaffold": (LENET, "aggregation='median'"),
    "accord": (LENET, "prior='all'"),
    "local": (MLP, "prior='exact-sites'"),
    "pfedmo": (MLP + "[server]\nlabelled = { per_class = 4 }\n", "rule='reversed'"),
    "mime": (LENET, "beta=0.5"),
    "pfedpll": (LENET + "[server]\nunlabelled = 40\n", "score='kl'"),
}


class Finished:
    """What a run left behind."""

    def __init__(self, folder, summary):
        self.summary = summary
        self.digest = summary["model_sha256"]
        self.state, self.memories = read_checkpoint(checkpoint(folder, summary["rounds"]))
        self.metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        for line in self.metrics:
            line.pop("seconds", None)


def carry_out(folder, text, *changes, base=None):
    run = RunFolder(folder)
    try:
        return Finished(folder, run_experiment(parse_experiment(text, changes), base or folder, run))
    finally:
        run.close()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Each method with each number of workers, run once."""

    @functools.cache
    def run(method, workers):
        model, setting = METHODS[method]
        changes = [f"method.name={method}", f"method.{setting}", f"run.workers={workers}"]
        return carry_out(tmp_path_factory.mktemp(f"{method}-{workers}"), FOUR_VIEWS + model, *changes)

    return run


@pytest.mark.parametrize("workers", mostly_slow([1, 2], 2))
@pytest.mark.parametrize("method", mostly_slow(METHODS, "fedavg", "accord", "pfedpll"))
class TestWorkers:
    def test_the_global_model_is_the_same(self, finished, method, workers):
        here, there = finished(method, 0), finished(method, workers)
        assert (here.summary["workers"], there.summary["workers"]) == (0, workers)
        assert here.digest == there.digest
        assert torch.equal(here.state.tensors["model"], there.state.tensors["model"])

    def test_what_the_sites_keep_is_the_same(self, finished, method, workers):
        here, there = finished(method, 0).memories, finished(method, workers).memories
        assert list(here) == list(there)
        for site, kept in here.items():
            assert list(kept.tensors) == list(there[site].tensors)
            assert all(torch.equal(tensor, there[site].tensors[name]) for name, tensor in kept.tensors.items())
            assert (kept.numbers, kept.words) == (there[site].numbers, there[site].words)

    def test_the_figures_are_the_same(self, finished, method, workers):
        here, there = finished(method, 0), finished(method, workers)
        assert here.metrics == there.metrics
        assert here.summary["final"] == there.summary["final"]
        assert here.summary["best"] == there.summary["best"]


def test_the_runs_that_are_compared_did_something(finished):
    digests = [finished(method, 0).digest for method in METHODS]
    assert len(set(digests)) == len(METHODS)
    assert all(finished(method, 0).summary["dropped"] == 0 for method in METHODS)
    trained = ["crowd", "exact", "groups", "some"]
    assert list(finished("local", 0).memories) == trained
    assert "personal/head.weight" in finished("local", 0).memories["some"].tensors
    assert set(finished("accord", 0).memories) >= set(trained)
    assert "prior" in finished("accord", 0).memories["groups"].tensors
    assert "prior" not in finished("local", 0).memories["groups"].tensors
    assert finished("fedavg", 0).memories == {}
    kept = finished("pfedpll", 0).memories["crowd"].tensors
    assert {"confidences", "personal/personal.weight", "personal/head.weight"} <= kept.keys()


MANY = """
seed = 2

[data]
dataset = "digits"
samples = 600
partition = { kind = "dirichlet", sites = 14, alpha = 0.5 }
view = { kind = "candidates", generate = "uniform" }

[model]
hidden = [16]

[method]
rounds = 2
steps = 4
batch = 16
participation = 12

[run]
evaluate_every = 0
batched = "always"
"""


class TestCohorts:
    """Sites that train as one program: who trains with whom does not depend on the workers either."""

    ASKED = {
        "accord": ["method.name=accord"],
        "pfedpll": ["method.name=pfedpll", "method.score=samples"],
        "scaffold": ["method.name=scaffold", "method.softmax=view"],
        "fednag": ["method.name=fednag", "method.softmax=view"],
        "mime": ["method.name=mime", "method.softmax=view"],
        "fedavg": ["method.name=fedavg", "method.softmax=view"],  # its cohorts hand over their means
        "fedharmony+": [
            "method.name=fedharmony+",
            'data.view={ kind = "tags" }',
            "method.optimiser=adam",
            "data.dataset=tags.npz",
        ],
    }

    @pytest.fixture(autouse=True)
    def tags(self, tmp_path):
        x, y = blobs(700, classes=4, seed=2)
        tags = np.stack([y == 0, y < 2, y % 2 == 0, y > 1], 1).astype(np.int8)
        np.savez(tmp_path / "tags.npz", X=x, Y=tags, label_names=["one", "low", "even", "high"])

    @pytest.mark.parametrize("method", mostly_slow(["pfedpll", "mime", "fedavg", "fedharmony+"], "fedavg", "pfedpll"))
    def test_the_model_and_what_sites_keep_are_the_same(self, tmp_path, method):
        one, other = (
            carry_out(tmp_path / str(n), MANY, *self.ASKED[method], f"run.workers={n}", base=tmp_path) for n in (0, 3)
        )
        assert one.digest == other.digest
        assert list(one.memories) == list(other.memories)
        for site, kept in one.memories.items():
            assert all(torch.equal(t, other.memories[site].tensors[name]) for name, t in kept.tensors.items())

    @pytest.mark.parametrize(("method", "how"), [*((method, "always") for method in ASKED), ("fedavg", "whole")])
    def test_it_is_that_of_sites_one_by_one_but_for_rounding(self, tmp_path, method, how):
        asked = [*self.ASKED[method], "run.workers=0"]
        together, apart = (
            carry_out(tmp_path / way, MANY, *asked, f"run.batched={way}", base=tmp_path) for way in (how, "never")
        )
        assert together.summary["dropped"] == apart.summary["dropped"] == 0
        assert together.digest != apart.digest  # so it was not site by site
        torch.testing.assert_close(together.state.tensors["model"], apart.state.tensors["model"], rtol=1e-4, atol=1e-5)


class TestOrderOfSites:
    NAMES = {"b": ["ant", "bee", "cat"], "a": ["cat", "dog", "ant"], "c": ["small", "large"]}
    GROUPS = 'view = { kind = "coarse", correspondence = { small = ["ant", "bee"], large = ["cat", "dog"] } }'
    TAIL = "[model]\nhidden = [8]\n[method]\nrounds = 3\nsteps = 3\nparticipation = 2\n[run]\nworkers = 0\n"

    @pytest.fixture
    def text(self, tmp_path):
        for seed, (name, labels) in enumerate(self.NAMES.items()):
            x, y = blobs(40 + seed, classes=len(labels), seed=seed)
            np.savez(tmp_path / f"{name}.npz", x=x, y=y, label_names=np.array(labels))
        x, y = blobs(20, seed=9)
        np.savez(tmp_path / "test.npz", x=x, y=y, label_names=np.array(["ant", "bee", "cat"]))

        def text(order):
            parts = [f'[[sites]]\nname = "{n}"\ndata = "{n}.npz"\n' + self.GROUPS * (n == "c") + "\n" for n in order]
            return '[server]\ntest = "test.npz"\n' + "".join(parts) + self.TAIL

        return text

    @pytest.mark.parametrize("method", ["accord", "fedavg", "pooled"])
    def test_it_changes_nothing(self, tmp_path, text, method):
        alone = {"pooled": ["method.labels=views", "method.participation=1.0"]}
        changes = [f"method.name={method}", *alone.get(method, [])]
        one, other, third = (
            carry_out(tmp_path / order, text(order), *changes, base=tmp_path) for order in ("abc", "cba", "bca")
        )
        assert one.digest == other.digest == third.digest
        assert one.metrics == other.metrics == third.metrics
        assert one.summary["final"] == other.summary["final"] == third.summary["final"]
        assert one.summary["final"]["global"]["accuracy"] > 0.3

    def test_another_name_does(self, tmp_path, text):
        # Streams are derived from names, so the test above would fail if names and files were mixed up.
        one = carry_out(tmp_path / "one", text("abc"), base=tmp_path)
        other = carry_out(tmp_path / "other", text("abc").replace('name = "a"', 'name = "z"'), base=tmp_path)
        assert one.digest != other.digest
