"""Mixed-type labels with other local solvers, robust rules and partial participation, and the baselines."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from fedaccord.data.site_data import Samples, SiteData
from fedaccord.errors import ConfigError
from fedaccord.federation.admission import AdmitSection
from fedaccord.federation.round import play_round
from fedaccord.labels.correspondence import CORRESPONDENCE
from fedaccord.labels.views import Candidates, Tags, Unlabelled
from fedaccord.messages.message import Message
from fedaccord.methods.mixed_types.own_head import OWN_HEAD
from fedaccord.methods.registry import make_recipe
from fedaccord.models.network import Network
from fedaccord.training.work import Batch
from mixed_federation import (
    COUNT,
    READY,
    SWAPPED,
    coarse_sites,
    horses_and_others,
    played,
    started,
    tasks,
)
from small_federation import SPACE, pets_or_cattle, site, work_for

pytestmark = pytest.mark.usefixtures("one_thread")


class TestComposed:
    @pytest.mark.parametrize("how", ["estimated", "learnable-average"])
    @pytest.mark.parametrize("name", ["fedmt", "fedmt+"])
    @pytest.mark.parametrize("solver", [{"local": "fedprox", "mu": 0.5}, {"local": "scaffold"}])
    def test_with_other_local_solvers(self, name, how, solver):
        plain, _ = played(name, correspondence=how, **READY)
        server, records = played(name, correspondence=how, **READY, **solver)
        assert server.dropped == []
        assert records[-1].evaluation.global_["accuracy"] > 0.8
        assert not torch.equal(server.state.model, plain.state.model)

    def test_scaffold_keeps_its_controls_beside_the_matrix(self):
        server, _ = played("fedmt+", local="scaffold", participation=2, **READY)
        brief = next(b for t, _, b in reversed(server.engine.asked) if t == "train")
        assert CORRESPONDENCE in brief.tensors
        assert "control/head.weight" in brief.tensors

    def test_a_robust_rule_withstands_a_site_that_sends_nonsense(self):
        def hostile(reply):
            reply.tensors = {name: torch.full_like(tensor, 50.0) for name, tensor in reply.tensors.items()}
            return reply

        accuracy = {}
        for rule in ("mean", "median"):
            server = started("fedmt", aggregation=rule, correspondence="known", **READY)
            server.engine.spoil["train", "b"] = hostile
            server.admission = AdmitSection(norm=0)  # the rule alone
            accuracy[rule] = [play_round(server) for _ in range(3)][-1].evaluation.global_["accuracy"]
        assert accuracy["median"] > 0.8 > accuracy["mean"]

    @pytest.mark.parametrize(
        ("settings", "task", "lie"),
        [
            ({"estimator": "em-pool"}, COUNT, 1e9 * SWAPPED),
            ({"correspondence": "estimated-average"}, COUNT, 1e9 * SWAPPED),
            ({"correspondence": "learnable-average"}, "train", 3e9 * SWAPPED - 1e9),
        ],
    )
    def test_a_robust_rule_withstands_a_site_that_lies_about_its_names(self, settings, task, lie):
        sites = [site(name, samples=40, view=pets_or_cattle()) for name in "abcde"]
        server = started("fedmt", sites, aggregation="median", **settings, **READY)
        server.admission = AdmitSection(norm=0)  # the rule alone
        server.engine.spoil[task, "b"] = lambda reply: Message(
            {n: lie if n in (CORRESPONDENCE, "counts") else t for n, t in reply.tensors.items()},
            reply.numbers,
            reply.words,
        )
        for _ in range(3):
            play_round(server)
        (matrix,) = server.state.method.select(CORRESPONDENCE).values()
        assert server.dropped == []
        assert torch.allclose(matrix.sum(0), torch.ones(3))
        assert matrix.argmax(0).tolist() == [0, 0, 1]

    @pytest.mark.parametrize("settings", [{"estimator": "em-pool"}, {"correspondence": "estimated-average"}])
    def test_without_one_a_lie_counts_for_no_more_than_the_site(self, settings):
        sites = [site(name, samples=40, view=pets_or_cattle()) for name in "abcde"]
        server = started("fedmt", sites, **settings, **READY)
        server.engine.spoil[COUNT, "b"] = lambda reply: Message({"counts": 1e9 * SWAPPED}, reply.numbers, reply.words)
        play_round(server)
        (matrix,) = server.state.method.select(CORRESPONDENCE).values()
        assert torch.allclose(matrix.sum(0), torch.ones(3))
        assert matrix.argmax(0).tolist() == [0, 0, 1]

    def test_a_robust_rule_withstands_a_head_of_nonsense(self):
        def hostile(reply):
            reply.tensors = {n: torch.full_like(t, 1e6) if OWN_HEAD in n else t for n, t in reply.tensors.items()}
            return reply

        server = started("fedtrans", aggregation="median")
        server.engine.spoil["train", "b"] = hostile
        play_round(server)
        assert all(t.abs().max() < 10 for t in server.state.method.select(OWN_HEAD).values())

    def test_two_sites_of_the_same_names_are_too_few_for_a_robust_rule_and_it_is_told(self):
        sites = [*coarse_sites(), *(site(name, samples=40, view=horses_and_others()) for name in "xy")]
        server, _ = played("fedmt+", sites, rounds=1, aggregation="median")
        assert server.warnings == [
            "only 2 sites of a round use the coarse names of site 'x', and 3 are needed to withstand a hostile one: "
            "the mean is used"
        ]

    def test_partial_participation(self):
        server, records = played("fedmt", participation=2, **READY)
        assert [len(r.asked) for r in records] == [2, 2, 2]
        assert all(r.replied == 2 for r in records)

    def test_replies_count_the_same_or_by_their_confident_samples(self):
        sites = [site("a", samples=60, view=pets_or_cattle()), site("b", samples=20, view=pets_or_cattle())]
        for weights in ("equal", "samples"):
            server, _ = played("fedmt", sites, rounds=1, weights=weights, **READY)
            sent = [server.engine.replies["train", n] for n in "ab"]
            shares = [1.0, 1.0] if weights == "equal" else [m.numbers["samples"] for m in sent]
            mean = sum(w * m.tensors["model/head.bias"] for w, m in zip(shares, sent, strict=True)) / sum(shares)
            assert torch.allclose(server.layout.named(server.state.model)["head.bias"], mean, atol=1e-6)


class TestBaselines:
    def test_semifl_learns_from_sites_without_labels_as_from_those_with_coarse_ones(self):
        def unlabelled(one):
            bare = Samples(one.train.x, torch.full_like(one.train.target, -1), one.train.truth)
            return SiteData(one.name, Unlabelled(SPACE), bare, one.test)

        settings = {"warmup": 60, "threshold": 0.5, "epochs": 1, "server_epochs": 2}
        coarse, _ = played("semifl", **settings)
        bare, records = played("semifl", [unlabelled(one) for one in coarse_sites()], **settings)
        assert [r.replied for r in records] == [3, 3, 3]
        assert bare.cards["a"].samples == 40
        assert 0 < records[-1].figures["confident"] <= 1
        assert torch.equal(bare.state.model, coarse.state.model)

    def test_fedmt_asks_for_labels_at_a_site(self):
        with pytest.raises(ConfigError, match="no site that may train has labelled samples"):
            started("fedmt", [site("u", view=Unlabelled(SPACE))])

    def test_single_asks_no_site_to_train(self):
        server, records = played("single", warmup=50)
        assert set(tasks(server)) == {"join", "evaluate"}
        assert records[-1].absent == []
        assert records[-1].evaluation.sites.keys() == {"a", "b", "c"}

    def test_fedrep_averages_the_encoder_with_the_server_and_keeps_heads_where_they_are(self):
        server = started("fedrep", server_weight=0.25)
        sent = server.state.model.clone()
        play_round(server)
        ours = server.state.method.tensors["the server's own model"]
        sent_back = [server.engine.replies["train", n].tensors["model/encoder.0.weight"] for n in "abc"]
        theirs = torch.stack(sent_back).mean(0)
        named = server.layout.named
        brief = next(b for t, _, b in server.engine.asked if t == "train")
        assert torch.equal(brief.tensors["model/encoder.0.weight"], named(sent)["encoder.0.weight"])  # not trained yet
        expected = 0.75 * theirs + 0.25 * named(ours)["encoder.0.weight"]
        assert torch.allclose(named(server.state.model)["encoder.0.weight"], expected, atol=1e-6)
        assert torch.equal(named(server.state.model)["head.weight"], named(ours)["head.weight"])
        assert not any(OWN_HEAD in n for m in server.engine.replies.values() for n in m.tensors)
        assert server.engine.kept["a"].tensors[f"{OWN_HEAD}/weight"].shape == (2, 5)

    def test_fedrep_gives_the_server_the_weight_of_one_more_site(self):
        server = started("fedrep")
        play_round(server)
        ours = server.layout.named(server.state.method.tensors["the server's own model"])["encoder.0.bias"]
        theirs = sum(server.engine.replies["train", n].tensors["model/encoder.0.bias"] for n in "abc")
        expected = (theirs + ours) / 4
        assert torch.allclose(server.layout.named(server.state.model)["encoder.0.bias"], expected, atol=1e-6)

    def test_fedrep_sends_out_what_the_warm_up_has_learned(self):
        server = started("fedrep", warmup=20)
        first = server.state.model.clone()
        play_round(server)
        brief = next(b for t, _, b in server.engine.asked if t == "train")
        assert not torch.equal(brief.tensors["model/encoder.0.bias"], server.layout.named(first)["encoder.0.bias"])

    @pytest.mark.parametrize("local", ["fedavg", "fedprox"])
    def test_a_site_that_was_never_drawn_has_no_head_to_be_judged_by(self, local):
        server = started("fedrep", participation=1, local=local)
        record = play_round(server)
        judged = {name for name, told in record.evaluation.sites.items() if "accuracy" in told}
        assert judged == set(record.asked)

    @pytest.mark.parametrize("name", ["fedrep", "fedtrans"])
    def test_sites_shift_their_images(self, name):
        objective = make_recipe(name, {}).objective
        data = site("a", samples=8, view=pets_or_cattle())
        data = replace(data, train=replace(data.train, x=torch.rand(8, 1, 16, 16) * 2 - 1))
        network, seen = Network(nn.Sequential(nn.Flatten(), nn.Linear(256, 6)), nn.Linear(6, 3)), []
        network.encoder.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
        work = work_for(data, network)
        objective.start(work)
        objective.loss(work, Batch(torch.arange(8), data.train.x, data.train.target))
        assert seen[0].shape == data.train.x.shape
        assert not torch.allclose(seen[0], data.train.x, atol=1e-3)

    def test_fedtrans_trains_coarse_heads_together_and_fine_tunes_after_the_last_round(self):
        server = started("fedtrans", server_epochs=30, server_lr=0.1)
        head = server.layout.named(server.state.model)["head.weight"].clone()
        records = [play_round(server) for _ in range(2)]
        assert torch.equal(server.layout.named(server.state.model)["head.weight"], head)
        heads = [b.tensors[f"{OWN_HEAD}/weight"] for t, _, b in server.engine.asked[-3:] if t == "evaluate"]
        assert torch.equal(heads[0], heads[1])
        assert records[-1].evaluation.over_sites()["mean"]["accuracy"] > 0.8
        before = records[-1].evaluation.global_["accuracy"]
        last = play_round(server)
        assert last.evaluation.global_["accuracy"] > max(0.8, before)
        assert last.figures["server_accuracy"] > 0.9

    def test_fedtrans_judges_own_names_by_the_encoder_that_was_not_tuned(self):
        tuned, not_tuned = (started("fedtrans", server_epochs=epochs, server_lr=0.1) for epochs in (30, 0))
        for _ in range(3):
            last, plain = play_round(tuned), play_round(not_tuned)
        assert not torch.equal(tuned.state.model, not_tuned.state.model)
        assert last.evaluation.sites == plain.evaluation.sites

    def test_fedtrans_keeps_heads_of_other_names_apart(self):
        sites = [*coarse_sites()[:2], site("x", samples=40, view=horses_and_others())]
        server, _ = played("fedtrans", sites, server_epochs=1, rounds=2)
        told = {n: b.tensors[f"{OWN_HEAD}/weight"] for t, n, b in server.engine.asked if t == "evaluate"}
        assert torch.equal(told["a"], told["b"])
        assert not torch.equal(told["a"], told["x"])

    @pytest.mark.parametrize("name", ["fedrep", "fedtrans"])
    def test_candidate_sets_have_no_head_of_their_own(self, name):
        with pytest.raises(ConfigError, match="one name for each sample, but site 'k' has candidates"):
            started(name, [site("k", view=Candidates(SPACE))])

    def test_tags_are_refused(self):
        with pytest.raises(ConfigError, match="one label for each sample, but site 't' has tags"):
            started("fedmt", [site("t", view=Tags(SPACE))])
