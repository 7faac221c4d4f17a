"""A bad reply is dropped with a reason; it never ends the run and never reaches the model.

Three sites answer truthfully, through the real host. Then 'b' is spoiled on its way to the server, in every way there
is, and the model must be the one that 'a' and 'c' make without it.
"""

import math
from unittest import mock

import pytest
import torch

from fedaccord.errors import EngineError
from fedaccord.federation.recipe import Exchange, Recipe
from fedaccord.federation.round import play_round
from fedaccord.federation.state import Dropped
from fedaccord.labels.views import Exact
from fedaccord.labels.views.registry import VIEWS as VIEWS_BY_KIND
from fedaccord.messages.checks import NOT_FINITE, TensorSpec
from fedaccord.messages.message import Failure
from fedaccord.methods.averaging.recipe import fedavg
from fedaccord.methods.private_labels.recipe import private_labels
from fedaccord.methods.private_labels.settings import PrivateLabelsSettings
from fedaccord.methods.shared_settings import ClassicSettings
from fedaccord.runs.folder import RunFolder
from fedaccord.runs.records import round_lines
from fedaccord.training.objectives import ViewLikelihood
from small_federation import SPACE, exact, federation, site, small_network

pytestmark = pytest.mark.usefixtures("one_thread")

WEIGHT, BIAS = "model/head.weight", "model/head.bias"
VIEWS = {name: Exact(SPACE) for name in "abc"}


def recipe(**settings):
    return fedavg(ClassicSettings(steps=2, batch=4, **settings))


def three_sites(names="abc", sites=None):
    """A federation of which only some sites may train."""
    asked = {"sites": list(sites)} if sites else {}
    return federation(recipe(**asked), [site(name) for name in names], small_network(batch_norm=True))


def assert_dropped(spoil, tensor, reason):
    """Spoil the reply of site b in both of two rounds: it is dropped with a reason, and the others go on without it."""
    server, without = three_sites(), three_sites(sites="ac")
    server.engine.spoil["train", "b"] = spoil
    for round_ in (1, 2):
        record = play_round(server)
        play_round(without)
        drop = Dropped(round_, "b", "train", tensor, reason)
        assert record.dropped == [drop]
        assert server.dropped[round_ - 1 :] == [drop]
        assert record.asked == ["a", "b", "c"]
        assert record.replied == 2
        assert record.round == server.state.round == round_
        assert torch.equal(server.state.model, without.state.model)
        assert server.state.counters.keys() == without.state.counters.keys()
        assert all(torch.equal(value, without.state.counters[n]) for n, value in server.state.counters.items())


def test_three_honest_sites_are_all_admitted():
    # The other side of every test below: with b's reply the model is another one.
    server, without = three_sites(), three_sites(sites="ac")
    record = play_round(server)
    play_round(without)
    assert record.dropped == server.dropped == []
    assert record.replied == 3
    assert not torch.equal(server.state.model, without.state.model)


def test_a_missing_tensor():
    def spoil(reply):
        del reply.tensors[BIAS]
        return reply

    assert_dropped(spoil, BIAS, "the tensor is missing")


def test_an_extra_tensor():
    def spoil(reply):
        reply.tensors["model/head.scale"] = torch.ones(3)
        return reply

    assert_dropped(spoil, "model/head.scale", "the tensor was not asked for")


def test_a_renamed_tensor():
    def spoil(reply):
        reply.tensors["model/classifier.bias"] = reply.tensors.pop(BIAS)
        return reply

    assert_dropped(spoil, BIAS, "the tensor is missing")


def test_a_shape_that_would_broadcast():
    def spoil(reply):
        reply.tensors[WEIGHT] = torch.zeros(1, 5)
        return reply

    assert_dropped(spoil, WEIGHT, "the shape is (1, 5), not (3, 5)")


def test_a_shape_with_the_same_number_of_values():
    def spoil(reply):
        reply.tensors[WEIGHT] = reply.tensors[WEIGHT].reshape(5, 3)
        return reply

    assert_dropped(spoil, WEIGHT, "the shape is (5, 3), not (3, 5)")


def test_another_dtype():
    def spoil(reply):
        reply.tensors[BIAS] = reply.tensors[BIAS].double()
        return reply

    assert_dropped(spoil, BIAS, "the dtype is torch.float64, not torch.float32")


def test_one_nan():
    def spoil(reply):
        reply.tensors[WEIGHT][2, 4] = math.nan
        return reply

    assert_dropped(spoil, WEIGHT, NOT_FINITE)


def test_one_infinity():
    def spoil(reply):
        reply.tensors["model/encoder.1.running_var"][0] = math.inf
        return reply

    assert_dropped(
        spoil,
        "model/encoder.1.running_var",
        NOT_FINITE,
    )


def weighing(samples):
    def spoil(reply):
        reply.numbers["samples"] = samples
        return reply

    return spoil


def test_weight_zero():
    assert_dropped(weighing(0), "samples", "the weight is 0, not above zero")


def test_a_negative_weight():
    assert_dropped(weighing(-12), "samples", "the weight is -12, not above zero")


def test_a_weight_that_is_nan():
    assert_dropped(weighing(math.nan), "samples", "the weight is nan, not a finite number")


def test_an_infinite_weight():
    assert_dropped(weighing(math.inf), "samples", "the weight is inf, not a finite number")


def test_a_missing_weight():
    def spoil(reply):
        del reply.numbers["samples"]
        return reply

    assert_dropped(spoil, "samples", "the weight is missing")


def test_a_weight_above_the_samples_the_site_joined_with():
    assert_dropped(weighing(13), "samples", "the weight is 13, but the site joined with 12 samples")


def test_a_reply_of_another_run():
    def spoil(reply):
        reply.words["run"] = "last-weeks-run"
        return reply

    assert_dropped(spoil, "run", "belongs to run 'last-weeks-run', not to 'this-run'")


def test_a_reply_of_another_round():
    def spoil(reply):
        reply.numbers["round"] = 7
        return reply

    server = three_sites()
    server.engine.spoil["train", "b"] = spoil
    play_round(server)
    assert server.dropped == [Dropped(1, "b", "train", "round", "answers round 7, not round 1")]


def test_a_late_reply_of_the_round_before():
    server, without = three_sites(), three_sites(sites="ac")
    play_round(server)
    late = server.engine.replies["train", "b"]
    without.state.model = server.state.model.clone()
    without.state.counters = dict(server.state.counters)
    without.state.round = 1
    server.engine.spoil["train", "b"] = lambda reply: late
    assert play_round(server).dropped == [Dropped(2, "b", "train", "round", "answers round 1, not round 2")]
    play_round(without)
    assert torch.equal(server.state.model, without.state.model)


def test_a_site_that_failed():
    assert_dropped(lambda reply: Failure("b", "train", "the disk is full"), "", "the disk is full")


def test_the_trace_of_a_failure_is_kept_for_the_log():
    server = three_sites()
    server.engine.spoil["train", "b"] = lambda reply: Failure("b", "train", "the disk is full", "line 1\nline 2")
    assert play_round(server).dropped[0].trace == "line 1\nline 2"


def test_if_all_replies_are_bad_the_model_stays_as_it_is_and_the_round_counts():
    server = three_sites()
    before, counters = server.state.model.clone(), dict(server.state.counters)
    for name in "abc":
        server.engine.spoil["train", name] = weighing(math.nan)
    record = play_round(server)
    assert torch.equal(server.state.model, before)
    assert all(torch.equal(value, counters[name]) for name, value in server.state.counters.items())
    assert record.round == server.state.round == 1
    assert record.replied == 0
    assert record.loss is None
    assert [drop.site for drop in record.dropped] == ["a", "b", "c"]
    assert record.evaluation.sites.keys() == {"a", "b", "c"}

    server.engine.spoil.clear()
    assert play_round(server).replied == 3
    assert not torch.equal(server.state.model, before)


def test_a_site_whose_training_overflows_is_dropped_by_its_own_reply():
    server = federation(recipe(lr=1000.0, weight_decay=1e37), [site("a"), site("b")])
    before = server.state.model.clone()
    for _ in range(2):
        record = play_round(server)
        assert {drop.reason for drop in record.dropped} == {NOT_FINITE}
    assert torch.equal(server.state.model, before)


def test_what_a_recipe_asks_for_beside_the_model_is_checked_alike():
    class SendsItsMean(ViewLikelihood):
        def finish(self, work, reply):
            reply.tensors["mean"] = work.site.train.x.mean(0)

    def asked(server, card):
        return {"mean": TensorSpec((4,), torch.float32)}

    plain = recipe()
    with_mean = Recipe(plain.settings, plain.aggregator, SendsItsMean(), exchange=Exchange(expected=asked))
    server = federation(with_mean, [site("a"), site("b"), site("c")])
    assert play_round(server).dropped == []

    def without_mean(reply):
        del reply.tensors["mean"]
        return reply

    def wide_mean(reply):
        reply.tensors["mean"] = torch.zeros(5)
        return reply

    server.engine.spoil["train", "a"] = without_mean
    server.engine.spoil["train", "c"] = wide_mean
    assert play_round(server).dropped == [
        Dropped(2, "a", "train", "mean", "the tensor is missing"),
        Dropped(2, "c", "train", "mean", "the shape is (5,), not (4,)"),
    ]

    unasked = federation(Recipe(plain.settings, plain.aggregator, SendsItsMean()), [site("a")])
    assert play_round(unasked).dropped == [Dropped(1, "a", "train", "mean", "the tensor was not asked for")]


def test_figures_that_cannot_be_written_down_are_dropped_and_the_others_kept():
    def nan_accuracy(reply):
        reply.numbers["accuracy"] = math.nan
        return reply

    def flat_counts(reply):
        reply.tensors["confusion"] = torch.zeros(9)
        return reply

    server = three_sites()
    server.engine.spoil["evaluate", "a"] = nan_accuracy
    server.engine.spoil["evaluate", "b"] = flat_counts
    record = play_round(server)
    assert list(record.evaluation.sites) == list(record.evaluation.site_confusions) == ["c"]
    assert [(d.site, d.task, d.tensor) for d in record.dropped] == [
        ("a", "evaluate", "accuracy"),
        ("b", "evaluate", "confusion"),
    ]


@pytest.mark.parametrize("word", ["\ud800", "x\n2026-01-01 00:00:00 round 9: all is well", "x" * 10**6])
@pytest.mark.parametrize("task", ["train", "evaluate"])
def test_the_words_of_a_site_neither_end_the_run_nor_pass_for_a_line_of_the_log(task, word, tmp_path):
    def of_another_run(reply):
        reply.words["run"] = word
        return reply

    server = three_sites()
    server.engine.spoil[task, "b"] = of_another_run
    record = play_round(server)
    (drop,) = record.dropped
    assert (drop.site, drop.task, drop.tensor) == ("b", task, "run")
    folder = RunFolder(tmp_path / "run")
    folder.log(str(drop))
    folder.append_metrics(round_lines(record, SPACE, VIEWS))
    folder.close()
    assert len((tmp_path / "run/log.txt").read_text().splitlines()) == 1
    assert (tmp_path / "run/log.txt").stat().st_size < 2000


@pytest.mark.parametrize(("name", "value"), [("accuracy", 1e200), ("nll", 10**200), ("\ud800", 1.0), ("a\nb", 1.0)])
def test_a_figure_that_would_end_the_run_is_dropped(name, value, tmp_path):
    def spoil(reply):
        reply.numbers[name] = value
        return reply

    server = three_sites()
    server.engine.spoil["evaluate", "b"] = spoil
    record = play_round(server)
    folder = RunFolder(tmp_path / "run")
    folder.append_metrics(round_lines(record, SPACE, VIEWS))  # with the spread over the sites
    folder.close()
    assert list(record.evaluation.sites) == ["a", "c"]
    assert [(d.site, d.task) for d in record.dropped] == [("b", "evaluate")]


@pytest.mark.parametrize(
    ("numbers", "at_fault"),
    [
        ({"accuracy": 9e99}, "accuracy"),
        ({"nll": 1e30}, "nll"),
        ({f"figure {number}": 1.0 for number in range(20_000)}, "figure 0"),
        ({"samples": 5}, "samples"),  # the confusion counts six rows
    ],
)
def test_figures_out_of_range_neither_stop_the_run_nor_become_the_best(numbers, at_fault):
    def boast(reply):
        reply.numbers |= numbers
        if "samples" in numbers:
            reply.tensors["confusion"][:] = 0
        return reply

    server, honest = three_sites(), three_sites(sites="ac")
    first, expected = play_round(server), play_round(honest)
    assert first.evaluation.sites.keys() == {"a", "b", "c"}
    server.engine.spoil["evaluate", "b"] = boast
    record = play_round(server)
    assert list(record.evaluation.sites) == ["a", "c"]
    assert [(d.site, d.task, d.tensor) for d in record.dropped] == [("b", "evaluate", at_fault)]
    assert 0 <= record.evaluation.over_sites()["max"]["accuracy"] <= 1
    assert len(str(round_lines(record, SPACE, VIEWS))) < 10_000
    assert expected.dropped == []


def test_a_view_outside_fedaccord_lists_its_own_figures():
    class Graded(Exact):
        kind = "exact"

        def judge(self, logits, target, truth):
            metrics, counts = super().judge(logits, target, truth)
            return metrics | {"kappa": -0.25}, counts

    class Declared(Graded):
        kind = "exact"
        figures = {"kappa": "difference"}

    for view, admitted in ((Graded, []), (Declared, ["a"])):
        server = federation(recipe(), [site("a", view=view(SPACE))])
        with mock.patch.dict(VIEWS_BY_KIND, {"exact": view}):
            record = play_round(server)
        assert list(record.evaluation.sites) == admitted
        assert [drop.tensor for drop in record.dropped] == ["kappa"] * (1 - len(admitted))


@pytest.mark.parametrize("loss", [math.nan, 1e308, 10**308])
def test_a_loss_that_is_no_number_does_not_spoil_the_mean_loss(loss):
    def nan_loss(reply):
        reply.numbers["loss"] = loss
        return reply

    server, without = three_sites(), three_sites(sites="ac")
    server.engine.spoil["train", "b"] = nan_loss
    record = play_round(server)
    assert record.replied == 3
    assert record.loss == pytest.approx(play_round(without).loss)


@pytest.mark.parametrize("samples", [-1, math.nan, 10**10])
def test_a_site_that_joins_with_nonsense_does_not_take_part(samples):
    server = three_sites()
    server.cards.clear()
    server.engine.spoil["join", "b"] = weighing(samples)
    server.join()
    assert list(server.cards) == ["a", "c"]
    assert [(d.site, d.task, d.tensor) for d in server.dropped] == [("b", "join", "samples")]
    assert play_round(server).asked == ["a", "c"]


def test_a_site_that_joins_with_other_labels_does_not_take_part():
    def four_labels(reply):
        reply.tensors["informs"] = torch.ones(4).bool()
        return reply

    server = three_sites()
    server.cards.clear()
    server.engine.spoil["join", "b"] = four_labels
    server.join()
    assert list(server.cards) == ["a", "c"]
    assert server.dropped == [Dropped(1, "b", "join", "informs", "the shape is (4,), but there are 3 labels")]


@pytest.mark.parametrize("said", ["informs", "view"])
def test_a_site_is_not_believed_that_claims_what_is_known_not_to_be_its_own(said):
    """With private labels it would be sent, and averaged into, the head rows of the other sites' labels."""
    known = {"a": ["cat", "dog"], "b": ["cat"], "c": ["dog", "cow"]}

    def claims_more(reply):
        if said == "informs":
            reply.tensors["informs"] = torch.ones(3).bool()
        else:
            reply.words["view"] = "tags"
        return reply

    made = private_labels(PrivateLabelsSettings(steps=2, batch=4))
    server = federation(made, [site(name, view=exact(labels)) for name, labels in known.items()])
    server.expected_cards = dict(server.cards)
    server.cards.clear()
    server.join()
    assert list(server.cards) == ["a", "b", "c"]
    server.cards.clear()
    server.engine.spoil["join", "b"] = claims_more
    server.join()
    assert list(server.cards) == ["a", "c"]
    assert [(d.site, d.task, d.tensor) for d in server.dropped] == [("b", "join", said)]


def test_a_federation_that_nobody_joins_cannot_start():
    server = three_sites()
    server.cards.clear()
    for name in "abc":
        server.engine.spoil["join", name] = lambda reply: Failure("x", "join", "no route to host")
    with pytest.raises(EngineError, match="no site could join the federation: no route to host"):
        server.join()
