"""Replies that are folded into the model as they come: the same model, and memory that does not grow with the sites."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from fedaccord.aggregation.mean import RunningMean, mean, per_label, weighted_mean, weighted_rows_mean
from fedaccord.federation.recipe import Recipe
from fedaccord.federation.round import play_round
from fedaccord.federation.streaming import needs_only_mean
from fedaccord.messages.message import Message, encoded_size
from fedaccord.methods.private_labels.recipe import private_labels
from fedaccord.methods.private_labels.settings import PrivateLabelsSettings
from fedaccord.models.catalogue import build
from fedaccord.models.layout import Layout
from fedaccord.training.settings import TrainingSettings
from small_federation import SPACE, exact, federation, site, small_network

QUICK = {"rounds": 2, "steps": 2, "batch": 4, "lr": 0.1}
SITES = [("a", None), ("b", ["cat", "dog"]), ("c", ["cow"]), ("d", ["dog", "cow"]), ("e", None)]


def recipe(aggregator, **slots):
    return Recipe(TrainingSettings(**QUICK), aggregator, **slots)


def sites(number=5):
    known = [SITES[i % len(SITES)] for i in range(number)]
    return [site(f"{name}{i:04d}", view=exact(k), seed=i, samples=6 + i % 3) for i, (name, k) in enumerate(known)]


def keep_all(server, replies):
    return replies


class TestSameModel:
    @pytest.mark.parametrize("aggregator", [mean, per_label])
    @pytest.mark.parametrize("part", [1, 2, 64])
    def test_it_is_that_of_all_replies_at_once(self, aggregator, part):
        ours = federation(recipe(aggregator), sites())
        theirs = federation(recipe(aggregator, admit=(keep_all,)), sites())
        assert needs_only_mean(ours.recipe)
        assert not needs_only_mean(theirs.recipe)
        ours.engine.part = part
        for _ in range(2):
            one, other = play_round(ours), play_round(theirs)
            assert torch.equal(ours.state.model, theirs.state.model)
            for name in ("loss", "replied", "absent", "bytes"):
                assert getattr(one, name) == getattr(other, name)

    def test_batch_norm_counters_are_the_first_sites(self):
        ours, theirs = (
            federation(recipe(mean, **slots), sites(), small_network(batch_norm=True))
            for slots in ({}, {"admit": (keep_all,)})
        )
        for server in (ours, theirs):
            play_round(server)
        assert ours.state.counters.keys() == theirs.state.counters.keys() != set()
        assert all(torch.equal(value, theirs.state.counters[name]) for name, value in ours.state.counters.items())

    def test_a_bad_reply_is_left_out_and_told(self):
        server = federation(recipe(mean), sites())

        def spoilt(reply):
            reply.tensors["model/head.bias"][0] = float("nan")
            return reply

        server.engine.spoil["train", "b0001"] = spoilt
        record = play_round(server)
        assert [(drop.site, drop.tensor) for drop in record.dropped] == [("b0001", "model/head.bias")]
        assert record.replied == 4
        assert bool(torch.isfinite(server.state.model).all())

    def test_without_replies_the_model_stays(self):
        server = federation(recipe(mean), sites(1))
        before = server.state.model.clone()
        server.engine.spoil["train", "a0000"] = lambda reply: Message()
        assert play_round(server).replied == 0
        assert torch.equal(server.state.model, before)

    def test_a_mean_that_overflows_is_not_taken(self):
        server = federation(recipe(mean), sites(1))
        before = server.state.model.clone()
        server.adopt(torch.full_like(before, float("inf")), {})
        assert torch.equal(server.state.model, before)
        assert "not finite" in server.dropped[-1].reason


class TestRunningMean:
    def replies(self, number, network=None):
        layout = Layout.of(network or small_network())
        generator = torch.Generator().manual_seed(1)
        matrix = torch.randn(number, layout.size, generator=generator)
        weights = torch.arange(1, number + 1, dtype=torch.float64)
        informs = torch.rand(number, len(SPACE), generator=generator) > 0.5
        informs[:, 2] = False
        return layout, torch.randn(layout.size, generator=generator), matrix, weights, informs

    @pytest.mark.parametrize("number", [7, 100])
    def test_it_is_the_mean_to_single_precision(self, number):
        layout, previous, matrix, weights, informs = self.replies(number)
        rows = layout.head_rows()
        for by_label, expected in (
            (False, weighted_mean(matrix, weights)),
            (True, weighted_rows_mean(matrix, weights, informs * weights[:, None], rows, previous)),
        ):
            running = RunningMean(layout, previous, by_label)
            for row, weight, knows in zip(matrix, weights.tolist(), informs, strict=True):
                running.place()[:] = row
                running.add(weight, knows)
            assert torch.allclose(running.result(), expected, atol=1e-6)
        assert torch.equal(running.result()[rows[2]], previous[rows[2]])

    @pytest.mark.parametrize("number", [1, 63, 64, 65, 130])
    @pytest.mark.parametrize("by_label", [False, True])
    @pytest.mark.parametrize("name", ["mlp", "lenet5"])
    def test_all_at_once_or_one_by_one_are_the_same_bits(self, number, by_label, name):
        """Also of a model whose vector does not end at a multiple of what a processor takes at once."""
        layout, previous, matrix, weights, informs = self.replies(number, build(name, {}, (1, 28, 28), 3, seed=0))
        once, single = (RunningMean(layout, previous, by_label) for _ in range(2))
        once.add_all(matrix, weights, informs)
        for row, weight, knows in zip(matrix, weights.tolist(), informs, strict=True):
            single.place()[:] = row
            single.add(weight, knows)
        assert torch.equal(once.result(), single.result())


class TestMemory:
    @pytest.mark.parametrize("number", [10, 60])
    def test_no_more_replies_live_at_a_time_than_a_part(self, number):
        """Counted in living tensors, not in bytes of the process, which depend on the machine."""
        server = federation(recipe(mean), sites(number))
        server.engine.part = 4
        alive, most = weakref.WeakSet(), [0]
        ask = server.engine.ask

        def watched(task, briefs, deadline=None):
            answers = ask(task, briefs, deadline)
            server.engine.replies.clear()  # the scripted engine remembers what was sent
            server.engine.asked.clear()
            if task == "train":
                gc.collect()
                for reply in answers.values():
                    alive.add(reply.tensors["model/head.weight"])
                most[0] = max(most[0], len(alive))
            return answers

        gc.freeze()  # what earlier tests made is not looked through at every ask
        server.engine.ask = watched
        replied = play_round(server, evaluated=False).replied
        gc.unfreeze()
        assert replied == number
        assert most[0] <= 2 * server.engine.part  # a part, and the one before it

    def test_a_recipe_that_needs_all_replies_has_them(self):
        seen = []
        server = federation(recipe(mean, refine=(lambda server: seen.append(len(server.replies)),)), sites())
        play_round(server)
        assert seen == [5]


class TestTraffic:
    def test_each_sites_bytes_are_those_of_its_messages(self):
        server = federation(recipe(mean), sites())
        record = play_round(server)
        asked = [(name, brief) for task, name, brief in server.engine.asked if task != "join"]
        for name, (sent, received) in record.bytes.items():
            assert sent == sum(encoded_size(brief) for whose, brief in asked if whose == name)
            back = [reply for (task, whose), reply in server.engine.replies.items() if whose == name and task != "join"]
            assert received == sum(map(encoded_size, back))
        assert list(record.bytes) == sorted(record.bytes)

    def test_own_rows_cost_less_than_a_whole_head(self):
        def round_of(rows):
            settings = PrivateLabelsSettings(**QUICK, rows=rows)
            return play_round(federation(private_labels(settings), sites()), evaluated=False).bytes

        own, dense = round_of("known"), round_of("dense")
        assert own["a0000"] == dense["a0000"]  # knows all labels
        rows = 2 * 4 * (5 + 1)  # two labels less, each a row of five floats and a bias
        assert [d - o for o, d in zip(own["c0002"], dense["c0002"], strict=True)] == pytest.approx([rows, rows], abs=8)
