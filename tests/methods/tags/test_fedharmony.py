"""FedHarmony between server and sites: who is told what, who counts how much, and what a liar can do."""

import numpy as np
import pytest
import torch

from fedaccord.errors import ConfigError
from fedaccord.federation.admission import AdmitSection
from fedaccord.federation.membership import Membership
from fedaccord.federation.round import play_round
from fedaccord.federation.state import RunState
from fedaccord.labels.correlation import phi_of_sums, tag_sums
from fedaccord.labels.views import Candidates, Tags
from fedaccord.messages.message import Message, from_bytes, to_bytes
from fedaccord.methods.registry import make_recipe
from fedaccord.methods.tags.consensus import Consensus, leave_one_out
from fedaccord.methods.tags.server import QUALITY, HarmonyServer
from fedaccord.methods.tags.site import (
    ALIGNMENT_SHARE,
    BLOCKS,
    CORRELATE,
    CORRELATION,
    COUNT,
    COUNTS,
    FREQUENCIES,
    PAIRS,
    TAUGHT,
    TEACH,
    TEACHER,
)
from small_federation import SPACE, exact, federation, site

pytestmark = pytest.mark.usefixtures("one_thread")
WORK = {"epochs": 1, "batch": 8, "lr": 0.01, "rounds": 4}


def tagged(name, samples=24, known=None):
    return site(name, samples=samples, view=Tags(SPACE, known), test=12)


def played(method="fedharmony", sites=None, rounds=2, **settings):
    server = federation(make_recipe(method, WORK | settings), sites or [tagged("a"), tagged("b", 40), tagged("c")])
    server.ready()
    return server, [play_round(server) for _ in range(rounds)]


def briefs(server, task, at=None):
    return [
        (site, brief) for t, site, brief in server.engine.asked if t == task and at in (None, brief.numbers["round"])
    ]


def test_steps_stand_in_for_the_methods_own_number_of_epochs():
    assert make_recipe("fedharmony", {}).settings.epochs == 5
    settings = make_recipe("fedharmony", {"steps": 3}).settings
    assert (settings.steps, settings.epochs) == (3, None)
    with pytest.raises(ValueError, match="steps or epochs, not both"):
        make_recipe("fedharmony", {"steps": 3, "epochs": 2})


def test_a_site_has_one_prior():
    with pytest.raises(ValueError, match="set one of them"):
        make_recipe("fedharmony+", {"prior": "all"})
    assert make_recipe("fedharmony+", {"prior": "all", "site_prior": False}).settings.prior == "all"


def test_a_pull_towards_the_received_model_goes_with_it():
    moved = {}
    for mu in (0.0, 100.0):
        server, _ = played("fedharmony+", rounds=1, mu=mu)
        start, _ = played("fedharmony+", rounds=0)
        moved[mu] = float((server.state.model - start.state.model).norm())
    assert moved[100.0] < 0.7 * moved[0.0]


class TestPublished:
    def test_one_exchange_in_a_round_and_no_teacher_in_the_first(self):
        server, _ = played()
        assert {task for task, _, _ in server.engine.asked} == {"join", "train", "evaluate"}
        assert not any(TEACHER in brief.tensors for _, brief in briefs(server, "train", 1))
        assert all(TEACHER in brief.tensors for _, brief in briefs(server, "train", 2))
        assert not any(TEACHER in brief.tensors for _, brief in briefs(server, "evaluate"))

    def test_a_teacher_is_the_mean_of_the_others_by_sample_count(self):
        server, _ = played(blocks="off", rounds=1)
        sent = {name: server.engine.replies["train", name].tensors[CORRELATION] for name in "abc"}
        play_round(server)
        told = dict(briefs(server, "train", 2))["a"]
        expected = ((40 * sent["b"] + 24 * sent["c"]) / 64).fill_diagonal_(0)
        torch.testing.assert_close(told.tensors[TEACHER], expected, rtol=1e-4, atol=1e-5)
        assert BLOCKS not in told.tensors

    def test_two_exchanges_ask_with_the_model_of_the_round(self):
        server, _ = played(exchanges=2)
        assert len(briefs(server, CORRELATE)) == 6
        assert all(TEACHER in brief.tensors for _, brief in briefs(server, "train", 1))
        asked = dict(briefs(server, CORRELATE, 2))["a"]
        trained = dict(briefs(server, "train", 2))["a"]
        assert torch.equal(asked.tensors["model/head.weight"], trained.tensors["model/head.weight"])

    def test_common_blocks_are_made_once_for_all(self):
        server, _ = played(rounds=2, blocks="common", block_count=2)
        blocks = [brief.tensors[BLOCKS] for _, brief in briefs(server, "train", 2)]
        assert all(torch.equal(b, blocks[0]) for b in blocks)
        assert 1 < len(blocks[0].unique()) <= 3

    def test_each_site_may_have_blocks_of_its_own(self):
        server, _ = played(blocks="per-site")
        assert {f"{BLOCKS}/{name}" for name in "abc"} <= set(server.state.method.tensors)
        assert all(BLOCKS in brief.tensors for _, brief in briefs(server, "train", 2))

    def test_at_first_size_counts_and_later_agreement(self):
        server, records = played(rounds=3, volume_rounds=2.0, gamma=5.0)
        # RunOutcome once more up to the last beat, to see the weights.
        weights = {}
        for rounds in (0, 2):
            again, _ = played(rounds=rounds, volume_rounds=2.0, gamma=5.0)
            told = {s: again.brief(s, again.tensors) for s in "abc"}
            weights[rounds] = again.admit(again.ask("train", told)).weights
        assert weights[0].tolist() == pytest.approx([24 / 88, 40 / 88, 24 / 88])
        quality = torch.tensor([records[2].figures[f"{QUALITY}/{name}"] for name in "abc"], dtype=torch.float64)
        torch.testing.assert_close(weights[2], quality / quality.sum(), rtol=1e-4, atol=1e-6)

    def test_sizes_alone_and_all_alike(self):
        for weights, expected in (("samples", [24, 40, 24]), ("uniform", [1, 1, 1])):
            server, _ = played(rounds=0, weights=weights)
            told = {s: server.brief(s, server.tensors) for s in "abc"}
            assert server.admit(server.ask("train", told)).weights.tolist() == expected

    def test_a_single_site_has_no_teacher_and_all_the_weight(self):
        for method in ("fedharmony", "fedharmony+"):
            server, records = played(method, [tagged("a")], rounds=3)
            assert not any(TEACHER in brief.tensors for _, _, brief in server.engine.asked)
            assert all(record.replied == 1 and not record.dropped for record in records)
            sent = server.flat("a", server.engine.replies["train", "a"])
            torch.testing.assert_close(server.state.model, sent)

    @pytest.mark.parametrize("off", [{"strength": 0.0}, {"teacher": "none"}, {"teacher": "none", "exchanges": 2}])
    def test_agreement_counts_also_where_nobody_is_taught(self, off):
        server, records = played(rounds=1, gamma=100.0, **off)
        sent = {name: server.engine.replies["train", name].tensors[CORRELATION] for name in "abc"}
        records.append(play_round(server))
        assert {task for task, _, _ in server.engine.asked} == {"join", "train", "evaluate"}
        assert not any(TEACHER in brief.tensors for _, _, brief in server.engine.asked)
        others = (40 * sent["b"] + 24 * sent["c"]) / 64
        apart = ~torch.eye(3, dtype=torch.bool)
        now = server.engine.replies["train", "a"].tensors[CORRELATION]
        far = float((now - others)[apart].square().mean().sqrt())
        assert far > 1e-3
        assert records[1].figures[f"{QUALITY}/a"] == pytest.approx(np.exp(-100 * far), rel=1e-4)

    def test_nothing_leaves_a_site_that_nobody_needs(self):
        server, _ = played(teacher="none", weights="samples")
        assert CORRELATION not in server.engine.replies["train", "a"].tensors
        assert not server.state.method.tensors

    def test_the_cost_of_the_alignment_is_noted_where_there_was_any(self):
        _, records = played()
        assert 0 < records[1].figures[ALIGNMENT_SHARE] < 1
        assert ALIGNMENT_SHARE not in records[0].figures
        for off in ({"strength": 0.0}, {"teacher": "none"}):
            assert not any(ALIGNMENT_SHARE in record.figures for record in played(**off)[1])

    def test_other_views_are_refused_by_name(self):
        for view in (exact(), Candidates(SPACE)):
            with pytest.raises(ConfigError, match="needs sites with tags, but site 'x'"):
                played(sites=[tagged("a"), site("x", view=view)])


class TestPrivateTags:
    def sites(self):
        return [tagged("a", known=["cat", "dog"]), tagged("b", known=["dog", "cow"]), tagged("c")]

    @pytest.mark.parametrize("method", ["fedharmony", "fedharmony+"])
    def test_no_message_to_a_site_tells_of_tags_it_does_not_know(self, method):
        server, records = played(method, self.sites(), rounds=2)
        assert not any(record.dropped for record in records)
        for _, name, brief in server.engine.asked:
            for tensor, value in brief.tensors.items():
                if name == "a" and ("head" in tensor or tensor in (TEACHER, TAUGHT, BLOCKS, FREQUENCIES)):
                    assert value.shape[0] == 2, tensor

    @pytest.mark.parametrize("method", ["fedharmony", "fedharmony+"])
    def test_a_site_cannot_move_the_row_of_a_tag_it_does_not_know(self, method):
        server, _ = played(method, self.sites(), rounds=0)
        server.admission = AdmitSection(norm=0)
        for step in server.recipe.prepare:
            step(server)
        told = {s: server.brief(s, server.tensors) for s in "abc"}
        answers = server.ask("train", told)
        answers["a"].tensors["model/head.weight"] += 1e3
        before = server.tensors["head.weight"].clone()
        server.combine(server.admit(answers))
        moved = (server.tensors["head.weight"] - before).abs().amax(1)
        assert moved[0] > 10
        assert moved[2] < 10

    def test_a_pair_is_taught_from_the_sites_that_know_both(self):
        server, _ = played("fedharmony+", self.sites(), rounds=1)
        told = dict(briefs(server, TEACH))["c"]
        expected, _ = phi_of_sums(tag_sums(self.sites()[0].train.target), 20.0)
        assert told.tensors[TEACHER][0, 1] == pytest.approx(float(expected[0, 1]), abs=2e-1)
        assert not told.tensors[TAUGHT][0, 2]  # cat with cow: known to c alone
        assert told.tensors[TAUGHT][0, 1]


class TestCounts:
    def test_tags_are_counted_and_taught_once(self):
        server, _ = played("fedharmony+", rounds=3)
        assert [site for site, _ in briefs(server, COUNT)] == ["a", "b", "c"]
        assert [site for site, _ in briefs(server, TEACH)] == ["a", "b", "c"]
        assert not any(TEACHER in brief.tensors for _, brief in briefs(server, "train"))
        assert CORRELATION not in server.engine.replies["train", "a"].tensors

    def test_the_teacher_is_phi_of_all_others_counts(self):
        sites = [tagged("a"), tagged("b", 40), tagged("c")]
        server, _ = played("fedharmony+", sites, rounds=1)
        told = dict(briefs(server, TEACH))["a"]
        expected, pairs = phi_of_sums(tag_sums(torch.cat([s.train.target for s in sites[1:]])), 20.0)
        torch.testing.assert_close(told.tensors[TEACHER], expected.float(), rtol=1e-4, atol=1e-6)
        assert torch.equal(told.tensors[TAUGHT], pairs)
        everybody = torch.cat([s.train.target for s in sites]).float().mean(0)
        torch.testing.assert_close(told.tensors[FREQUENCIES], everybody)

    def test_a_failed_lesson_is_given_again(self):
        server, _ = played("fedharmony+", rounds=0)
        server.engine.spoil[TEACH, "b"] = lambda reply: Message(words={"run": "another"})
        play_round(server)
        server.engine.spoil.clear()
        play_round(server)
        assert [site for site, _ in briefs(server, TEACH)] == ["a", "b", "c", "b"]

    @pytest.mark.parametrize("seed", range(6))
    def test_permuted_tags_are_all_taught_other_tags_correlations(self, seed):
        def taught(**settings):
            sites = [tagged("a"), tagged("b", 40)]
            server = federation(make_recipe("fedharmony+", WORK | settings), sites, seed=seed)
            server.recipe.prepare[0](server)
            return dict(briefs(server, TEACH))["a"].tensors[TEACHER]

        plain, control = taught(), taught(permuted=True)
        apart = ~torch.eye(3, dtype=torch.bool)
        torch.testing.assert_close(plain[apart].sort().values, control[apart].sort().values)
        assert (plain != control)[apart].all()
        for tag in range(3):
            assert not torch.equal(plain[tag][apart[tag]].sort().values, control[tag][apart[tag]].sort().values)

    def test_head_rows_count_by_how_often_a_tag_is_annotated(self):
        def half(data):
            target = data.train.target.clone()
            target[: len(target) // 2, 0] = -1
            return type(data)(data.name, data.view, type(data.train)(data.train.x, target), data.test)

        sites = [half(tagged("a")), tagged("b")]
        server, _ = played("fedharmony+", sites, rounds=0)
        for step in server.recipe.prepare:
            step(server)
        replies = server.admit(server.ask("train", {s: server.brief(s, server.tensors) for s in "ab"}))
        assert replies.row_weights.tolist() == [[0.5, 1.0, 1.0], [1.0, 1.0, 1.0]]
        server.combine(replies)
        a, b = (server.engine.replies["train", name].tensors["model/head.bias"] for name in "ab")
        torch.testing.assert_close(server.tensors["head.bias"][0], (0.5 * a[0] + b[0]) / 1.5)
        torch.testing.assert_close(server.tensors["head.bias"][1], (a[1] + b[1]) / 2)

    def test_made_up_counts_are_cut_to_what_can_be(self):
        server, _ = played("fedharmony+", rounds=0)
        server.engine.spoil[COUNT, "b"] = lambda r: Message({COUNTS: torch.full((3, 3, 3), 1e30)}, r.numbers, r.words)
        play_round(server)
        assert server.state.method.tensors[f"{COUNTS}/b"].max() == 40


class TestComingAndGoing:
    def stay(self, method, memberships, rounds=2, **settings):
        """Play rounds in which sites come and go; site c is as large as the others together."""
        sites = [tagged("a"), tagged("b", 40), tagged("c", 64)]
        server = federation(make_recipe(method, WORK | settings), sites)
        server.memberships = memberships
        server.state.cards.clear()
        server.join()
        for _ in range(rounds):
            play_round(server)
        return server, {data.name: data.train.target for data in sites}

    def test_a_late_joiner_is_counted_and_everybody_taught_anew(self):
        server, _ = self.stay("fedharmony+", {"c": Membership(2, None)})
        assert [site for site, _ in briefs(server, COUNT)] == ["a", "b", "c"]
        assert [site for site, _ in briefs(server, TEACH)] == ["a", "b", "a", "b", "c"]

    @pytest.mark.parametrize(("stay", "others"), [(Membership(2, None), ["b", "bc"]), (Membership(1, 2), ["bc", "b"])])
    def test_others_are_taught_by_those_who_are_there(self, stay, others):
        server, targets = self.stay("fedharmony+", {"c": stay})
        for at, names in enumerate(others, 1):
            expected, _ = phi_of_sums(tag_sums(torch.cat([targets[name] for name in names])), 20.0)
            told = dict(briefs(server, TEACH, at))["a"].tensors[TEACHER]
            torch.testing.assert_close(told, expected.float(), rtol=1e-4, atol=1e-6)

    def test_a_leavers_scores_teach_nobody(self):
        server, _ = self.stay("fedharmony", {"c": Membership(1, 2)}, rounds=1, blocks="off")
        sent = server.engine.replies["train", "b"].tensors[CORRELATION]
        play_round(server)
        told = dict(briefs(server, "train", 2))["a"].tensors[TEACHER]
        torch.testing.assert_close(told, sent.clone().fill_diagonal_(0))

    def test_the_last_one_there_forgets_what_others_taught(self):
        server, _ = self.stay("fedharmony+", {"b": Membership(1, 2), "c": Membership(1, 2)}, rounds=1)
        assert TEACHER in server.engine.memories()["a"].tensors
        play_round(server)
        assert {TEACHER, TAUGHT, BLOCKS}.isdisjoint(server.engine.memories()["a"].tensors)

    def test_a_leaver_is_drawn_with_its_last_round_and_not_after(self):
        for rounds, drawn in ((1, {None, "a", "b", "c"}), (2, {None, "a", "b"})):
            server, _ = self.stay("fedharmony+", {"c": Membership(1, 2)}, rounds=rounds)
            assert {line["site"] for line in server.recipe.report(server)} == drawn


class TestLiar:
    @pytest.mark.parametrize(("operator", "fooled"), [("mean", True), ("median", False), ("trimmed-mean", False)])
    def test_robust_operators_withstand_a_made_up_matrix(self, operator, fooled):
        sites = [tagged(name, 40) for name in "abcdef"]

        def taught(lie):
            server, _ = played(sites=sites, rounds=0, consensus=operator, blocks="off")
            if lie:

                def made_up(reply):
                    reply.tensors[CORRELATION] = -torch.sign(reply.tensors[CORRELATION])
                    return reply

                server.engine.spoil["train", "f"] = made_up
            play_round(server)
            play_round(server)
            return dict(briefs(server, "train", 2))["a"].tensors[TEACHER]

        apart = ~torch.eye(3, dtype=torch.bool)
        moved = float((taught(True) - taught(False))[apart].abs().max())
        assert (moved > 0.1) == fooled

    @pytest.mark.parametrize("settings", [{"teacher": "none"}, {"teacher": "counts"}, {"exchanges": 2}])
    def test_a_robust_rule_looks_at_no_weights_so_nothing_is_sent_for_them(self, settings):
        server, records = played(rounds=1, aggregation="median", **settings)
        assert CORRELATION not in server.engine.replies["train", "a"].tensors
        assert not any(name.startswith(QUALITY) for name in records[0].figures)
        assert any("'median'" in said and 'weights = "quality" had no effect' in said for said in records[0].warnings)

    def test_a_robust_rule_leaves_the_teacher_as_it_is(self):
        server, records = played(aggregation="median")
        assert all(TEACHER in brief.tensors for _, brief in briefs(server, "train", 2))
        assert not any(name.startswith(QUALITY) for name in records[1].figures)

    def test_a_robust_rule_needs_no_counts_of_annotations(self):
        server, records = played("fedharmony+", rounds=1, aggregation="median", teacher="none", site_prior=False)
        assert not briefs(server, COUNT)
        assert any('so head_rows = "annotated" had no effect' in said for said in records[0].warnings)
        _, records = played("fedharmony+", rounds=1, aggregation="median", head_rows="owners")
        assert not records[0].warnings

    def test_a_matrix_out_of_bounds_is_cut(self):
        server, _ = played(rounds=0)
        server.admission = AdmitSection(norm=0)

        def huge(reply):
            reply.tensors[CORRELATION] = reply.tensors[CORRELATION] * 0 + 1e6
            return reply

        server.engine.spoil["train", "b"] = huge
        play_round(server)
        assert server.state.method.tensors[f"{CORRELATION}/b"].abs().max() == 1


@pytest.mark.parametrize("method", ["fedharmony", "fedharmony+"])
def test_a_resumed_run_ends_as_if_it_had_never_been_cut(method):
    whole, _ = played(method, rounds=3)
    cut, _ = played(method, rounds=1)
    again, _ = played(method, rounds=0)
    again.state = RunState.from_message(from_bytes(to_bytes(cut.state.to_message())))
    again.engine.restore(cut.engine.memories())
    for _ in range(2):
        play_round(again)
    assert torch.equal(again.state.model, whole.state.model)
    assert not briefs(again, COUNT)


def test_the_order_of_work_changes_nothing():
    for method in ("fedharmony", "fedharmony+"):
        forwards, _ = played(method)
        backwards = federation(make_recipe(method, WORK), [tagged("c"), tagged("b", 40), tagged("a")])
        backwards.engine.backwards = True
        for _ in range(2):
            play_round(backwards)
        assert torch.equal(forwards.state.model, backwards.state.model)


def test_a_site_predicts_with_its_own_frequencies():
    rng = np.random.default_rng(0)
    sites = [tagged("a", 60), tagged("b", 60)]
    rare = sites[0].train.target.clone()
    rare[torch.from_numpy(rng.random(60) < 0.8), 0] = 0
    sites[0] = type(sites[0])("a", sites[0].view, type(sites[0].train)(sites[0].train.x, rare), sites[0].test)
    server, _ = played("fedharmony+", sites, rounds=2)
    prior = {name: memory.tensors["prior"] for name, memory in server.engine.memories().items()}
    assert prior["a"][0] < 0 < prior["b"][0]
    off, _ = played("fedharmony+", sites, rounds=2, site_prior=False)
    torch.testing.assert_close(off.state.model, server.state.model)  # the common model does not know


def test_the_consensus_is_what_the_report_will_draw():
    server, _ = played(blocks="off")
    found, _ = HarmonyServer(server.recipe.settings).correlations.consensus_without(server, server.members())
    kept = server.state.method
    expected, _ = leave_one_out(kept.select(CORRELATION), kept.select(PAIRS), {"a": 24, "b": 40, "c": 24}, Consensus())
    torch.testing.assert_close(found, expected)
