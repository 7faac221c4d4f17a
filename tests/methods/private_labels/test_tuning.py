"""Central tuning: the worked numbers of the losses, their edge cases, and what a step does to a real server."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn

from fedaccord.config import check_experiment
from fedaccord.errors import ConfigError
from fedaccord.federation.admission import AdmitSection
from fedaccord.federation.membership import Membership
from fedaccord.federation.round import play_round
from fedaccord.methods.private_labels.recipe import private_labels
from fedaccord.methods.private_labels.settings import PrivateLabelsSettings
from fedaccord.methods.private_labels.tuning import (
    Balancing,
    CentralTuning,
    balancing_shift,
    mse_agreement,
    pairwise_agreement,
)
from small_federation import exact, federation, site, small_network

pytestmark = pytest.mark.usefixtures("one_thread")

FIRST_TWO = torch.tensor([True, True, False])
ALL = torch.ones(3, dtype=torch.bool)


def row(*values):
    return torch.tensor([values])


class TestLosses:
    @pytest.mark.parametrize(
        ("h", "squares", "pairwise", "renormalised"),
        [((0.50, 0.30, 0.20), 0.020000, 0.000400, 0.001250), ((0.54, 0.36, 0.10), 0.005200, 0.0, 0.0)],
    )
    def test_example_1d(self, h, squares, pairwise, renormalised):
        peer = row(0.6, 0.4, 0.0)
        # The example prints sums over the two known labels; the loss is their mean.
        assert 2 * mse_agreement(row(*h), peer, FIRST_TWO).item() == pytest.approx(squares, abs=1e-6)
        assert pairwise_agreement(row(*h), peer, FIRST_TWO).item() == pytest.approx(pairwise, abs=1e-6)
        assert 2 * mse_agreement(row(*h), peer, FIRST_TWO, True).item() == pytest.approx(renormalised, abs=1e-6)

    def test_example_1e_zero_padded_pairs(self):
        loss = pairwise_agreement(row(0.45, 0.30, 0.25), row(0.6, 0.4, 0.0), ALL)
        assert loss.item() == pytest.approx(0.010833, abs=1e-6)

    def test_in_set_pairs_fall_when_mass_goes_elsewhere(self):
        peer = row(0.6, 0.4, 0.0)
        assert pairwise_agreement(row(0.5, 0.3, 0.2), peer, FIRST_TWO).item() == pytest.approx(4e-4, rel=1e-3)
        assert pairwise_agreement(row(0.05, 0.03, 0.92), peer, FIRST_TWO).item() == pytest.approx(4e-6, rel=1e-2)

    def test_one_known_label_makes_no_pair(self):
        h = row(0.5, 0.3, 0.2).requires_grad_()
        loss = pairwise_agreement(h, row(1.0, 0.0, 0.0), torch.tensor([True, False, False]))
        assert loss.item() == 0
        assert torch.equal(torch.autograd.grad(loss, h)[0], torch.zeros(1, 3))

    @pytest.mark.parametrize("loss", [mse_agreement, pairwise_agreement])
    def test_gradients(self, loss):
        h = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.2, 0.7]], dtype=torch.float64, requires_grad=True)
        peer = torch.tensor([[0.6, 0.4, 0.0], [0.3, 0.7, 0.0]], dtype=torch.float64)
        assert torch.autograd.gradcheck(lambda z: loss(z, peer, FIRST_TWO), h)


def server(tuning, sites=None, rounds=3, unlabelled=40, **settings):
    recipe = private_labels(PrivateLabelsSettings(rounds=rounds, lr=0.1, batch=4, tuning=tuning, **settings))
    sites = sites or [site("a", view=exact(["cat", "dog"])), site("b", view=exact(["dog", "cow"]))]
    made = federation(recipe, sites)
    if unlabelled:
        made.unlabelled = torch.randn(unlabelled, 4, generator=torch.Generator().manual_seed(1))
    return made


def disagreement(made, replies, tuning):
    """Return the loss of the server's model against the sites that replied."""
    made.replies = replies
    peers = tuning._site_predictions(made)
    h = torch.softmax(made.load_network().eval()(made.unlabelled), -1).detach()
    pairs = zip(peers, replies.informs, strict=True)
    return sum(float(tuning.disagreement(h, peer, known, replies.informs.any(0))) for peer, known in pairs)


class TestTuning:
    @pytest.mark.parametrize(
        "settings",
        [
            {"tuning": "mse"},
            {"tuning": "mse", "norm": "renorm"},
            {"tuning": "pairwise"},
            {"tuning": "pairwise", "pairs": "zero-padded"},
            {"tuning": "mse", "tune": "all"},
        ],
    )
    def test_it_brings_the_model_nearer_to_the_sites(self, settings):
        made = server(**settings, tuning_lr=0.5)
        (step,) = made.recipe.refine
        seen = {}

        def watched(the_server):
            seen["replies"], seen["before"] = the_server.replies, disagreement(the_server, the_server.replies, step)
            step(the_server)

        made.recipe = dataclasses.replace(made.recipe, refine=(watched,))
        play_round(made)
        assert disagreement(made, seen["replies"], step) < seen["before"]

    def test_only_the_head_moves_unless_all_is_asked_for(self):
        plain, head, whole = (server(t, tune=w) for t, w in (("none", "all"), ("mse", "classifier"), ("mse", "all")))
        for made in (plain, head, whole):
            play_round(made)
        encoder = plain.layout.mask("encoder")
        assert torch.equal(head.state.model[encoder], plain.state.model[encoder])
        assert not torch.equal(head.state.model, plain.state.model)
        assert not torch.equal(whole.state.model[encoder], plain.state.model[encoder])

    @pytest.mark.parametrize("masked", [True, False])
    def test_a_label_absent_from_the_round_is_frozen_only_when_masked(self, masked):
        sites = [site("a", view=exact(["cat", "dog"]))]
        made = server("pairwise", sites, pairs="zero-padded", mask_absent=masked, tuning_lr=0.5)
        cow = made.layout.head_rows()[2]
        before = made.state.model[cow].clone()
        record = play_round(made)
        assert record.absent == ["cow"]
        assert torch.equal(made.state.model[cow], before) is masked

    @pytest.mark.parametrize("settings", [{}, {"norm": "renorm"}])
    def test_public_models_that_are_the_same_agree_also_where_a_label_is_absent(self, settings):
        """The only site's model is the combined one, so there is nothing to tune, whatever it says of absent labels."""
        sites = [site("a", view=exact(["cat", "dog"]))]
        tuned = server("mse", sites, labels="public", tuning_lr=0.5, **settings)
        plain = server("none", sites, labels="public")
        for made in (tuned, plain):
            assert play_round(made).absent == ["cow"]
        assert torch.allclose(tuned.state.model, plain.state.model, atol=1e-6)

    @pytest.mark.parametrize("masked", [True, False])
    @pytest.mark.parametrize(("loss", "expected"), [("mse", 0.0066667), ("pairwise", (0.0009 + 0.0049 + 0.0009) / 3)])
    def test_public_models_may_be_compared_over_all_labels(self, loss, expected, masked):
        h, peer = row(0.5, 0.3, 0.2), row(0.6, 0.3, 0.1)
        settings = PrivateLabelsSettings(tuning=loss, labels="public", tuning_labels="all", mask_absent=masked)
        step = CentralTuning(settings)
        assert step.disagreement(h, peer, FIRST_TWO, ALL).item() == pytest.approx(expected, abs=1e-6)
        own = (
            CentralTuning(settings.model_copy(update={"tuning_labels": "known"}))
            .disagreement(h, peer, FIRST_TWO, ALL)
            .item()
        )
        assert own == pytest.approx({"mse": 0.005, "pairwise": 0.0009}[loss], abs=1e-6)

    def test_all_labels_are_asked_for_by_a_setting(self):
        steps = [server("mse", labels="public", tuning_labels=which).recipe.refine[0] for which in ("known", "all")]
        assert [step.settings.tuning_labels for step in steps] == ["known", "all"]

    @pytest.mark.parametrize("settings", [{"labels": "private", "tuning": "mse"}, {"labels": "public"}])
    def test_and_refused_where_sites_have_no_such_prediction_or_nothing_is_compared(self, settings):
        with pytest.raises(ValueError, match=r"tuning_labels has no effect unless labels are public"):
            PrivateLabelsSettings(tuning_labels="all", **settings)

    def test_without_unlabelled_data_it_is_told_once_and_nothing_is_tuned(self):
        tuned, plain = server("mse", unlabelled=0), server("none", unlabelled=0)
        told = [[d.task for d in play_round(tuned).dropped] for _ in range(2)]
        for _ in range(2):
            play_round(plain)
        assert told == [["tuning"], []]
        assert torch.equal(tuned.state.model, plain.state.model)

    @pytest.mark.parametrize("tuning", ["mse", "pairwise"])
    def test_a_site_whose_model_predicts_nonsense_is_left_out(self, tuning):
        """Its reply is finite, so it is admitted, and the median withstands it; the tuning must, too."""
        known = {"a": ["cat", "dog"], "b": ["cat", "dog"], "c": ["cat", "dog"], "d": ["dog", "cow"]}
        sites = [site(name, view=exact(labels)) for name, labels in known.items()]
        made = server(tuning, sites, aggregation="median")
        made.admission = AdmitSection(norm=0)

        def huge(reply):
            sign = {"model/head.weight": -1.0}
            reply.tensors = {name: torch.full_like(t, 3e38 * sign.get(name, 1.0)) for name, t in reply.tensors.items()}
            return reply

        made.engine.spoil["train", "a"] = huge
        first, second = play_round(made), play_round(made)
        assert torch.isfinite(made.state.model).all()
        for record in (first, second):
            (drop,) = record.dropped
            assert (drop.site, drop.task, drop.reason) == (
                "a",
                "tuning",
                "the predictions of its model are not finite",
            )

    def test_a_tuned_model_that_is_not_finite_is_not_taken(self):
        tuned, plain = server("mse"), server("none")
        (step,) = tuned.recipe.refine
        endless = CentralTuning(step.settings.model_copy(update={"tuning_lr": float("inf")}))
        tuned.recipe = dataclasses.replace(tuned.recipe, refine=(endless,))
        record = play_round(tuned)
        play_round(plain)
        assert [str(d) for d in record.dropped] == [
            "round 1: tuning had no effect: the tuned model is not finite, so the combined one is kept"
        ]
        assert torch.equal(tuned.state.model, plain.state.model)

    def test_the_same_seed_tunes_the_same(self):
        one, two = server("mse"), server("mse")
        for made in (one, two):
            torch.manual_seed(id(made) % 1000)
            play_round(made)
        assert torch.equal(one.state.model, two.state.model)


class TestBalancing:
    def test_the_mean_prediction_gets_the_frequencies(self):
        logits = torch.randn(200, 4, generator=torch.Generator().manual_seed(0)) + torch.tensor([2.0, 0.0, -1.0, 0.0])
        wanted = torch.tensor([0.1, 0.2, 0.3, 0.4])
        shift = balancing_shift(logits, wanted, steps=100)
        assert torch.softmax(logits + shift, -1).mean(0).tolist() == pytest.approx(wanted.tolist(), abs=1e-3)

    @pytest.mark.parametrize(
        ("frequencies", "expected"), [("uniform", [1 / 3] * 3), ([1.0, 1.0, 2.0], [0.25, 0.25, 0.5])]
    )
    def test_it_is_done_once_after_the_last_round(self, frequencies, expected):
        made, plain = server("balance", frequencies=frequencies), server("none")
        for number in (1, 2, 3):
            play_round(made)
            play_round(plain)
            assert torch.equal(made.state.model, plain.state.model) is (number < 3)
        predicted = torch.softmax(made.load_network().eval()(made.unlabelled), -1).mean(0)
        assert predicted.tolist() == pytest.approx(expected, abs=0.01)

    def test_frequencies_of_other_labels_are_refused_before_the_first_round(self):
        with pytest.raises(ConfigError, match=r"method\.frequencies: there are 3 labels, so 3 numbers, not 2"):
            server("balance", frequencies=[0.5, 0.5]).ready()
        server("balance", frequencies=[0.5, 0.5, 0.0]).ready()

    @pytest.mark.parametrize("frequencies", [[-1.0, 1.0, 1.0], [0.0, 0.0, 0.0], []])
    def test_frequencies_that_mean_nothing_are_refused(self, frequencies):
        table = {
            "data": {"dataset": "digits", "partition": {"kind": "iid", "sites": 2}},
            "method": {"name": "private-labels", "tuning": "balance", "frequencies": frequencies},
        }
        with pytest.raises(ConfigError, match=r"method\.frequencies: a number of at least 0 for each label"):
            check_experiment(table)

    def test_a_head_without_biases_is_refused_before_the_first_round(self):
        network = small_network()
        network.head = nn.Linear(network.head.in_features, network.head.out_features, bias=False)
        recipe = private_labels(PrivateLabelsSettings(tuning="balance"))
        with pytest.raises(ConfigError, match="the head of this model has none"):
            federation(recipe, [site("a")], network).ready()

    def test_frequencies_from_the_sites(self):
        target = Balancing(PrivateLabelsSettings(tuning="balance", frequencies="sites"))._target(server("balance"))
        assert (target / target.sum()).tolist() == pytest.approx([0.25, 0.5, 0.25])

    def test_a_label_whose_owner_has_left_is_not_lost(self):
        """The row it taught is still there, and the frequencies count what it had."""
        stays, left = (server("balance", frequencies="sites") for _ in range(2))
        left.memberships = {"b": Membership(1, 3)}
        for made in (stays, left):
            for _ in range(3):
                play_round(made)
            mean = torch.softmax(made.load_network().eval()(made.unlabelled), -1).mean(0)
            assert mean.tolist() == pytest.approx([0.25, 0.5, 0.25], abs=0.01)

    @pytest.mark.parametrize("frequencies", ["uniform", "sites", [1.0, 1.0, 2.0]])
    def test_a_label_that_nobody_has_taught_is_left_as_it_was(self, frequencies):
        sites = [site("a", view=exact(["cat", "dog"])), site("b", view=exact(["dog", "cat"]))]
        made, plain = server("balance", sites, frequencies=frequencies), server("none", sites)
        for _ in range(3):
            play_round(made)
            play_round(plain)
        cow = made.layout.head_rows()[2]
        assert torch.equal(made.state.model[cow], plain.state.model[cow])
        assert not torch.equal(made.state.model, plain.state.model)
        logits = made.load_network().eval()(made.unlabelled)[:, :2]
        assert torch.softmax(logits, -1).mean(0).tolist() == pytest.approx([0.5, 0.5], abs=0.01)

    def test_a_site_that_knows_a_label_but_has_no_samples_teaches_nothing(self):
        sites = [site("a", view=exact(["cat", "dog"])), site("b", samples=0, view=exact(["cow"]))]
        assert Balancing(PrivateLabelsSettings(tuning="balance"))._trained_labels(
            server("balance", sites)
        ).tolist() == [True, True, False]


def test_the_published_defaults():
    s = PrivateLabelsSettings()
    assert (s.norm, s.pairs, s.mask_absent, s.tune) == ("raw", "in-set", True, "classifier")
    assert (s.tuning_lr, s.tuning_momentum, s.tuning_batch) == (0.01, 0.9, 64)
