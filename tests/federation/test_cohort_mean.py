"""A cohort that hands over its mean teaches the server what its sites would have taught it one by one."""

from __future__ import annotations

import pytest
import torch

from fedaccord.aggregation.mean import mean, per_label
from fedaccord.federation.recipe import Exchange, Recipe
from fedaccord.federation.round import play_round
from fedaccord.federation.sharing import Sharing
from fedaccord.federation.streaming import COHORT_SAMPLES, REPRESENTATIVE, cohort_means, stacked_mean
from fedaccord.messages.checks import NOT_FINITE
from fedaccord.messages.message import Message
from fedaccord.training.settings import TrainingSettings
from small_federation import TogetherEngine, exact, federation, site

QUICK = {"rounds": 2, "steps": 2, "batch": 4, "lr": 0.1}
SIZES = {"b": 9, "a": 4, "d": 12, "c": 6}  # the largest stands first in the stack, and speaks last


def recipe(aggregator=mean, **slots):
    return Recipe(TrainingSettings(**QUICK), aggregator, **slots)


def sites(known=None):
    return [site(name, samples, exact((known or {}).get(name))) for name, samples in SIZES.items()]


def cohort(recipe, sites, averages_cohorts=True):
    """A server whose sites train together; `averages_cohorts` is what it believes of its engine."""
    server = federation(recipe, sites)
    server.engine = TogetherEngine(server.engine.host)
    server.engine.host.cohort_means, server.averages_cohorts = cohort_means(recipe), averages_cohorts
    return server


@pytest.mark.parametrize("aggregator", [mean, per_label])
def test_the_round_is_that_of_the_sites_one_by_one(aggregator):
    ours, theirs = cohort(recipe(aggregator), sites()), federation(recipe(aggregator), sites())
    for _ in range(2):
        one, other = play_round(ours), play_round(theirs)
        torch.testing.assert_close(ours.state.model, theirs.state.model, rtol=1e-5, atol=1e-6)
        assert one.loss == pytest.approx(other.loss, rel=1e-5)
        assert (one.asked, one.replied, one.absent) == (other.asked, other.replied, other.absent)
        # As many bytes as each would have sent; a loss may have some digits more or fewer.
        for name in SIZES:
            assert one.bytes[name][0] == other.bytes[name][0]
            assert abs(one.bytes[name][1] - other.bytes[name][1]) <= 8
    replies = ours.engine.replies
    assert replies["train", "a"].numbers[COHORT_SAMPLES] == sum(SIZES.values())
    for name in "bcd":
        assert replies["train", name].words[REPRESENTATIVE] == "a"
        assert not replies["train", name].tensors


def test_the_mean_is_by_samples():
    stack = [torch.tensor([[1.0, 0.0], [4.0, 3.0]]), torch.tensor([[[2.0]], [[8.0]]])]
    first, second = stacked_mean(stack, [1, 2])
    assert first.tolist() == [3.0, 2.0]
    assert second.tolist() == [[6.0]]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_site_that_diverges_is_dropped_alone(value):
    members = sites()
    members[0].train.x[:, 0] = value  # that is site b's
    ours = cohort(recipe(), members)
    record = play_round(ours)
    assert [(d.site, d.reason) for d in record.dropped] == [("b", NOT_FINITE)]
    assert record.replied == 3
    theirs = federation(recipe(), [one for one in sites() if one.name != "b"])
    play_round(theirs)
    torch.testing.assert_close(ours.state.model, theirs.state.model, rtol=1e-5, atol=1e-6)


def test_whoever_was_spoken_for_by_a_refused_reply_is_dropped_too():
    server = cohort(recipe(), sites())
    before = server.state.model.clone()
    server.engine.spoil["train", "a"] = lambda reply: Message(reply.tensors, reply.numbers | {"round": 7}, reply.words)
    record = play_round(server)
    assert record.replied == 0
    assert torch.equal(server.state.model, before)
    assert {d.site for d in record.dropped} == set("abcd")
    assert record.dropped[1].reason == "its model is part of the reply of site 'a', which was dropped"


def test_on_a_network_nobody_speaks_for_others():
    """A site that says so weighs as much as its own samples, and one that lets another speak has sent nothing."""
    server, honest = federation(recipe(), sites()), federation(recipe(), sites())
    server.engine.spoil["train", "a"] = lambda r: Message(r.tensors, r.numbers | {COHORT_SAMPLES: 10**6}, r.words)
    server.engine.spoil["train", "b"] = lambda r: Message({}, r.numbers, r.words | {REPRESENTATIVE: "a"})
    record = play_round(server)
    assert [(d.site, d.reason) for d in record.dropped] == [("b", "the tensor is missing")]
    honest.engine.spoil["train", "b"] = lambda r: Message({}, r.numbers, r.words)
    play_round(honest)
    assert torch.equal(server.state.model, honest.state.model)


class TestWhoMayBeSpokenFor:
    def test_not_where_the_server_looks_at_single_replies(self):
        assert cohort_means(recipe()) == "always"
        assert cohort_means(recipe(per_label)) == "same labels"
        assert cohort_means(recipe(lambda replies: replies.matrix[0])) == "never"
        assert cohort_means(recipe(admit=(lambda server, replies: replies,))) == "never"
        assert cohort_means(recipe(refine=(print,))) == "never"
        assert cohort_means(recipe(exchange=Exchange(expected=lambda server, card: {}))) == "never"
        assert cohort_means(recipe(per_label, sharing=Sharing(own_rows=True))) == "never"

    def test_in_a_mean_by_label_only_by_those_who_know_the_same(self):
        few = {"b": ["cat", "dog"]}
        ours, theirs = cohort(recipe(per_label), sites(few)), federation(recipe(per_label), sites(few))
        play_round(ours)
        play_round(theirs)
        torch.testing.assert_close(ours.state.model, theirs.state.model, rtol=1e-5, atol=1e-6)
        assert not any(REPRESENTATIVE in ours.engine.replies["train", name].words for name in SIZES)
