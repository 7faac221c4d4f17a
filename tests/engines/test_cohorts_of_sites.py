"""Jobs of several sites: the same replies as one by one, in order, and one bad site costs only itself."""

from __future__ import annotations

import re

import pytest
import torch
from test_embedded import assert_same, three_rounds
from test_embedded_failures import failures
from toy_host import SITES, everywhere, in_threes, toy_engine

from fedaccord.messages.message import Message
from fedaccord.messages.names import NOT_BATCHED


def test_a_host_is_given_several_sites_at_a_time(threes):
    replies = threes.ask("echo", everywhere(numbers={"a": 1}))
    assert [reply.numbers["together"] for reply in replies.values()] == [3, 3, 3, 3, 3, 3, 2, 2]
    with toy_engine(0, in_threes) as here:
        assert here.ask("echo", everywhere(numbers={"a": 1})) == replies


def test_with_a_deadline_every_site_is_on_its_own(threes):
    replies = threes.ask("echo", everywhere(), deadline=60)
    assert not any("together" in reply.numbers for reply in replies.values())


def test_what_cannot_be_done_together_is_done_one_by_one_with_tensors_of_its_own(threes, here):
    # The toy's training writes into what it is told, so sites that shared it would end elsewhere.
    one, other = three_rounds(threes, SITES), three_rounds(here, SITES)
    for reply in one[0].values():
        assert re.fullmatch(r"ValueError: not together \(toy_host\.py:\d+\)", reply.words.pop(NOT_BATCHED))
    for parts, same in zip(one, other, strict=True):
        assert list(parts) == list(same) == SITES
        for site, message in parts.items():
            assert_same(message, same[site])


@pytest.mark.parametrize(
    ("task", "reason"),
    [
        ("fail_at", "ValueError: no rows at site-4"),
        ("killed_at", "its worker process was killed by signal 9"),
        ("sys_exit_at", "SystemExit: 7"),
    ],
)
def test_a_bad_site_costs_nobody_else_of_its_cohort(threes, task, reason):
    replies = threes.ask(task, everywhere(words={"bad": "site-4"}))
    assert failures(replies) == {"site-4": reason}
    assert list(replies) == SITES
    assert not failures(threes.ask(task, everywhere(words={"bad": "nobody"})))


@pytest.mark.parametrize("as_views", [False, True])
def test_replies_stream_in_the_order_of_names(threes, as_views):
    briefs = {site: Message({"x": torch.full((1000,), float(i))}) for i, site in enumerate(SITES)}
    seen = [
        (site, float(reply.tensors["x"].mean())) for site, reply in threes.stream("echo", briefs, as_views=as_views)
    ]
    assert seen == [(site, float(i)) for i, site in enumerate(SITES)]


def test_whoever_stops_listening_leaves_nothing_behind(threes):
    threes.restore({})
    stream = threes.stream("fail_at", everywhere(words={"bad": "nobody"}))
    next(stream)
    stream.close()
    assert threes.memories() == {}
    assert not failures(threes.ask("echo", everywhere()))
