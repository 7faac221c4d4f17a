"""pFedPLL: what travels, what stays, how sites are weighed, each of its parts taken away; and our own `pfedpll+`."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch

from fedaccord.config import check_experiment
from fedaccord.errors import ConfigError
from fedaccord.federation.round import play_round
from fedaccord.labels.views import Candidates
from fedaccord.labels.views.likelihoods import PRIOR
from fedaccord.methods.candidate_sets.recipe import fed_cc, fed_lw, kl_scores, pfedpll, pfedpll_plus
from fedaccord.methods.candidate_sets.settings import (
    FedLWSettings,
    PartialBaselineSettings,
    PfedpllPlusSettings,
    PfedpllSettings,
)
from fedaccord.models.network import insert_personal_layer
from fedaccord.training.candidate_losses import CONFIDENCES, TERMS
from small_federation import SPACE, exact, federation, pets_or_cattle, site, small_network

pytestmark = pytest.mark.usefixtures("one_thread")

QUICK = {"rounds": 3, "steps": 3, "batch": 8, "lr": 0.1}
SETS = Candidates(SPACE)
INPUTS = torch.randn(50, 4, generator=torch.Generator().manual_seed(1))


def published(**settings):
    return pfedpll(PfedpllSettings(**QUICK, **settings))


def unsure(*names, samples=12):
    return [site(name, samples=samples + 4 * number, view=SETS) for number, name in enumerate(names)]


def started(recipe, sites, inputs=INPUTS):
    network = small_network()
    server = federation(recipe, sites, network)
    server.unlabelled = inputs
    return server


def played(recipe, sites, rounds=2, inputs=INPUTS):
    server = started(recipe, sites, inputs)
    for _ in range(rounds):
        play_round(server)
    return server


def sent(server, name):
    return {key for key in server.engine.replies["train", name].tensors if key.startswith("model/")}


class TestIsolation:
    def test_only_the_encoder_travels(self):
        server = played(published(), unsure("a", "b"))
        assert sent(server, "a") == {"model/encoder.0.weight", "model/encoder.0.bias"}
        for task, _, brief in server.engine.asked:
            assert task == "join" or set(brief.tensors) == {"model/encoder.0.weight", "model/encoder.0.bias"}
        kept = server.engine.kept
        for name in ("personal/personal.weight", "personal/head.weight", "personal/head.bias", CONFIDENCES):
            assert not torch.equal(kept["a"].tensors[name][:3], kept["b"].tensors[name][:3])

    def test_the_layer_begins_as_the_identity_and_learns(self):
        network, with_layer = small_network(), insert_personal_layer(small_network())
        assert torch.equal(network(INPUTS), with_layer(INPUTS))
        server = played(published(), unsure("a", "b"), 1)
        layer = server.engine.kept["a"].tensors["personal/personal.weight"]
        assert layer.shape == (5, 5)
        assert not torch.equal(layer, torch.eye(5))

    def test_a_site_that_does_not_train_receives_the_encoder_and_keeps_its_own(self):
        server = started(published(participation=1), unsure("a", "b"))
        record = play_round(server)
        (trained,) = record.asked
        (other,) = {"a", "b"} - {trained}
        assert server.engine.kept[other].is_empty()
        assert record.evaluation.sites.keys() == {"a", "b"}

    def test_without_it_everything_is_shared_and_there_is_no_layer(self):
        recipe = published(isolation=False)
        assert recipe.network is None
        server = played(recipe, unsure("a", "b"))
        assert "model/head.weight" in sent(server, "a")
        assert set(server.engine.kept["a"].tensors) == {CONFIDENCES}
        assert server.has_full_model


class TestScore:
    def test_sites_are_weighed_by_how_far_their_features_moved(self):
        server = started(published(score_inputs=10), unsure("a", "b", "c"))
        before = server.layout.named(server.state.model)["encoder.0.weight"].clone()
        old = server.state.model.clone()
        drawn = server.recipe.admit[-1]._draw(server)
        play_round(server)
        assert len(drawn) == 10
        replies = [server.engine.replies["train", name].tensors for name in "abc"]

        def features(tensors):
            return torch.tanh(drawn @ tensors["model/encoder.0.weight"].T + tensors["model/encoder.0.bias"])

        start = {f"model/{name}": tensor for name, tensor in server.layout.named(old).items()}
        scores = kl_scores(torch.stack([features(reply) for reply in replies]), features(start)).float()
        expected = sum(s * reply["model/encoder.0.weight"] for s, reply in zip(scores, replies, strict=True))
        now = server.layout.named(server.state.model)["encoder.0.weight"]
        assert torch.allclose(now, expected, atol=1e-6)
        assert not torch.allclose(now, before, atol=1e-4)
        counts = torch.tensor([12.0, 16.0, 20.0]) / 48
        assert not torch.allclose(scores, counts, atol=0.01)  # or this would be a test of sample counts

    def test_another_round_draws_other_inputs_and_the_same_round_the_same(self):
        server = started(published(score_inputs=10), unsure("a", "b"))
        weigh = server.recipe.admit[-1]
        first, again = weigh._draw(server), weigh._draw(server)
        server.state.round += 1
        assert torch.equal(first, again)
        assert not torch.equal(first, weigh._draw(server))

    def test_it_is_a_mean_of_the_whole_model_where_everything_is_shared(self):
        by_score, by_size = (played(published(isolation=False, score=s), unsure("a", "b")) for s in ("kl", "samples"))
        head = by_score.layout.mask("head")
        assert not torch.allclose(by_score.state.model[head], by_size.state.model[head], atol=1e-5)

    def test_one_site_is_the_model(self):
        by_score, by_size = (played(published(score=s), unsure("a")) for s in ("kl", "samples"))
        assert torch.equal(by_score.state.model, by_size.state.model)

    @pytest.mark.parametrize("inputs", [None, torch.zeros(0, 4)])
    def test_without_inputs_sites_are_weighed_by_their_samples_and_that_is_said_once(self, inputs):
        server = played(published(), unsure("a", "b"), 3, inputs)
        (drop,) = server.dropped
        assert str(drop) == (
            "round 1: KL score had no effect: the server has no unlabelled data, so sites are weighted by "
            "sample count; give [server] unlabelled"
        )
        assert torch.equal(server.state.model, played(published(score="samples"), unsure("a", "b"), 3).state.model)

    def test_with_inputs_or_without_score_nothing_is_said(self):
        assert played(published(), unsure("a", "b")).dropped == []
        assert played(published(score="samples"), unsure("a", "b"), inputs=None).dropped == []

    def test_a_site_the_defence_left_out_is_not_weighed(self):
        recipe = published()
        seen = []

        def second_only(server, replies):
            return replies.keep(torch.tensor([False, True]))

        def weigh(server, replies):
            seen.append(replies.sites)
            return recipe.admit[-1](server, replies)

        server = played(dataclasses.replace(recipe, admit=(second_only, weigh)), unsure("a", "b"), 1)
        assert seen == [("b",)]
        own = server.engine.replies["train", "b"].tensors["model/encoder.0.weight"]
        assert torch.equal(server.layout.named(server.state.model)["encoder.0.weight"], own)

    def test_a_defence_that_leaves_nobody_leaves_nothing_to_weigh(self):
        recipe = dataclasses.replace(
            published(),
            admit=(
                lambda server, replies: replies.keep(torch.zeros(len(replies), dtype=torch.bool)),
                *published().admit,
            ),
        )
        server = started(recipe, unsure("a", "b"))
        old = server.state.model.clone()
        play_round(server)
        assert torch.equal(server.state.model, old)


class TestLoss:
    def test_without_calibration_and_the_rest_it_is_fed_lw(self):
        ours = played(published(isolation=False, calibration=False, score="samples"), unsure("a", "b"))
        theirs = played(fed_lw(FedLWSettings(**QUICK)), unsure("a", "b"))
        assert torch.equal(ours.state.model, theirs.state.model)

    def test_every_choice_of_terms_is_another_loss(self):
        chosen = [list(t) for k in (1, 2, 3) for t in itertools.combinations(TERMS, k)]
        sites = [*unsure("a"), site("b")]  # with one label outside every set, s and nc would be the same
        models = [played(published(terms=t, isolation=False), sites, 1).state.model for t in chosen]
        for one, other in itertools.combinations(models, 2):
            assert not torch.allclose(one, other, atol=1e-5)

    def test_the_term_s_alone_is_cc(self):
        ours = played(published(terms=["s"], isolation=False, score="samples"), unsure("a", "b"))
        theirs = played(fed_cc(PartialBaselineSettings(**QUICK)), unsure("a", "b"))
        assert torch.allclose(ours.state.model, theirs.state.model, atol=1e-6)

    def test_lambdas_weigh_the_terms(self):
        only = played(published(lambda_pc=0.0, lambda_nc=0.0), unsure("a", "b"), 1)
        alone = played(published(terms=["s"]), unsure("a", "b"), 1)
        assert torch.allclose(only.state.model, alone.state.model, atol=1e-6)

    def test_alpha_from_changes_the_confidences(self):
        tables = [
            played(published(alpha_from=a), unsure("a", "b")).engine.kept["a"].tensors[CONFIDENCES]
            for a in ("step", "forward")
        ]
        assert not torch.allclose(*tables, atol=1e-5)

    @pytest.mark.parametrize(
        ("settings", "told"),
        [
            ({"terms": []}, "method.terms"),
            ({"terms": ["s", "s"]}, "a term is named twice"),
            ({"terms": ["x"]}, "method.terms"),
            ({"lambda_s": -1.0}, "method.lambda_s"),
        ],
    )
    def test_wrong_terms_are_refused(self, settings, told):
        table = {
            "data": {"dataset": "digits", "partition": {"kind": "iid", "sites": 2}},
            "method": {"name": "pfedpll", **settings},
        }
        with pytest.raises(ConfigError, match=told):
            check_experiment(table)


class TestSettings:
    def test_the_papers_are_the_defaults(self):
        settings = PfedpllSettings()
        assert (settings.rounds, settings.steps, settings.epochs) == (100, 40, None)
        assert (settings.lr, settings.momentum, settings.batch) == (0.01, 0.9, 32)
        assert (settings.isolation, settings.calibration, settings.score) == (True, True, "kl")

    def test_epochs_in_place_of_the_steps(self):
        settings = PfedpllSettings(epochs=2)
        assert (settings.steps, settings.epochs) == (None, 2)
        with pytest.raises(ValueError, match="steps or epochs, not both"):
            PfedpllSettings(epochs=2, steps=3)


class TestMixture:
    def test_sites_of_other_views_take_part(self):
        sites = [*unsure("a"), site("b"), site("c", view=pets_or_cattle())]
        server = played(published(), sites)
        assert server.dropped == []
        assert all(CONFIDENCES in server.engine.kept[name].tensors for name in "abc")

    def test_candidates_inside_known_labels(self):
        view = Candidates(SPACE, ["cat", "dog"])
        some = site("a", view=view)
        some = dataclasses.replace(
            some, train=dataclasses.replace(some.train, target=some.train.target & view.informs())
        )
        server = played(published(isolation=False, score="samples"), [some, site("b", view=exact(["dog", "cow"]))])
        table = server.engine.kept["a"].tensors[CONFIDENCES]
        assert table[:, 2].abs().sum() == 0
        assert torch.allclose(table.sum(-1), torch.ones(len(table)))
        rows = server.layout.named(server.state.model)["head.weight"]
        replies = [server.engine.replies["train", name] for name in "ab"]
        a, b = (reply.tensors["model/head.weight"] for reply in replies)
        n, m = (reply.numbers["samples"] for reply in replies)
        assert torch.allclose(rows, torch.stack([a[0], (n * a[1] + m * b[1]) / (n + m), b[2]]), atol=1e-6)


class TestPlus:
    def test_everything_is_shared_but_what_a_site_believes(self):
        server = played(pfedpll_plus(PfedpllPlusSettings(**QUICK)), unsure("a", "b"), inputs=None)
        assert server.has_full_model
        assert server.dropped == []
        assert set(server.engine.kept["a"].tensors) == {CONFIDENCES, PRIOR}
        assert {key for key in server.engine.replies["train", "a"].tensors if not key.startswith("model/")} == set()

    def test_a_local_head_stays_at_the_site(self):
        server = played(pfedpll_plus(PfedpllPlusSettings(**QUICK, head="local")), unsure("a", "b"))
        sent = {key for key in server.engine.replies["train", "a"].tensors if key.startswith("model/")}
        assert sent
        assert not any(key.startswith("model/head") for key in sent)
        assert {CONFIDENCES, PRIOR} < set(server.engine.kept["a"].tensors)

    def test_the_prior_counts_by_the_last_rounds_confidences(self):
        server = played(pfedpll_plus(PfedpllPlusSettings(**QUICK, prior_count=2.0)), unsure("a", "b"), 1)
        table = server.engine.kept["a"].tensors[CONFIDENCES].clone()
        play_round(server)
        counts = table.sum(0) + 2.0
        assert torch.allclose(server.engine.kept["a"].tensors[PRIOR], (counts / counts.sum()).log(), atol=1e-5)
        assert not torch.equal(server.engine.kept["a"].tensors[CONFIDENCES], table)

    def test_the_weights_of_lw_outside_a_set_are_no_counts(self):
        settings = PfedpllPlusSettings(**QUICK, loss="lw")
        server = played(pfedpll_plus(settings), unsure("a", "b"), 1)
        kept = server.engine.kept["a"].tensors[CONFIDENCES] * server.engine.host.sites["a"].train.target
        play_round(server)
        counts = kept.sum(0) + settings.prior_count
        assert torch.allclose(server.engine.kept["a"].tensors[PRIOR], (counts / counts.sum()).log(), atol=1e-5)

    def test_a_loss_without_confidences_counts_by_the_model(self):
        server = played(pfedpll_plus(PfedpllPlusSettings(**QUICK, loss="cc")), unsure("a", "b"))
        assert set(server.engine.kept["a"].tensors) == {PRIOR}
