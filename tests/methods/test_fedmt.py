"""Mixed-type labels: what the server and the sites do in a round of fedmt, fedmt+ and their baselines."""

from __future__ import annotations

import pytest
import torch

from fedaccord.config import check_experiment
from fedaccord.data.site_data import Samples, SiteData
from fedaccord.errors import ConfigError
from fedaccord.evaluation.predict import predict_logits
from fedaccord.federation.round import play_round
from fedaccord.federation.state import RunState
from fedaccord.labels.estimation import CORRESPONDENCE, expected_counts
from fedaccord.labels.views import Candidates, Coarse, Tags, Unlabelled
from fedaccord.messages.message import Failure, Message
from fedaccord.methods.registry import METHODS, make_recipe
from fedaccord.training.mixed_types import SCORES
from fedaccord.training.own_head import OWN_HEAD
from small_federation import SPACE, cloud, exact, federation, pets_or_cattle, site

pytestmark = pytest.mark.usefixtures("one_thread")

QUICK = {"rounds": 3, "lr": 0.1, "batch": 8}
READY = {"warmup": 60, "threshold": 0.5, "lambda2": 1.0, "epochs": 1, "server_epochs": 2}
COUNT = "count coarse names"
SWAPPED = torch.tensor([[0.0, 0.0, 1.0], [1.0, 1.0, 0.0]])  # pets are called cattle, and cattle pets
HOWS = ("known", "estimated", "estimated-average", "learnable", "learnable-average")


def horses_and_others():
    """Coarse names of another set: only the dog is told apart."""
    return Coarse(SPACE, {"dog": ["dog"], "other": ["cat", "cow"]})


def coarse_sites():
    return [site(name, samples=40, view=pets_or_cattle()) for name in "abc"]


def samples(number=12, seed=5):
    part = cloud(number, exact(), torch.Generator().manual_seed(seed))
    return part.x, part.truth


def started(name, sites=None, labelled=True, **settings):
    recipe = make_recipe(name, {**QUICK, **settings})
    server = federation(recipe, sites or coarse_sites(), test=samples(60, seed=6))
    server.labelled = samples() if labelled else None
    server.ready()
    return server


def played(name, sites=None, rounds=3, **settings):
    server = started(name, sites, **settings)
    records = [play_round(server) for _ in range(rounds)]
    return server, records


def tasks(server):
    return [task for task, _, _ in server.engine.asked]


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
        with pytest.raises(ConfigError, match=r"trains on labelled samples of the server; give \[server\] labelled"):
            started(name, labelled=False)

    def test_its_schedule_is_the_sites(self):
        recipe = make_recipe("fedmt", {"rounds": 4, "lr": 0.2, "schedule": "cosine"})
        step = recipe.prepare[0]
        assert [step._lr_at(r) for r in (1, 3)] == pytest.approx([0.2, 0.1])
        other = make_recipe("fedmt", {"lr": 0.2, "server_lr": 0.5, "schedule": "constant"}).prepare[0]
        assert other._lr_at(100) == 0.5


class TestSilence:
    def test_the_papers_threshold_without_a_warm_up_is_told_in_a_warning(self):
        server, records = played("fedmt", lr=0.001)
        assert [r.replied for r in records] == [0, 0, 0]
        assert [r.figures["confident"] for r in records] == [0, 0, 0]
        assert records[0].warnings == [
            "in round 1 no sample of any site was above the threshold 0.95; "
            "lower method.threshold or give the server's model a method.warmup"
        ]
        assert "in every one of the 3 rounds" in records[-1].warnings[0]
        assert not server.dropped
        alone, _ = played("single", lr=0.001, clip=1.0)
        assert torch.equal(server.state.model, alone.state.model)  # f <- f^s

    def test_where_all_coarse_labels_are_learned_from_only_pseudo_labels_are_missed(self):
        _, records = played("fedmt", lr=0.001, project_on="all")
        assert [r.replied for r in records] == [3, 3, 3]
        assert records[-1].warnings[0].startswith(
            "in every one of the 3 rounds no sample of any site was above the threshold 0.95, "
            "so pseudo-labels were never used"
        )
        _, records = played("fedmt", lr=0.001, project_on="all", lambda2=0.0)
        assert [r.warnings for r in records] == [[], [], []]

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
        assert any("in every one of the 3 rounds" in warning for warning in play_round(server).warnings)

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
        assert error == [None] * 3 if how == "known" else all(0 <= e < 2 for e in error)

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
            accuracy[rule] = [play_round(server) for _ in range(3)][-1].evaluation.global_["accuracy"]
        assert accuracy["median"] > 0.8 > accuracy["mean"]

    @pytest.mark.parametrize(("settings", "task", "lie"), [
        ({"estimator": "em-pool"}, COUNT, 1e9 * SWAPPED),
        ({"correspondence": "estimated-average"}, COUNT, 1e9 * SWAPPED),
        ({"correspondence": "learnable-average"}, "train", 3e9 * SWAPPED - 1e9),
    ])  # fmt: skip
    def test_a_robust_rule_withstands_a_site_that_lies_about_its_names(self, settings, task, lie):
        sites = [site(name, samples=40, view=pets_or_cattle()) for name in "abcde"]
        server = started("fedmt", sites, aggregation="median", **settings, **READY)
        server.engine.spoil[task, "b"] = lambda reply: Message(
            {n: lie if n in (CORRESPONDENCE, "counts") else t for n, t in reply.tensors.items()}, reply.numbers,
            reply.words,
        )  # fmt: skip
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
            "what the names stand for is their mean"
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


class TestSettings:
    @pytest.mark.parametrize(("settings", "told"), [
        ({"name": "fedmt", "estimator": "em-pool", "correspondence": "estimated-average"}, "adds up counts of all"),
        ({"name": "fedmt", "lambda2": 0.0}, 'needs project_on = "all"'),
        ({"name": "fedmt", "threshold": 1.0}, "method.threshold is 1.0"),
        ({"name": "fedtrans", "warmup": 10}, "warmup has no effect in fedtrans, whose server trains after the last"),
        ({"name": "fedmt", "mu": 0.5}, 'mu has no effect unless local = "fedprox"'),
        ({"name": "semifl", "mu": 0.5, "local": "scaffold"}, 'mu has no effect unless local = "fedprox"'),
        ({"name": "fedmt", "correspondence": "known", "estimator": "em-pool"}, "estimator has no effect with corresp"),
        ({"name": "fedmt", "correspondence": "learnable", "estimator": "em-pool"}, "estimator has no effect with"),
        ({"name": "fedmt+", "correspondence": "known", "exchanges": 3}, "exchanges has no effect with"),
        ({"name": "fedmt", "exchanges": 3}, 'exchanges has no effect unless estimator = "em-pool"'),
        ({"name": "fedmt", "correspondence": "known", "smoothing": 0.1}, "smoothing has no effect with"),
        ({"name": "fedmt", "correspondence": "learnable-average", "smoothing": 0.1}, "smoothing has no effect with"),
    ])  # fmt: skip
    def test_what_has_no_meaning_is_refused(self, settings, told):
        table = {"data": {"dataset": "digits", "partition": {"kind": "iid", "sites": 2}}, "method": settings}
        with pytest.raises(ConfigError, match=told):
            check_experiment(table)

    @pytest.mark.parametrize("settings", [
        {"name": "fedmt+", "correspondence": "known"}, {"name": "fedmt+", "correspondence": "learnable"},
        {"name": "fedtrans"}, {"name": "fedmt", "local": "fedprox", "mu": 0.5},
        {"name": "fedmt", "correspondence": "estimated-average", "smoothing": 0.1},
    ])  # fmt: skip
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
