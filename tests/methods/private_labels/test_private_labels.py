"""Private label sets: who is sent what, and how rows are averaged; what no message may tell is in test_private_wire."""

from __future__ import annotations

import dataclasses
import re

import pytest
import torch

from fedaccord.config import check_experiment
from fedaccord.errors import ConfigError
from fedaccord.federation.admission import AdmitSection
from fedaccord.federation.round import play_round
from fedaccord.federation.state import RunState
from fedaccord.labels.views import Candidates, Unlabelled
from fedaccord.messages.message import Message
from fedaccord.methods.averaging.recipe import fedavg, fedprox
from fedaccord.methods.averaging.settings import FedProxSettings
from fedaccord.methods.private_labels.recipe import private_labels
from fedaccord.methods.private_labels.settings import PrivateLabelsSettings
from fedaccord.methods.shared_settings import ClassicSettings
from small_federation import SPACE, copied, exact, federation, site

pytestmark = pytest.mark.usefixtures("one_thread")

QUICK = {"rounds": 3, "lr": 0.1, "batch": 4}
LOCAL = ["fedavg", "fedprox", "scaffold"]
AGGREGATION = ["mean", "median", "trimmed-mean", "krum", "multi-krum"]


def private(**settings):
    return private_labels(PrivateLabelsSettings(**QUICK, **settings))


def cats_and_dogs_and_cows():
    return [site("a", view=exact(["cat", "dog"])), site("b", view=exact(["dog", "cow"]))]


def unsure(name):
    """A site whose samples have candidate sets inside the labels it knows, cats and dogs."""
    some = Candidates(SPACE, ["cat", "dog"])
    made = site(name, samples=24, view=some)
    train = dataclasses.replace(made.train, target=made.train.target & some.informs())
    return dataclasses.replace(made, train=train)


def with_targets(made, target):
    """The same site with these labels."""
    return dataclasses.replace(made, train=dataclasses.replace(made.train, target=torch.tensor(target)))


def played(server, rounds=2):
    for _ in range(rounds):
        play_round(server)
    return server


class TestMessages:
    def test_a_site_is_sent_the_encoder_and_its_own_rows(self):
        server = played(federation(private(), cats_and_dogs_and_cows()))
        head = server.layout.named(server.state.model)["head.weight"]
        assert head.shape == (3, 5)
        for task, _, brief in server.engine.asked:
            if task != "join":
                assert brief.tensors["model/head.weight"].shape == (2, 5)
                assert brief.tensors["model/head.bias"].shape == (2,)
                assert "model/encoder.0.weight" in brief.tensors
        assert server.engine.replies["train", "a"].tensors["model/head.weight"].shape == (2, 5)

    def test_the_rows_are_the_servers(self):
        server = federation(private(), cats_and_dogs_and_cows())
        before = server.layout.named(server.state.model)["head.weight"].clone()
        play_round(server)
        sent = {n: brief.tensors["model/head.weight"] for task, n, brief in server.engine.asked if task == "train"}
        assert torch.equal(sent["a"], before[[0, 1]])
        assert torch.equal(sent["b"], before[[1, 2]])

    def test_a_reply_with_a_row_too_many_is_dropped(self):
        server = federation(private(), cats_and_dogs_and_cows())

        def greedy(reply):
            reply.tensors["model/head.weight"] = torch.zeros(3, 5)
            return reply

        server.engine.spoil["train", "a"] = greedy
        (drop,) = play_round(server).dropped
        assert (drop.site, drop.tensor, drop.reason) == ("a", "model/head.weight", "the shape is (3, 5), not (2, 5)")

    def test_dense_heads_have_the_full_shape_and_give_the_same_model(self):
        known, dense = (played(federation(private(rows=rows), cats_and_dogs_and_cows())) for rows in ("known", "dense"))
        assert dense.engine.replies["train", "a"].tensors["model/head.weight"].shape == (3, 5)
        assert torch.equal(known.state.model, dense.state.model)


class TestSitesThatKnowAll:
    """A view without `known` is one of all labels: then there is nothing to keep from the site, which must be told."""

    def test_they_are_warned_of_once(self):
        server = federation(private(), [site("a"), site("b", view=exact(["dog", "cow"]))])
        first, second = play_round(server), play_round(server)
        (said,) = first.warnings
        assert said.startswith("no label is private to 'a': such a site is declared to know every label")
        assert second.warnings == []

    @pytest.mark.parametrize("labels", ["public", "public_per_label"])
    def test_where_labels_are_public_they_are_as_they_should_be(self, labels):
        assert play_round(federation(private(labels=labels), [site("a"), site("b")])).warnings == []

    def test_no_warning_where_every_site_says_what_it_knows(self):
        assert play_round(federation(private(), cats_and_dogs_and_cows())).warnings == []


class TestFigures:
    def figures(self, rows):
        sites = [*cats_and_dogs_and_cows(), site("c", view=Unlabelled(SPACE))]
        server = federation(private(rows=rows), sites)
        return [play_round(server).evaluation.sites for _ in range(2)]

    def test_a_site_that_is_sent_no_row_is_not_judged_by_rows_that_nobody_trained(self):
        """With whole heads it has the trained rows, and all other figures are the same."""
        known, dense = self.figures("known"), self.figures("dense")
        for ours, theirs in zip(known, dense, strict=True):
            assert ours.keys() == {"a", "b"}
            assert theirs.keys() == {"a", "b", "c"}
            assert ours == {name: told for name, told in theirs.items() if name != "c"}


class TestRows:
    def test_each_row_is_the_mean_of_its_owners_by_their_sizes(self):
        sites = [site("a", samples=20, view=exact(["cat", "dog"])), site("b", samples=10, view=exact(["dog", "cow"]))]
        server = federation(private(), sites)
        play_round(server)
        sent = {name: server.engine.replies["train", name].tensors["model/head.weight"] for name in "ab"}
        rows = server.layout.named(server.state.model)["head.weight"]
        assert torch.allclose(rows[0], sent["a"][0])
        assert torch.allclose(rows[1], (20 * sent["a"][1] + 10 * sent["b"][0]) / 30)
        assert torch.allclose(rows[2], sent["b"][1])

    def test_a_label_without_a_site_keeps_its_row(self):
        server = federation(private(), [site("a", view=exact(["cat", "dog"]))])
        before = server.layout.named(server.state.model)["head.weight"][2].clone()
        assert played(server).state.round == 2
        assert torch.equal(server.layout.named(server.state.model)["head.weight"][2], before)

    def test_a_site_of_one_label_changes_nothing_but_is_counted(self):
        server = federation(private(), [site("a", view=exact(["cat"]))])
        before = server.state.model.clone()
        record = play_round(server)
        assert record.replied == 1
        assert torch.allclose(server.state.model, before, atol=1e-7)

    def test_labels_absent_from_a_round_are_told(self):
        sites = [site("a", view=exact(["cat", "dog"])), site("b", view=exact(["cow", "dog"]))]
        server = federation(private(participation=1), sites)
        absent = [play_round(server).absent for _ in range(3)]
        assert all(labels in (["cat"], ["cow"]) for labels in absent)

    @pytest.mark.parametrize("settings", [{}, {"tuning": "mse"}])  # replies one by one, and all at once
    def test_a_round_whose_replies_are_all_dropped_taught_no_label(self, settings):
        server = federation(private(**settings), cats_and_dogs_and_cows())
        for name in "ab":
            server.engine.spoil["train", name] = lambda reply: Message()
        record = play_round(server)
        assert (record.replied, record.absent, len(record.dropped)) == (0, ["cat", "dog", "cow"], 2)


class TestLabelWeight:
    """A row counts its owners by their samples of the label, which they then have to tell (docs/methods.md 4.1)."""

    def sites(self):
        a, b = site("a", samples=20, view=exact(["cat", "dog"])), site("b", samples=10, view=exact(["dog", "cow"]))
        return {"a": with_targets(a, [0] * 15 + [1] * 5), "b": with_targets(b, [1] * 8 + [2] * 2)}

    @pytest.mark.parametrize("rows", ["known", "dense"])
    def test_a_row_is_the_mean_by_the_samples_of_its_label(self, rows):
        server = federation(private(label_weight="per_label", rows=rows), list(self.sites().values()))
        play_round(server)
        sent = {name: server.engine.replies["train", name].tensors for name in "ab"}
        told = {name: reply["label counts"].tolist() for name, reply in sent.items()}
        assert told == ({"a": [15, 5], "b": [8, 2]} if rows == "known" else {"a": [15, 5, 0], "b": [0, 8, 2]})
        place = {"a": 1, "b": 0 if rows == "known" else 1}
        dogs = [reply["model/head.weight"][place[name]] for name, reply in sent.items()]
        model = server.layout.named(server.state.model)
        assert torch.allclose(model["head.weight"][1], (5 * dogs[0] + 8 * dogs[1]) / 13, atol=1e-6)
        encoder = [reply["model/encoder.0.weight"] for reply in sent.values()]
        assert torch.allclose(model["encoder.0.weight"], (20 * encoder[0] + 10 * encoder[1]) / 30, atol=1e-6)

    def test_a_label_of_which_no_owner_has_a_sample_keeps_its_row(self):
        only_dogs = with_targets(site("a", view=exact(["cat", "dog"])), [1] * 12)
        server = federation(private(label_weight="per_label"), [only_dogs])
        rows = server.layout.head_rows()
        before = server.state.model.clone()
        play_round(server)
        assert torch.equal(server.state.model[rows[0]], before[rows[0]])
        assert not torch.equal(server.state.model[rows[1]], before[rows[1]])

    def test_a_set_counts_by_equal_shares(self):
        server = federation(private(label_weight="per_label"), [unsure("a"), site("b", view=exact(["dog", "cow"]))])
        play_round(server)
        target = server.engine.host.sites["a"].train.target
        says = target.sum(1) < 2  # a set of both excludes nothing, and does not train
        assert server.engine.replies["train", "a"].tensors["label counts"].tolist() == target[says].sum(0)[:2].tolist()

    def test_nobody_counts_for_more_than_its_samples(self):
        honest, liar = (federation(private(label_weight="per_label"), list(self.sites().values())) for _ in range(2))

        def boasting(reply):
            reply.tensors["label counts"] *= 1e6
            return reply

        liar.engine.spoil["train", "b"] = boasting
        liar.admission = AdmitSection(norm=0)  # counts are bounded by the samples as well
        for server in (honest, liar):
            assert play_round(server).dropped == []
        assert torch.allclose(honest.state.model, liar.state.model)

    def test_counts_of_another_shape_are_refused(self):
        server = federation(private(label_weight="per_label"), list(self.sites().values()))
        server.engine.spoil["train", "b"] = lambda reply: Message(
            reply.tensors | {"label counts": torch.ones(3)}, reply.numbers, reply.words
        )
        (drop,) = play_round(server).dropped
        assert (drop.site, drop.tensor, drop.reason) == ("b", "label counts", "the shape is (3,), not (2,)")

    @pytest.mark.parametrize("beside", [{"labels": "public"}, {"aggregation": "median"}, {"local": "scaffold"}])
    def test_where_it_has_no_meaning_it_is_refused(self, beside):
        with pytest.raises(ValueError, match=r"label_weight has no effect unless rows are averaged"):
            PrivateLabelsSettings(label_weight="per_label", **beside)


class TestLabelSetsThatChange:
    def test_a_site_that_knows_more_when_a_run_goes_on_is_sent_the_servers_row(self):
        """Who knows what is asked when a site joins, and of everyone again when a run goes on."""
        first = played(federation(private(), cats_and_dogs_and_cows()), 1)
        sites = [site("a"), site("b", view=exact(["dog", "cow"]))]
        second = federation(private(), sites)
        second.state = RunState.from_message(copied(first.state.to_message()))
        second.engine.restore(first.engine.memories())
        second.join()
        row = second.layout.named(second.state.model)["head.weight"][2].clone()
        play_round(second)
        sent = next(brief for task, name, brief in second.engine.asked if (task, name) == ("train", "a"))
        assert torch.equal(sent.tensors["model/head.weight"][2], row)
        assert second.dropped == []


def test_the_row_of_a_label_that_a_site_knows_but_has_no_sample_of_moves_down():
    """It is in the site's softmax, unlike in the paper's table of edge cases, which leaves it as it was."""
    only_cats_and_dogs = with_targets(site("a"), [0, 1] * 6)
    server = federation(private(), [only_cats_and_dogs])
    bias = server.layout.named(server.state.model)["head.bias"][2].item()
    play_round(server)
    assert server.layout.named(server.state.model)["head.bias"][2].item() < bias - 1e-3


class TestRegimes:
    def test_public_is_fedavg(self):
        ours = played(federation(private(labels="public"), cats_and_dogs_and_cows()))
        theirs = played(federation(fedavg(ClassicSettings(**QUICK)), cats_and_dogs_and_cows()))
        assert torch.equal(ours.state.model, theirs.state.model)

    def test_public_with_a_pull_is_fedprox(self):
        ours = played(federation(private(labels="public", local="fedprox", mu=0.5), cats_and_dogs_and_cows()))
        theirs = played(federation(fedprox(FedProxSettings(**QUICK, mu=0.5)), cats_and_dogs_and_cows()))
        assert torch.equal(ours.state.model, theirs.state.model)

    def test_public_per_label_differs_from_public_in_the_head_only_after_one_round(self):
        plain, rows = (
            played(federation(private(labels=labels), cats_and_dogs_and_cows()), 1)
            for labels in ("public", "public_per_label")
        )
        head = plain.layout.mask("head")
        assert torch.equal(plain.state.model[~head], rows.state.model[~head])
        assert not torch.equal(plain.state.model[head], rows.state.model[head])

    def test_candidate_sets_inside_a_known_subset(self):
        server = played(federation(private(), [unsure("a"), site("b", view=exact(["dog", "cow"]))]))
        assert server.engine.replies["train", "a"].tensors["model/head.weight"].shape == (2, 5)
        assert server.dropped == []

    @pytest.mark.parametrize("local", LOCAL)
    @pytest.mark.parametrize("aggregation", AGGREGATION)
    def test_candidate_sets_go_with_every_way_to_train_and_to_combine(self, local, aggregation):
        """Sets inside a known subset teach its rows and no other, and the federation learns from them."""
        sites = [unsure("a"), unsure("b"), unsure("c"), *(site(n, view=exact(["dog", "cow"])) for n in "de")]
        server = federation(private(local=local, aggregation=aggregation, hostile=1, momentum=0.5), sites)
        cow = server.layout.head_rows()[2]
        first = play_round(server)
        sent = {name: server.engine.replies["train", name].tensors for name in "abcde"}
        assert sent["a"]["model/head.weight"].shape == (2, 5)
        owners = torch.stack([sent[n]["model/head.bias"][1] for n in "de"])
        assert owners.min() <= server.state.model[cow[-1]] <= owners.max()
        last = played(server, 8)
        assert last.dropped == []
        assert play_round(server).loss < first.loss
        told = [] if aggregation == "mean" else ["'cow'"]  # two owners
        assert [label for label in ["'cow'"] if any(label in text for text in server.warnings)] == told

    def test_the_softmax_cannot_be_set(self):
        table = {
            "data": {"dataset": "digits", "partition": {"kind": "iid", "sites": 2}},
            "method": {"name": "private-labels", "softmax": "full"},
        }
        with pytest.raises(ConfigError, match="the softmax follows from 'labels'"):
            check_experiment(table)

    @pytest.mark.parametrize(
        ("given", "said"),
        [
            ({"labels": "public", "rows": "dense"}, "rows has no effect unless labels are private"),
            ({"pairs": "zero-padded"}, "pairs has no effect unless tuning is pairwise"),
            ({"tuning": "balance", "norm": "renorm"}, "norm has no effect unless tuning is mse"),
            ({"tuning": "mse", "frequencies": "sites"}, "frequencies has no effect unless tuning is bal"),
            ({"frequencies": [1.0, 2.0]}, "frequencies has no effect unless tuning is balance"),
        ],
    )
    def test_a_setting_that_would_do_nothing_is_refused(self, given, said):
        table = {
            "data": {"dataset": "digits", "partition": {"kind": "iid", "sites": 2}},
            "method": {"name": "private-labels", **given},
        }
        with pytest.raises(ConfigError, match=re.escape(said)):
            check_experiment(table)
