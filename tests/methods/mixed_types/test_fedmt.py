"""Mixed-type labels: what the server and the sites do in a round of fedmt and fedmt+."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedaccord.config import check_experiment
from fedaccord.errors import ConfigError
from fedaccord.federation.pooled_correspondence import SCORES
from fedaccord.federation.round import play_round
from fedaccord.federation.state import RunState
from fedaccord.labels.correspondence import CORRESPONDENCE, expected_counts
from fedaccord.labels.views import Coarse
from fedaccord.messages.message import Failure, Message
from fedaccord.methods.mixed_types import augment
from fedaccord.methods.registry import METHODS, make_recipe
from fedaccord.models.layout import Layout
from fedaccord.models.network import Network, predict_logits
from mixed_federation import (
    COUNT,
    HOWS,
    READY,
    coarse_sites,
    horses_and_others,
    played,
    started,
    tasks,
)
from small_federation import SPACE, exact, pets_or_cattle, site

pytestmark = pytest.mark.usefixtures("one_thread")


class TestTheServersStep:
    def test_sites_are_sent_the_model_after_it(self):
        server = started("fedmt", **READY)
        before = server.state.model.clone()
        play_round(server)
        sent = next(brief for task, _, brief in server.engine.asked if task == "train")
        assert not torch.equal(sent.tensors["model/head.weight"], server.layout.named(before)["head.weight"])

    def test_it_fits_the_servers_own_samples_and_says_how_well(self):
        _, records = played("single", rounds=3, warmup=200)
        assert records[0].figures["server_accuracy"] > 0.9

    def test_the_warm_up_is_before_the_first_round_only(self):
        """With no epochs and no sites, rounds after the first change nothing."""
        server = started("single", warmup=20, server_epochs=0)
        models = []
        for _ in range(3):
            play_round(server)
            models.append(server.state.model.clone())
        assert torch.equal(models[0], models[1])
        cold = started("single", warmup=0, server_epochs=0)
        before = cold.state.model.clone()
        play_round(cold)
        assert torch.equal(cold.state.model, before)

    @pytest.mark.parametrize(("how", "shifts"), [("weak", True), ("strong", False)])
    def test_images_are_shifted_or_changed_strongly(self, monkeypatch, how, shifts):
        called = []
        monkeypatch.setattr(augment, "shifted", lambda x, _: called.append("weak") or x)
        monkeypatch.setattr(augment, "rand_augment", lambda x, _: called.append("strong") or x)
        server = started("single", server_augment=how, rounds=1, server_epochs=1, warmup=0)
        step = server.recipe.prepare[0]
        wide = Network(nn.Sequential(nn.Flatten(), nn.Linear(16, 5)), nn.Linear(5, 3))
        server.network, server.layout = wide, Layout.of(wide)
        server.state.model = server.layout.read(wide)
        server.labelled = torch.rand(6, 1, 4, 4), torch.tensor([0, 1, 2] * 2)
        step.fit(server, "test", epochs=1)
        assert set(called) == {"weak" if shifts else "strong"}

    def test_its_samples_may_be_changed_as_strongly_as_the_sites(self):
        """Without noise and gaps a strongly changed sample is the sample itself."""
        weak, strong = (played("single", server_augment=how)[0].state.model for how in ("weak", "strong"))
        unchanged = played("single", server_augment="strong", noise=0.0, gaps=0.0)[0].state.model
        assert not torch.allclose(strong, weak)
        assert torch.allclose(unchanged, weak)

    def test_the_same_seed_gives_the_same_model(self):
        assert torch.equal(played("fedmt+")[0].state.model, played("fedmt+")[0].state.model)

    @pytest.mark.parametrize("name", ["fedmt", "fedmt+", "semifl", "single", "fedrep", "fedtrans"])
    def test_without_labelled_samples_it_is_refused(self, name):
        with pytest.raises(ConfigError, match=r"trains on labelled samples of the server; set labelled in \[server\]"):
            started(name, labelled=False)

    def test_its_schedule_is_the_sites(self):
        recipe = make_recipe("fedmt", {"rounds": 4, "lr": 0.2, "schedule": "cosine"})
        step = recipe.prepare[0]
        assert [step.settings.server_lr_at(r) for r in (1, 3)] == pytest.approx([0.2, 0.1])
        other = make_recipe("fedmt", {"lr": 0.2, "server_lr": 0.5, "schedule": "constant"}).prepare[0]
        assert other.settings.server_lr_at(100) == 0.5


class TestSilence:
    def test_the_papers_threshold_without_a_warm_up_is_told_in_a_warning(self):
        server, records = played("fedmt", lr=0.001)
        assert [r.replied for r in records] == [0, 0, 0]
        assert [r.figures["confident"] for r in records] == [0, 0, 0]
        assert records[0].warnings == [
            "in round 1 no sample of any site was above the threshold 0.95; "
            "lower method.threshold or give the server's model a method.warmup"
        ]
        assert "in all 3 rounds" in records[-1].warnings[0]
        assert not server.dropped
        alone, _ = played("single", lr=0.001, clip=1.0)
        assert torch.equal(server.state.model, alone.state.model)  # f <- f^s

    def test_where_all_coarse_labels_are_learned_from_only_pseudo_labels_are_missed(self):
        _, records = played("fedmt", lr=0.001, project_on="all")
        assert [r.replied for r in records] == [3, 3, 3]
        assert (
            records[-1]
            .warnings[0]
            .startswith(
                "in all 3 rounds no sample of any site was above the threshold 0.95, so pseudo-labels were never used"
            )
        )
        _, records = played("fedmt", lr=0.001, project_on="all", lambda2=0.0)
        assert [r.warnings for r in records] == [[], [], []]

    def test_pseudo_labels_alone_miss_the_samples(self):
        _, records = played("semifl", lr=0.001)
        assert "so the sites' samples were never used" in records[-1].warnings[0]

    def test_with_a_warm_up_there_is_none(self):
        server, records = played("fedmt", **READY)
        assert server.warnings == []
        assert all(0 < r.figures["confident"] <= 1 for r in records)
        assert [r.replied for r in records] == [3, 3, 3]

    @pytest.mark.parametrize("lost", ["abc", "ab"])
    def test_a_reply_that_was_dropped_is_no_sign_of_doubt(self, lost):
        def broken(reply):
            reply.tensors["model/head.bias"] = torch.full((3,), torch.nan)
            return reply

        server = started("fedmt", **READY)
        server.engine.spoil.update({("train", name): broken for name in lost})
        records = [play_round(server) for _ in range(3)]
        assert {drop.site for drop in records[0].dropped} == set(lost)
        assert server.warnings == []
        if lost == "abc":
            assert all("confident" not in record.figures for record in records)
        else:
            kept = server.engine.replies["train", "c"].numbers["confident"]
            assert records[-1].figures["confident"] == pytest.approx(kept / 40)

    def test_the_silence_of_the_others_is_told_all_the_same(self):
        server = started("fedmt", lr=0.001, project_on="all")
        server.engine.spoil["train", "a"] = lambda reply: Failure("a", "train", "gone")
        assert "no sample of any site that answered was above the threshold" in play_round(server).warnings[0]

    def test_the_count_of_silent_rounds_survives_a_checkpoint(self):
        server, _ = played("fedmt", rounds=2, lr=0.001)
        server.state = RunState.from_message(server.state.to_message())
        assert any("in all 3 rounds" in warning for warning in play_round(server).warnings)

    def test_a_site_that_is_silent_is_left_out_of_the_mean_and_counted_as_unsure(self):
        sure, unsure = site("a", samples=40, view=pets_or_cattle()), site("b", samples=40, view=pets_or_cattle())
        server = started("fedmt", [sure, unsure], **{**READY, "threshold": 0.6})
        before = server.state.model
        server.recipe.prepare[0](server)  # the step that the round will take
        points = 2 * torch.randn(5000, 4, generator=torch.Generator().manual_seed(0))
        doubt = torch.softmax(predict_logits(server.load_network(), points), -1).amax(-1)
        unsure.train.x.copy_(points[doubt.argmin()])
        server.state.model = before
        records = [play_round(server)]
        assert records[0].replied == 1
        sent = server.engine.replies["train", "a"].tensors["model/head.weight"]
        assert torch.allclose(server.layout.named(server.state.model)["head.weight"], sent)
        assert records[0].figures["confident"] <= 0.5
        assert records[0].dropped == []


class TestCorrespondence:
    @pytest.mark.parametrize("how", HOWS)
    def test_every_way_learns_and_judges_sites_in_their_own_names(self, how):
        server, records = played("fedmt", correspondence=how, **READY)
        figures = records[-1].evaluation
        assert figures.global_["accuracy"] > 0.8
        assert figures.over_sites()["mean"]["accuracy"] > 0.6
        assert server.dropped == []
        error = [m.get("matrix_error") for m in figures.sites.values()]
        # A matrix that knows nothing is off by 1.22.
        assert error == [None] * 3 if how == "known" else all(0 <= e < (1 if "learn" in how else 0.5) for e in error)

    def test_a_private_estimate_never_leaves_its_site(self):
        server, _ = played("fedmt", correspondence="estimated", **READY)
        assert set(tasks(server)) == {"join", "train", "evaluate"}
        for message in [*(b for _, _, b in server.engine.asked), *server.engine.replies.values()]:
            assert not any(CORRESPONDENCE in name for name in message.tensors)
        assert CORRESPONDENCE in server.engine.kept["a"].tensors
        assert not any(CORRESPONDENCE in name for name in server.state.method.tensors)

    def test_averages_are_made_within_groups_of_the_same_names(self):
        sites = [*coarse_sites()[:2], site("x", samples=40, view=horses_and_others())]
        server, _ = played("fedmt", sites, correspondence="estimated-average", **READY)
        kept = server.state.method.select(CORRESPONDENCE)
        assert len(kept) == 2
        matrices = {n: b.tensors[CORRESPONDENCE] for t, n, b in server.engine.asked if t == "train"}
        assert torch.equal(matrices["a"], matrices["b"])
        assert not torch.equal(matrices["a"], matrices["x"])
        assert matrices["x"][:, 1].argmax() == 0  # a dog is a dog there
        assert matrices["a"][:, 1].argmax() == 0  # and a pet here

    def test_the_average_is_over_the_sites_of_the_round(self):
        server, _ = played("fedmt", correspondence="estimated-average", participation=1, rounds=1, **READY)
        assert tasks(server).count("count coarse names") == 1
        assert tasks(server).count("train") == 1

    def test_learned_matrices_are_sent_checked_and_averaged_for_the_next_round(self):
        server = started("fedmt", correspondence="learnable-average", **READY)

        def wrong(reply):
            reply.tensors[CORRESPONDENCE] = torch.full((5, 3), 0.2)
            return reply

        server.engine.spoil["train", "c"] = wrong
        record = play_round(server)
        assert [(d.site, d.tensor) for d in record.dropped] == [("c", CORRESPONDENCE)]
        sent = [server.engine.replies["train", n].tensors[CORRESPONDENCE] for n in "ab"]
        play_round(server)
        told = [b for t, n, b in server.engine.asked if t == "train" and n == "a"][-1].tensors[CORRESPONDENCE]
        assert torch.allclose(told, torch.stack(sent).mean(0), atol=1e-6)

    def test_pooled_em_asks_for_sums_only_and_finds_the_names(self):
        server, records = played("fedmt+", exchanges=4, warmup=100)
        assert tasks(server).count("count coarse names") == 3 * 3 * 4
        error = records[-1].evaluation.over_sites()["mean"]["matrix_error"]
        single, by_counts = played("fedmt", **READY)
        assert error < by_counts[-1].evaluation.over_sites()["mean"]["matrix_error"] < 2
        answer = server.engine.replies["count coarse names", "a"]
        assert {name: tuple(t.shape) for name, t in answer.tensors.items()} == {"counts": (2, 3)}

    def test_the_model_goes_with_the_first_question_only_and_the_answers_are_as_if_it_went_with_each(self):
        server = started("fedmt+", exchanges=3, warmup=60)
        play_round(server)
        asked = [brief for task, name, brief in server.engine.asked if task == COUNT and name == "a"]
        assert [any(n.startswith("model/") for n in brief.tensors) for brief in asked] == [True, False, False]
        network, sent = server.load_network(), asked[0].tensors
        server.layout.load(network, torch.cat([sent[f"model/{slot.name}"].flatten() for slot in server.layout.slots]))
        data = server.engine.host.sites["a"].train
        chances = torch.softmax(predict_logits(network, data.x), -1)
        counts = expected_counts(chances, data.target, asked[-1].tensors[CORRESPONDENCE])
        assert torch.allclose(server.engine.replies[COUNT, "a"].tensors["counts"], counts)

    def test_scores_are_kept_within_a_round_only(self):
        server = started("fedmt+", exchanges=3, warmup=60)
        held = []

        def watched(reply):
            held.append(SCORES in server.engine.kept["a"].tensors)
            return reply

        server.engine.spoil[COUNT, "a"] = watched
        play_round(server)
        assert held == [True, True, False]
        assert not any(SCORES in memory.tensors for memory in server.engine.memories().values())

    def test_a_site_that_missed_the_first_question_is_not_asked_the_others(self):
        server = started("fedmt+", exchanges=3, warmup=60)
        server.engine.spoil[COUNT, "b"] = lambda reply: Failure("b", COUNT, "gone")
        record = play_round(server)
        assert [name for task, name, _ in server.engine.asked if task == COUNT].count("b") == 1
        assert record.replied == 3

    def test_counts_of_a_wrong_shape_are_dropped_and_the_rest_used(self):
        server = started("fedmt+", exchanges=2, warmup=60)
        server.engine.spoil["count coarse names", "b"] = lambda reply: Message(
            {"counts": torch.ones(9, 3)}, reply.numbers, reply.words
        )
        record = play_round(server)
        assert {(d.site, d.tensor) for d in record.dropped} == {("b", "counts")}
        assert record.replied == 3

    def test_a_site_that_was_never_drawn_is_judged_by_its_groups_matrix(self):
        server, records = played("fedmt+", participation=1, rounds=1, warmup=60)
        figures = records[0].evaluation.sites
        assert all(m["accuracy"] > 0.5 for m in figures.values())
        assert len(server.engine.memories()) == 1

    @pytest.mark.parametrize("how", ["estimated", "estimated-average", "learnable", "learnable-average"])
    def test_a_site_whose_names_nobody_knows_is_not_judged_in_them(self, how):
        """No sample is confident, so nothing is found out."""
        server, records = played("fedmt", correspondence=how, lr=0.001)
        for told in records[-1].evaluation.sites.values():
            assert set(told) == {"accuracy_classes", "confident", "samples"}
        assert not any(counts.any() for counts in records[-1].evaluation.site_confusions.values())
        assert not any(CORRESPONDENCE in memory.tensors for memory in server.engine.memories().values())
        assert not server.state.method.select(CORRESPONDENCE)

    def test_neither_is_one_that_was_never_drawn_and_estimates_alone(self):
        server, records = played("fedmt", participation=1, rounds=1, **READY)
        figures = records[0].evaluation.sites
        (drawn,) = records[0].asked
        assert [name for name, told in figures.items() if "accuracy" in told] == [drawn]
        assert records[0].evaluation.over_sites()["mean"]["accuracy"] == figures[drawn]["accuracy"]

    @pytest.mark.parametrize("name", ["semifl", "single"])
    def test_names_alone_are_no_task_to_be_judged_in(self, name):
        sites = coarse_sites()
        object.__setattr__(sites[0], "view", Coarse(SPACE, names=["pet", "cattle"]))
        figures = played(name, sites, rounds=1, warmup=60)[1][0].evaluation.sites
        assert "accuracy" not in figures["a"]
        assert "accuracy" in figures["b"]

    def test_sites_that_declare_nothing_get_the_same_model(self):
        def nameless(one):
            object.__setattr__(one, "view", Coarse(SPACE, names=["pet", "cattle"]))
            return one

        for name in ("fedmt", "fedmt+"):
            declared, _ = played(name, **READY)
            alone, records = played(name, [nameless(one) for one in coarse_sites()], **READY)
            assert torch.equal(declared.state.model, alone.state.model)
            assert "matrix_error" not in records[-1].evaluation.over_sites()["mean"]

    def test_exact_sites_may_take_part(self):
        sites = [*coarse_sites()[:2], site("e", samples=40, view=exact())]
        server, records = played("fedmt+", sites, warmup=60)
        assert records[-1].replied == 3
        assert records[-1].evaluation.global_["accuracy"] > 0.8


class TestSettings:
    @pytest.mark.parametrize(
        ("settings", "told"),
        [
            ({"name": "fedmt", "estimator": "em-pool", "correspondence": "estimated-average"}, "adds up counts of all"),
            ({"name": "fedmt", "lambda2": 0.0}, 'needs project_on = "all"'),
            ({"name": "fedmt", "threshold": 1.0}, "method.threshold is 1.0"),
            (
                {"name": "fedtrans", "warmup": 10},
                "warmup has no effect in fedtrans, whose server trains after the last",
            ),
            ({"name": "fedmt", "mu": 0.5}, 'mu has no effect unless local = "fedprox"'),
            ({"name": "semifl", "mu": 0.5, "local": "scaffold"}, 'mu has no effect unless local = "fedprox"'),
            (
                {"name": "fedmt", "correspondence": "known", "estimator": "em-pool"},
                "estimator has no effect with corresp",
            ),
            ({"name": "fedmt", "correspondence": "learnable", "estimator": "em-pool"}, "estimator has no effect with"),
            ({"name": "fedmt+", "correspondence": "known", "exchanges": 3}, "exchanges has no effect with"),
            ({"name": "fedmt", "exchanges": 3}, 'exchanges has no effect unless estimator = "em-pool"'),
            ({"name": "fedmt", "correspondence": "known", "smoothing": 0.1}, "smoothing has no effect with"),
            (
                {"name": "fedmt", "correspondence": "learnable-average", "smoothing": 0.1},
                "smoothing has no effect with",
            ),
        ],
    )
    def test_what_has_no_meaning_is_refused(self, settings, told):
        table = {"data": {"dataset": "digits", "partition": {"kind": "iid", "sites": 2}}, "method": settings}
        with pytest.raises(ConfigError, match=told):
            check_experiment(table)

    @pytest.mark.parametrize(
        "settings",
        [
            {"name": "fedmt+", "correspondence": "known"},
            {"name": "fedmt+", "correspondence": "learnable"},
            {"name": "fedtrans"},
            {"name": "fedmt", "local": "fedprox", "mu": 0.5},
            {"name": "fedmt", "correspondence": "estimated-average", "smoothing": 0.1},
        ],
    )
    def test_a_file_in_which_every_default_stands_can_be_read_again(self, settings):
        table = {"data": {"dataset": "digits", "partition": {"kind": "iid", "sites": 2}}, "method": settings}
        complete = check_experiment(table)
        assert check_experiment({**table, "method": dict(complete.method)}).method == complete.method

    def test_replies_are_weighed_by_the_samples_they_trained_on(self):
        for on, number in (("confident", "confident"), ("all", None)):
            server, _ = played("fedmt", rounds=1, weights="samples", **READY, project_on=on)
            reply = server.engine.replies["train", "a"].numbers
            assert reply["samples"] == (reply[number] if number else 40)

    def test_the_papers_defaults_and_ours(self):
        paper, ours = (METHODS[name].settings() for name in ("fedmt", "fedmt+"))
        assert (paper.threshold, paper.lambda2, paper.epochs, paper.rounds, paper.lr) == (0.95, 1 / 16, 5, 200, 0.03)
        assert (paper.estimator, paper.pseudo_label, paper.warmup) == ("counts", "paper", 0)
        assert (ours.estimator, ours.pseudo_label, ours.threshold, ours.lambda2) == ("em-pool", "posterior", 0.5, 1.0)

    def test_the_likelihood_alone_is_a_control(self):
        server, records = played("fedmt", correspondence="known", project_on="all", lambda2=0.0, warmup=60)
        assert records[-1].replied == 3
        logits = predict_logits(server.load_network(), server.test[0])
        assert (logits.argmax(-1) == server.test[1]).float().mean() > 0.8
