"""What later methods lean on, and what must not slip through: silence, refinement, randomness, missing annotations."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn

from fedaccord.aggregation.mean import mean
from fedaccord.errors import ConfigError
from fedaccord.federation.recipe import Recipe
from fedaccord.federation.round import play_round
from fedaccord.federation.site_views import evaluation_view
from fedaccord.hosting import build_network
from fedaccord.messages.checks import NOT_FINITE, TensorSpec
from fedaccord.messages.message import Failure, Message
from fedaccord.messages.names import SILENT
from fedaccord.methods.averaging.recipe import fedavg
from fedaccord.methods.shared_settings import ClassicSettings
from fedaccord.models.network import Network
from fedaccord.training.settings import TrainingSettings
from small_federation import INPUTS, SPACE, exact, federation, site, small_network

pytestmark = pytest.mark.usefixtures("one_thread")


def plain(**settings):
    return Recipe(TrainingSettings(**settings), mean)


def with_unannotated(data, rows):
    target = data.train.target.clone()
    target[rows] = -1
    return dataclasses.replace(data, train=dataclasses.replace(data.train, target=target))


class TestSilence:
    def test_a_silent_site_is_left_out_without_being_dropped(self):
        def hush(reply):
            return Message(words={**reply.words, SILENT: "nothing to say"}, numbers=reply.numbers)

        server = federation(plain(), [site("a"), site("b")])
        server.engine.spoil["train", "a"] = hush
        record = play_round(server)
        alone = federation(plain(sites=["b"]), [site("a"), site("b")])
        play_round(alone)
        assert (record.replied, record.dropped) == (1, [])
        assert torch.equal(server.state.model, alone.state.model)

    def test_silence_everywhere_leaves_the_model(self):
        server = federation(plain(), [site("a")])
        server.engine.spoil["train", "a"] = lambda reply: Message(words={**reply.words, SILENT: ""})
        before = server.state.model.clone()
        assert play_round(server).replied == 0
        assert torch.equal(server.state.model, before)


class TestRefining:
    def test_a_step_sees_the_replies_of_its_round_and_only_then(self):
        seen = []
        recipe = dataclasses.replace(plain(), refine=(lambda server: seen.append(server.replies.sites),))
        server = federation(recipe, [site("a"), site("b")])
        play_round(server)
        assert seen == [("a", "b")]
        assert server.replies is None


class TestFurtherQuestions:
    @pytest.mark.parametrize(
        ("answer", "tensor", "reason"),
        [
            ({"m": torch.zeros(3, 2)}, "m", "the shape is (3, 2), not (2, 2)"),
            (
                {"m": torch.full((2, 2), torch.nan)},
                "m",
                NOT_FINITE,
            ),
            ({}, "m", "the tensor is missing"),
        ],
    )
    def test_an_answer_is_checked_like_a_reply(self, answer, tensor, reason):
        recipe = dataclasses.replace(plain(), tasks={"matrix": lambda work: Message({"m": torch.ones(2, 2)})})
        server = federation(recipe, [site("a"), site("b")])
        server.engine.spoil["matrix", "a"] = lambda reply: dataclasses.replace(reply, tensors=answer)
        expected = {"m": TensorSpec((2, 2), torch.float32)}
        answers = server.ask("matrix", {"a": Message(), "b": Message()}, expected)
        assert list(answers) == ["b"]
        assert [(d.site, d.task, d.tensor, d.reason) for d in server.dropped] == [("a", "matrix", tensor, reason)]

    def test_a_number_that_is_none_is_refused(self):
        recipe = dataclasses.replace(plain(), tasks={"score": lambda work: Message(numbers={"s": float("nan")})})
        server = federation(recipe, [site("a")])
        assert server.ask("score", {"a": Message()}, {}) == {}
        assert server.dropped[0].tensor == "s"


class TestJoining:
    def test_a_site_that_cannot_join_is_told_in_every_round(self):
        server = federation(plain(), [site("a"), site("b")])
        server.cards.clear()
        server.engine.spoil["join", "b"] = lambda reply: Failure("b", "join", "no disk")
        server.join()
        first, second = play_round(server), play_round(server)
        assert [str(drop) for drop in first.dropped] == ["round 1: site 'b' dropped from join: no disk"]
        assert [str(drop) for drop in second.dropped] == ["round 2: site 'b' dropped from join: no disk"]


class TestCombining:
    def test_a_model_that_is_not_finite_is_never_taken_over(self):
        def broken(replies):
            model = mean(replies)
            model[-1] = torch.inf
            return model

        server = federation(dataclasses.replace(plain(), aggregator=broken), [site("a"), site("b")])
        before = server.state.model.clone()
        record = play_round(server)
        assert torch.equal(server.state.model, before)
        assert [(d.task, d.tensor) for d in record.dropped] == [("combine", "head.bias")]


class TestMissingAnnotations:
    def test_a_site_without_any_is_not_asked(self):
        server = federation(plain(), [site("a"), with_unannotated(site("b"), slice(None))])
        assert play_round(server).asked == ["a"]

    def test_samples_without_one_neither_train_nor_weigh(self):
        half = with_unannotated(site("b"), slice(0, 5))
        server = federation(plain(), [site("a"), half])
        play_round(server)
        assert server.cards["b"].samples == 7
        assert server.engine.replies["train", "b"].numbers["samples"] == 7

        kept = dataclasses.replace(
            half, train=dataclasses.replace(half.train, x=half.train.x[5:], target=half.train.target[5:])
        )
        without = federation(plain(), [site("a"), kept])
        play_round(without)
        assert torch.equal(server.state.model, without.state.model)


class TestRandomModels:
    def dropout(self):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return Network(nn.Sequential(nn.Linear(INPUTS, 8), nn.Dropout(0.5)), nn.Linear(8, len(SPACE)))

    def test_dropout_depends_on_run_site_and_round_only(self):
        models = []
        for noise, backwards in ((1, False), (2, True)):
            server = federation(plain(), [site("a"), site("b")], self.dropout())
            server.engine.backwards = backwards
            torch.manual_seed(noise)
            for _ in range(2):
                play_round(server)
            models.append(server.state.model)
        assert torch.equal(*models)

    def test_the_callers_random_numbers_are_left_alone(self):
        server = federation(plain(), [site("a")], self.dropout())
        torch.manual_seed(3)
        expected = torch.rand(2)
        torch.manual_seed(3)
        play_round(server)
        assert torch.equal(torch.rand(2), expected)


class TestJudging:
    def test_a_site_is_judged_on_the_labels_it_knows_whatever_the_training_softmax(self):
        some = site("a", view=exact(["cat", "cow"]), samples=30, test=30)
        server = federation(fedavg(ClassicSettings(rounds=1)), [some, site("b")])
        with torch.no_grad():  # a model that always says dog, which site a does not know, and then cat
            named = server.layout.named(server.state.model)
            named["head.weight"].zero_()
            named["head.bias"].copy_(torch.tensor([1.0, 9.0, 0.0]))
        server.engine.spoil["train", "a"] = server.engine.spoil["train", "b"] = lambda r: Failure("", "train", "off")
        figures = play_round(server).evaluation
        cats = float((some.test.truth == 0).float().mean())
        assert figures.sites["a"]["accuracy"] == pytest.approx(cats)

    def test_a_prior_is_kept_but_not_for_labels_the_site_does_not_know(self):
        data = site("a", view=exact(["cat", "cow"]))
        trained = data.view.with_offset(None).with_offset(torch.tensor([-1.0, -2.0, -3.0]))
        assert evaluation_view(data, trained).offset.tolist() == [-1.0, float("-inf"), -3.0]


class TestWholeModels:
    def test_no_global_figures_where_a_part_never_leaves_the_sites(self):
        test = (site("t").test.x, site("t").test.truth)
        for bn, told in (("average", True), ("local", False)):
            recipe = fedavg(ClassicSettings(rounds=1, bn=bn))
            server = federation(recipe, [site("a"), site("b")], small_network(batch_norm=True), test=test)
            assert bool(play_round(server).evaluation.global_) is told

    def test_batch_norm_refuses_batches_of_one(self):
        model = {"name": "resnet18", "settings": {}, "input_shape": [3, 32, 32]}
        with pytest.raises(ConfigError, match=r"method.batch is 1, but the model 'resnet18' has batch-norm"):
            build_network(model, list("0123456789"), fedavg(ClassicSettings(batch=1)), seed=0)
