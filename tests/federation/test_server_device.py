"""The server computes where its network is, and what it computes is the same there; its state stays on the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedaccord.config import check_experiment
from fedaccord.data.site_data import site_tensors
from fedaccord.experiment import load_federation
from fedaccord.federation.round import evaluate, play_round
from fedaccord.federation.server import Server
from fedaccord.hosting import build_host
from fedaccord.labels.views import Candidates, Tags
from fedaccord.messages.message import to_bytes
from fedaccord.methods.registry import make_recipe
from fedaccord.models.layout import Layout
from fedaccord.recording import play
from fedaccord.session import describe_host, open_server
from people import table
from pretended_device import THERE, pretended_device
from small_federation import SPACE, ScriptedEngine, cloud, exact, federation, pets_or_cattle, site, small_network

pytestmark = pytest.mark.usefixtures("one_thread")

QUICK = {"rounds": 2, "lr": 0.1, "batch": 8}
EXACT, COARSE, SETS = [exact()] * 3, [pets_or_cattle()] * 3, [Candidates(SPACE)] * 3
SOME = [exact(["cat", "dog"]), exact(["dog", "cow"])]
SERVER_STEPS = {
    "fedmt": ("fedmt", COARSE, {"warmup": 20, "threshold": 0.4}),
    "fedmt+": ("fedmt+", COARSE, {"warmup": 20, "threshold": 0.4}),
    "semifl": ("semifl", COARSE, {"threshold": 0.4}),
    "fedrep": ("fedrep", COARSE, {}),
    "fedtrans": ("fedtrans", COARSE, {}),
    "single": ("single", COARSE, {}),
    "pfedmo": ("pfedmo", EXACT, {"steps": 3}),
    "pfedmo as printed": ("pfedmo", EXACT, {"steps": 3, "rule": "printed"}),
    "representation": ("representation", EXACT, {"steps": 3}),
    "mse": ("private-labels", SOME, {"tuning": "mse"}),
    "mse of all layers": ("private-labels", SOME, {"tuning": "mse", "tune": "all", "norm": "renorm"}),
    "pairwise": ("private-labels", SOME, {"tuning": "pairwise"}),
    "balance": ("private-labels", SOME, {"tuning": "balance"}),
    "weights by features": ("pfedpll", SETS, {"steps": 3}),
    "no step of its own": ("fedavg", EXACT, {}),
}


def samples(number, seed):
    part = cloud(number, exact(), torch.Generator().manual_seed(seed))
    return part.x, part.truth


def started(method, views, settings, device=None):
    recipe = make_recipe(method, QUICK | settings)
    network = small_network(batch_norm=True)
    sites = [site(name, samples=20, view=view) for name, view in zip("abc", views, strict=False)]
    server = federation(recipe, sites, network)
    server.labelled, server.unlabelled, server.test = samples(30, 5), samples(40, 6)[0], samples(50, 7)
    if device is not None:
        server.move_to(device)
    server.ready()
    return server


def played(*asked, device=None):
    server = started(*asked, device)
    return server, [play_round(server) for _ in range(2)]


@pytest.mark.parametrize("case", SERVER_STEPS)
def test_a_round_of_a_server_on_a_device(case):
    here, told = played(*SERVER_STEPS[case])
    with pretended_device() as device:
        there, found = played(*SERVER_STEPS[case], device=device)
        kept = there.state.to_message().tensors
    assert {parameter.device for parameter in there.network.parameters()} == {THERE}
    assert {tensor.device.type for tensor in kept.values()} == {"cpu"}
    assert to_bytes(there.state.to_message()) == to_bytes(here.state.to_message())
    for ours, theirs in zip(told, found, strict=True):
        assert (ours.figures, ours.dropped) == (theirs.figures, theirs.dropped)
        assert ours.evaluation.global_ == theirs.evaluation.global_
        assert bool(ours.evaluation.global_) == here.has_full_model
        if here.has_full_model:
            assert theirs.evaluation.confusion.device.type == "cpu"
            assert torch.equal(ours.evaluation.confusion, theirs.evaluation.confusion)
    asked = [(task, name, to_bytes(brief)) for task, name, brief in here.engine.asked]
    assert asked == [(task, name, to_bytes(brief)) for task, name, brief in there.engine.asked]


def test_tags_are_judged_on_a_device():
    def figures(device=None):
        server = federation(make_recipe("fedavg", QUICK), [site("a", view=Tags(SPACE))])
        x, truth = samples(50, 7)
        server.test = x, torch.nn.functional.one_hot(truth, len(SPACE)).to(torch.int8)
        if device is not None:
            server.move_to(device)
        return evaluate(server).global_

    with pretended_device() as device:
        there = figures(device)
    assert there
    assert there == figures()


@pytest.mark.parametrize("batch_norm", [False, True])
def test_a_network_elsewhere_is_read_and_loaded_by_a_vector_here(batch_norm):
    network = small_network(batch_norm)
    layout = Layout.of(network)
    vector = layout.read(network)
    with pretended_device() as device:
        moved = network.to(device)
        layout.load(moved, vector + 1)
        again = layout.read(moved)
    assert again.device.type == "cpu"
    assert torch.equal(again, vector + 1)
    assert {parameter.device for parameter in moved.parameters()} == {THERE}


def on_device(told, device):
    """An experiment whose device is also one that the check of its file does not know."""
    experiment = check_experiment(told)
    return experiment.model_copy(update={"run": experiment.run.model_copy(update={"device": device})})


IMAGES = {
    "data": {
        "dataset": "digits",
        "samples": 80,
        "test_samples": 20,
        "partition": {"kind": "iid", "sites": 2},
        "view": {"kind": "coarse", "correspondence": {"small": list("01234"), "large": list("56789")}},
    },
    "server": {"labelled": {"per_class": 3}},
    "model": {"name": "lenet5"},
    "method": {
        "name": "fedmt",
        "rounds": 2,
        "epochs": 1,
        "warmup": 20,
        "server_epochs": 2,
        "threshold": 0.1,
        "batch": 16,
    },
}


class TestOpening:
    @pytest.mark.parametrize("kind", ["people", "images"])
    def test_a_whole_run_on_a_device(self, tmp_path, kind):
        def played(device):
            told = IMAGES if kind == "images" else table(tmp_path, rounds=2) | {"server": {"unlabelled": 40}}
            experiment = on_device(told, device)
            with open_server(experiment, load_federation(experiment, Path())) as server:
                return server, [record.evaluation for record in play(experiment, server)][-1]

        here, told = played("cpu")
        with pretended_device() as device:
            there, found = played(str(device))
        held = [*there.network.parameters(), *there.test, *(there.labelled or [there.unlabelled])]
        assert {tensor.device for tensor in held} == {THERE}
        torch.testing.assert_close(there.state.model, here.state.model)  # convolutions round differently there
        assert found.global_ == pytest.approx(told.global_)
        assert ("eod" in told.global_) == (kind == "people")

    def sites(self, folder):
        """Sites elsewhere, as a deployed server has them."""
        experiment = on_device(table(folder), "cpu")
        data = load_federation(experiment, Path())
        return data, ScriptedEngine(build_host(describe_host(experiment, data).spec, site_tensors(data.sites)))

    def test_a_server_without_a_gpu_serves_sites_that_may_have_one(self, tmp_path, monkeypatch):
        monkeypatch.setattr("torch.cuda.is_available", lambda: False)
        data, engine = self.sites(tmp_path)
        with open_server(on_device(table(tmp_path), "cuda"), data, engine=engine) as server:
            assert {parameter.device.type for parameter in server.network.parameters()} == {"cpu"}
            assert play_round(server).replied == 6
        told = "run.device is 'cuda', but torch finds no GPU at the server, which uses its CPU"
        assert server.warnings == [told]

    def test_a_server_with_a_gpu_moves_there(self, tmp_path, monkeypatch):
        monkeypatch.setattr("torch.cuda.is_available", lambda: True)
        moved = []
        monkeypatch.setattr(Server, "move_to", lambda server, device: moved.append(device))
        data, engine = self.sites(tmp_path)
        with open_server(on_device(table(tmp_path), "cuda:1"), data, engine=engine):
            assert moved == [torch.device("cuda:1")]
