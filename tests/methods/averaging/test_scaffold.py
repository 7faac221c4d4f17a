"""SCAFFOLD between server and sites: the worked example, rows of private labels, partial participation, resume."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from fedaccord.federation.membership import Membership
from fedaccord.federation.round import play_round
from fedaccord.methods.averaging.recipe import fedavg, fedprox
from fedaccord.methods.averaging.scaffold import scaffold
from fedaccord.methods.averaging.settings import FedProxSettings, ScaffoldSettings
from fedaccord.methods.private_labels.recipe import private_labels
from fedaccord.methods.private_labels.settings import PrivateLabelsSettings
from fedaccord.methods.shared_settings import ClassicSettings
from small_federation import Parabolas, exact, federation, site, small_network, whole_and_resumed, zero_network

pytestmark = pytest.mark.usefixtures("one_thread")


def parabolas(recipe, views=(None, None)):
    recipe = dataclasses.replace(recipe, objective=Parabolas())
    return federation(recipe, [site(n, view=v) for n, v in zip("ab", views, strict=True)], zero_network())


STEPS = {"rounds": 3, "steps": 2, "lr": 0.1, "batch": 4}


def classic(**settings):
    return scaffold(ScaffoldSettings(**STEPS | settings))


def private(**settings):
    return private_labels(PrivateLabelsSettings(local="scaffold", **STEPS | settings))


def control(server):
    return server.state.method.tensors["control"]


class TestWorkedExample:
    def test_two_rounds(self):
        server = parabolas(classic())
        for expected in (-0.225, -0.38775):
            play_round(server)
            assert server.state.model.tolist() == pytest.approx([expected] * server.layout.size, abs=1e-6)

    def test_the_controls_by_hand(self):
        """From 0, site a steps to 0.1 and 0.19, site b to -0.4 and -0.64: mean gradients -0.95 and 3.2."""
        server = parabolas(classic())
        play_round(server)
        assert control(server)[0].item() == pytest.approx((-0.95 + 3.2) / 2)
        kept = [server.engine.kept[name].tensors["control/head.bias"] for name in "ab"]
        assert [c[0].item() for c in kept] == pytest.approx([-0.95, 3.2])

    def test_it_is_not_fedavg(self):
        server = parabolas(fedavg(ClassicSettings(**STEPS, momentum=0)))
        for _ in range(2):
            play_round(server)
        assert server.state.model[0].item() == pytest.approx(-0.356625, abs=1e-6)

    def test_the_server_may_go_further(self):
        server = parabolas(classic(server_lr=2.0))
        play_round(server)
        assert server.state.model[0].item() == pytest.approx(-0.45)

    def test_unequal_sites_count_by_their_samples(self):
        recipe = dataclasses.replace(classic(), objective=Parabolas())
        server = federation(recipe, [site("a", samples=24), site("b", samples=8)], zero_network())
        play_round(server)
        assert server.state.model[0].item() == pytest.approx(0.75 * 0.19 + 0.25 * -0.64)
        assert control(server)[0].item() == pytest.approx(0.75 * -0.95 + 0.25 * 3.2, abs=1e-6)

    @pytest.mark.parametrize("asked", [1, 2])
    def test_equal_sites_count_alike_however_many_reply(self, asked):
        recipe = dataclasses.replace(classic(weights="equal", participation=asked), objective=Parabolas())
        server = federation(recipe, [site("a", samples=24), site("b", samples=8)], zero_network())
        first, *_ = play_round(server).asked
        alone = {"a": -0.95, "b": 3.2}[first]
        assert control(server)[0].item() == pytest.approx(alone / 2 if asked == 1 else (-0.95 + 3.2) / 2, abs=1e-6)


class TestPrivateRows:
    """Site a knows cats and dogs, b dogs and cows: cats and cows have one owner, the rest has two."""

    VIEWS = (exact(["cat", "dog"]), exact(["dog", "cow"]))
    # One owner is corrected by nothing: plain steps of its own. Two: the worked example.
    ROUNDS = [(0.19, -0.225, -0.64), (0.3439, -0.38775, -0.8704)]

    @pytest.mark.parametrize("rows", ["known", "dense"])
    def test_each_row_is_corrected_among_its_owners(self, rows):
        server = parabolas(private(rows=rows), self.VIEWS)
        for expected in self.ROUNDS:
            play_round(server)
            values = server.layout.named(server.state.model)
            assert values["head.bias"].tolist() == pytest.approx(expected, abs=1e-6)
            assert values["head.weight"][:, 0].tolist() == pytest.approx(expected, abs=1e-6)
            assert values["encoder.0.bias"].tolist() == pytest.approx([expected[1]] * 5, abs=1e-6)

    def test_a_site_is_sent_and_sends_controls_of_its_own_rows(self):
        server = parabolas(private(), self.VIEWS)
        for _ in range(2):
            play_round(server)
        sent = [brief for task, name, brief in server.engine.asked if (task, name) == ("train", "b")]
        assert sent[0].tensors["control/head.bias"].tolist() == [0, 0]
        assert sent[1].tensors["control/head.bias"].tolist() == pytest.approx([1.125, 3.2])  # dog, cow
        assert server.engine.replies["train", "b"].tensors["control/head.weight"].shape == (2, 5)
        assert server.engine.kept["b"].tensors["control/head.weight"].shape == (2, 5)

    def test_a_wrong_control_is_dropped_like_a_wrong_model(self):
        server = parabolas(private(), self.VIEWS)

        def greedy(reply):
            reply.tensors["control/head.bias"] = torch.zeros(3)
            return reply

        server.engine.spoil["train", "b"] = greedy
        (drop,) = play_round(server).dropped
        assert (drop.site, drop.tensor) == ("b", "control/head.bias")

    @pytest.mark.parametrize("labels", ["public", "public_per_label"])
    def test_with_public_labels_heads_are_whole(self, labels):
        server = parabolas(private(labels=labels), self.VIEWS)
        play_round(server)
        assert server.engine.replies["train", "a"].tensors["control/head.bias"].shape == (3,)
        expected = [-0.225] * 3 if labels == "public" else self.ROUNDS[0]
        assert server.layout.named(server.state.model)["head.bias"].tolist() == pytest.approx(expected, abs=1e-6)


def real_sites(number=3):
    return [site(name, samples=10 + 4 * i) for i, name in enumerate("abc"[:number])]


def assert_only_the_first_round_is_the_same(ours, theirs):
    play_round(ours)
    play_round(theirs)
    assert torch.equal(ours.state.model, theirs.state.model)
    play_round(ours)
    play_round(theirs)
    assert not torch.allclose(ours.state.model, theirs.state.model, atol=1e-5)


class TestIdentities:
    def test_zero_controls_are_plain_sgd_bit_for_bit(self):
        plain = federation(fedavg(ClassicSettings(**STEPS, momentum=0)), real_sites())
        assert_only_the_first_round_is_the_same(federation(classic(), real_sites()), plain)

    def test_one_site_is_plain_sgd(self):
        ours = federation(classic(), real_sites(1))
        theirs = federation(fedavg(ClassicSettings(**STEPS, momentum=0)), real_sites(1))
        for _ in range(3):
            play_round(ours)
            play_round(theirs)
        torch.testing.assert_close(ours.state.model, theirs.state.model, rtol=1e-5, atol=1e-6)
        assert float(control(ours).abs().max()) > 0

    def test_with_a_pull_its_first_round_is_fedprox(self):
        pulled = federation(fedprox(FedProxSettings(**STEPS, momentum=0, mu=0.5)), real_sites())
        assert_only_the_first_round_is_the_same(federation(classic(mu=0.5), real_sites()), pulled)

    def test_no_momentum_unless_it_is_given(self):
        assert ScaffoldSettings().momentum == PrivateLabelsSettings(local="scaffold").momentum == 0
        assert PrivateLabelsSettings(local="scaffold", momentum=0.5).momentum == 0.5
        assert PrivateLabelsSettings().momentum == 0.9
        again = PrivateLabelsSettings(**PrivateLabelsSettings(local="scaffold", momentum=0.5).model_dump())
        assert again.momentum == 0.5

    def test_batch_norm_statistics_have_no_control(self):
        server = federation(classic(server_lr=1.5), real_sites(), small_network(batch_norm=True))
        for _ in range(3):
            assert play_round(server).dropped == []
        assert float(control(server)[~server.layout.trainable_mask()].abs().max()) == 0
        assert bool((server.layout.named(server.state.model)["encoder.1.running_var"] > 0).all())


class TestPartialParticipation:
    def test_the_servers_control_moves_by_the_share_that_replied(self):
        server = parabolas(classic(participation=1))
        (name,) = play_round(server).asked
        mean_gradient = {"a": -0.95, "b": 3.2}[name]
        assert control(server)[0].item() == pytest.approx(mean_gradient / 2)
        having = [site for site, memory in server.engine.kept.items() if "control/head.bias" in memory.tensors]
        assert having == [name]

    def test_a_row_moves_by_the_share_of_its_owners(self):
        server = parabolas(private(participation=1), TestPrivateRows.VIEWS)
        (name,) = play_round(server).asked
        mean_gradient = {"a": -0.95, "b": 3.2}[name]
        own = {"a": 0, "b": 2}[name]
        moved = server.layout.named(control(server))["head.bias"]
        assert moved[1].item() == pytest.approx(mean_gradient / 2)  # dogs: one of two owners
        assert moved[own].item() == pytest.approx(mean_gradient)  # the only owner
        assert moved[2 - own].item() == 0

    def test_the_control_is_the_mean_of_the_sites_controls(self):
        server = federation(classic(participation=2, rounds=8), real_sites())
        for _ in range(6):
            play_round(server)
        kept = [server.engine.kept[name].tensors["control/head.weight"] for name in "abc"]
        sizes = [server.cards[name].samples for name in "abc"]
        mean = sum(n * c for n, c in zip(sizes, kept, strict=True)) / sum(sizes)
        torch.testing.assert_close(server.layout.named(control(server))["head.weight"], mean, rtol=1e-4, atol=1e-5)


class TestComingAndGoing:
    @pytest.mark.parametrize("per_label", [True, False])
    def test_the_control_is_the_mean_over_those_who_are_there(self, per_label):
        recipe = private(rounds=8) if per_label else classic(rounds=8)
        server = federation(recipe, real_sites())
        server.memberships = {"a": Membership(1, 4), "b": Membership(1, 100), "c": Membership(3)}
        del server.cards["c"]
        for number in range(1, 7):
            play_round(server)
            there = [name for name in "abc" if server.memberships[name].covers(number)]
            kept = {name: server.engine.kept[name].tensors["control/head.weight"] for name in there}
            total = sum(server.cards[name].samples for name in there)
            mean = sum(server.cards[name].samples * kept[name] for name in there) / total
            torch.testing.assert_close(server.layout.named(control(server))["head.weight"], mean, rtol=1e-3, atol=1e-5)
        assert "control of a" not in server.state.method.tensors  # its part was taken out

    @pytest.mark.parametrize("per_label", [True, False])
    def test_a_round_in_which_nobody_is_there(self, per_label):
        recipe = private(rounds=6) if per_label else classic(rounds=6)
        server = federation(recipe, real_sites()[:2])
        server.memberships = {"a": Membership(1, 3), "b": Membership(5)}
        del server.cards["b"]
        replied = [play_round(server).replied for _ in range(6)]
        assert replied[0] == replied[-1] == 1
        assert 0 in replied


class TestTrouble:
    def test_a_site_that_breaks_once_is_not_lost(self):
        server = federation(classic(), real_sites())
        objective = server.engine.host.recipe.objective

        class Breaks(type(objective)):
            def loss(self, work, batch):
                return super().loss(work, batch) * (math.nan if (work.site.name, work.round) == ("b", 2) else 1.0)

        broken = dataclasses.replace(server.engine.host.recipe, objective=Breaks())
        server.engine.host.recipe = broken
        dropped = [[d.site for d in play_round(server).dropped] for _ in range(3)]
        assert dropped == [[], ["b"], []]
        assert bool(torch.isfinite(server.engine.kept["b"].tensors["control/head.weight"]).all())

    def test_a_round_without_replies_leaves_the_control(self):
        server = federation(classic(), real_sites())
        play_round(server)
        before = control(server).clone()
        for name in "abc":
            server.engine.spoil["train", name] = lambda reply: reply.tensors.clear() or reply
        play_round(server)
        assert torch.equal(control(server), before)


@pytest.mark.parametrize("make", [classic, private])
def test_controls_survive_a_resume(make):
    def fresh():
        return federation(make(participation=2), [site("a"), site("b", view=exact(["cat", "dog"])), site("c")])

    whole, second = whole_and_resumed(fresh)
    assert torch.equal(second.state.model, whole.state.model)
    assert torch.equal(control(second), control(whole))
