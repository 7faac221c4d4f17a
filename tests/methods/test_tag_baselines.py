"""FedCurv and SphereFed: worked numbers of docs/methods.md 3.6 and 7.7, and what is sent and kept."""

import pytest
import torch
from torch import nn, tensor

from fedaccord.errors import ConfigError
from fedaccord.federation.admission import AdmitSection
from fedaccord.federation.round import play_round
from fedaccord.labels.views import Candidates, Tags
from fedaccord.methods.averaging.fedcurv import (
    CONSTANT,
    CURVATURE,
    FISHER,
    PULLED,
    Curvature,
    curvature_penalty,
    diagonal_fisher,
)
from fedaccord.methods.averaging.settings import FedCurvSettings
from fedaccord.methods.registry import make_recipe
from fedaccord.methods.tags.spherefed import SCALE, TASK
from fedaccord.models.catalogue import build
from fedaccord.models.network import Network, UnitLength
from small_federation import INPUTS, SPACE, exact, federation, pets_or_cattle, site, small_network, work_for

pytestmark = pytest.mark.usefixtures("one_thread")
WORK = {"epochs": 1, "batch": 8, "lr": 0.05, "rounds": 3}


class TestFedCurv:
    def test_worked_example(self):
        w, fisher, models = tensor([1.0, 2.0]), tensor([[1.0, 2.0], [3.0, 0.0]]), tensor([[0.0, 0.0], [1.0, 1.0]])
        constant = float((fisher * models.square()).sum())
        assert float(curvature_penalty(w, fisher.sum(0), (fisher * models).sum(0), constant)) == pytest.approx(9.0)

    @pytest.mark.parametrize("view", [exact(), exact(["cat", "dog"]), Candidates(SPACE), pets_or_cattle(), Tags(SPACE)])
    def test_the_fisher_information_is_the_mean_of_squared_slopes(self, view):
        data, network = site("a", samples=7, view=view), small_network(batch_norm=True)
        found = diagonal_fisher(network, view, data.train.x, data.train.target)
        network.eval()
        total = torch.zeros(len(found))
        for x, target in zip(data.train.x, data.train.target, strict=True):
            slopes = torch.autograd.grad(view.nll(network(x[None]), target[None]).sum(), list(network.parameters()))
            total += torch.cat([slope.reshape(-1) for slope in slopes]).square()
        torch.testing.assert_close(found, total / 7, rtol=1e-4, atol=1e-7)
        network.train()
        diagonal_fisher(network, view, data.train.x, data.train.target)
        assert network.training

    def test_a_site_is_told_the_sums_over_the_others_of_the_last_round(self):
        server = federation(make_recipe("fedcurv", WORK), [site("a"), site("b", samples=20), site("c")])
        play_round(server)
        first = [brief for task, _, brief in server.engine.asked if task == "train"]
        assert not any(CURVATURE in brief.tensors for brief in first)
        sent = {name: server.engine.replies["train", name] for name in "abc"}
        models = {name: server.flat(name, sent[name]) for name in "abc"}
        play_round(server)
        told = next(b for t, s, b in server.engine.asked if (t, s, b.numbers["round"]) == ("train", "a", 2))
        torch.testing.assert_close(told.tensors[CURVATURE], sum(sent[n].tensors[FISHER] for n in "bc"))
        torch.testing.assert_close(told.tensors[PULLED], sum(sent[n].tensors[FISHER] * models[n] for n in "bc"))
        squares = sum((sent[n].tensors[FISHER].double() * models[n].double().square()).sum() for n in "bc")
        assert told.numbers[CONSTANT] == pytest.approx(float(squares), rel=1e-5)

    def test_the_pull_is_towards_the_others_and_zero_strength_is_fedavg(self):
        sites = [site("a"), site("b", samples=20)]
        contestants = (("fedavg", {}), ("fedcurv", {"curvature": 0.0}), ("fedcurv", {"curvature": 5.0}))
        servers = [federation(make_recipe(name, WORK | more), sites) for name, more in contestants]
        for server in servers:
            for _ in range(3):
                play_round(server)
        torch.testing.assert_close(servers[0].state.model, servers[1].state.model)

        def apart(server):
            a, b = (server.flat(name, server.engine.replies["train", name]) for name in "ab")
            return float((a - b).norm())

        assert apart(servers[2]) < apart(servers[1])

    def test_a_single_site_is_not_pulled(self):
        work = work_for(site("a"), small_network())
        assert Curvature(FedCurvSettings(curvature=1.0, fisher_samples=10)).loss(work, None).item() == 0

    def test_a_negative_fisher_information_is_taken_as_none(self):
        server = federation(make_recipe("fedcurv", WORK), [site("a"), site("b")])
        server.admission = AdmitSection(norm=0)

        def hostile(reply):
            reply.tensors[FISHER] = reply.tensors[FISHER] * 0 - 1e6
            return reply

        server.engine.spoil["train", "b"] = hostile
        for _ in range(2):
            play_round(server)
        assert server.state.method.tensors[f"{FISHER}/b"].min() == 0
        assert torch.isfinite(server.state.model).all()


def sphere_network():
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return Network(nn.Sequential(nn.Linear(INPUTS, 8), UnitLength()), nn.Linear(8, len(SPACE)))


class TestSphereFed:
    def sites(self):
        return [site("a", 30, Tags(SPACE), 30), site("b", 60, Tags(SPACE), 30)]

    def played(self, rounds=3, **settings):
        server = federation(make_recipe("spherefed", WORK | settings), self.sites(), network=sphere_network())
        server.ready()
        return server, [play_round(server) for _ in range(rounds)]

    def test_features_have_length_one(self):
        network = build("sphere-mlp", {"hidden": [16, 8]}, (INPUTS,), 3, 0)
        features = network.features(torch.randn(5, INPUTS))
        torch.testing.assert_close(features.norm(dim=-1), torch.ones(5))
        assert (features < 0).any()

    def test_the_head_is_orthonormal_and_nobody_trains_it_until_the_end(self):
        server, _ = self.played(rounds=2)
        rows = server.tensors["head.weight"] / SCALE
        torch.testing.assert_close(rows @ rows.T, torch.eye(3), atol=1e-5, rtol=0)
        assert not any(task == TASK for task, _, _ in server.engine.asked)
        before = server.tensors["encoder.0.weight"].clone()
        play_round(server)
        assert not torch.equal(before, server.tensors["encoder.0.weight"])
        assert not torch.allclose(server.tensors["head.weight"] / SCALE, rows)

    def test_the_last_head_is_the_ridge_regression_of_all_sites_together(self):
        server, _ = self.played(rounds=3, ridge=0.5)
        x, y = (torch.cat(parts) for parts in zip(*((s.train.x, s.train.target) for s in self.sites()), strict=True))
        phi = server.load_network().eval().features(x).detach().double()
        solved = torch.linalg.solve(phi.T @ phi + 0.5 * torch.eye(8, dtype=torch.float64), phi.T @ y.double())
        torch.testing.assert_close(server.tensors["head.weight"].double(), SCALE * solved.T, rtol=1e-3, atol=1e-3)

    def test_it_learns(self):
        _, records = self.played(rounds=3)
        assert records[-1].evaluation.over_sites()["mean"]["map"] > 0.9

    def test_what_it_cannot_work_with_is_refused(self):
        with pytest.raises(ConfigError, match="sphere-mlp"):
            federation(make_recipe("spherefed", WORK), self.sites()).ready()
        narrow = Network(nn.Sequential(nn.Linear(INPUTS, 2), UnitLength()), nn.Linear(2, len(SPACE)))
        with pytest.raises(ConfigError, match="at least as many features as tags"):
            federation(make_recipe("spherefed", WORK), self.sites(), network=narrow).ready()
        with pytest.raises(ConfigError, match="needs sites with tags"):
            federation(make_recipe("spherefed", WORK), [site("a")], network=sphere_network()).ready()
