"""Sites that join late and leave for good: who is asked, what becomes of their labels, and that a resume is exact."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from fedaccord.errors import ConfigError, EngineError
from fedaccord.federation.membership import ALWAYS, Membership, membership_notes, rounds_without_owner
from fedaccord.federation.round import play_round
from fedaccord.federation.state import RunState
from fedaccord.messages.message import Failure, from_bytes, to_bytes
from fedaccord.methods.accord.recipe import accord
from fedaccord.methods.accord.settings import AccordSettings
from fedaccord.methods.private_labels.recipe import private_labels
from fedaccord.methods.private_labels.settings import PrivateLabelsSettings
from small_federation import exact, federation, site

pytestmark = pytest.mark.usefixtures("one_thread")


class TestStay:
    def test_the_rounds_it_covers(self):
        assert [r for r in range(1, 8) if Membership(3, 6).covers(r)] == [3, 4, 5]
        assert all(ALWAYS.covers(r) for r in (1, 10**6))

    def test_in_words(self):
        memberships = {"a": Membership(10), "b": Membership(1, 30), "c": Membership(60)}
        assert membership_notes(memberships, 50) == [
            "site 'a' takes part from round 10 on",
            "site 'b' takes part from round 1 to round 29",
            "site 'c' never takes part: it joins in round 60 of 50",
        ]

    def test_rounds_without_a_label(self):
        owners = {"cat": ["a", "b"], "dog": ["b"], "cow": ["b", "c"], "emu": []}
        memberships = {"b": Membership(1, 3), "c": Membership(5)}
        assert rounds_without_owner(owners, memberships, 6) == {"dog": [3, 4, 5, 6], "cow": [3, 4]}


def recipe(**settings):
    return private_labels(PrivateLabelsSettings(**{"rounds": 6, "lr": 0.1, "batch": 4} | settings))


def coming_and_going(made=None, spoil=None, **memberships):
    """Sites a and b know cats and dogs, c and d know cows; they come and go as told."""
    known = {"a": ["cat", "dog"], "b": ["cat", "dog"], "c": ["dog", "cow"], "d": ["cat", "cow"]}
    places = [site(name, view=exact(labels)) for name, labels in known.items()]
    server = federation(made or recipe(), places)
    server.cards.clear()
    server.engine.asked.clear()
    server.memberships = {name: Membership(*rounds) for name, rounds in memberships.items()}
    server.engine.spoil |= spoil or {}
    server.join()
    return server


def asked_in(server, task):
    """Return which sites were asked a task, by round."""
    by_round = {}
    for done, name, brief in server.engine.asked:
        if done == task:
            by_round.setdefault(int(brief.numbers["round"]), []).append(name)
    return by_round


def cow(server):
    return server.state.model[server.layout.head_rows()[2]].clone()


class TestWhoIsAsked:
    def test_nobody_before_it_joins_and_after_it_has_left(self):
        server = coming_and_going(c=(2, 4), d=(3,))
        records = [play_round(server) for _ in range(4)]
        expected = {1: ["a", "b"], 2: ["a", "b", "c"], 3: ["a", "b", "c", "d"], 4: ["a", "b", "d"]}
        assert {r.round: r.asked for r in records} == expected
        assert asked_in(server, "train") == asked_in(server, "evaluate") == expected
        assert [sorted(r.evaluation.sites) for r in records] == list(expected.values())
        assert [(r.joined, r.left) for r in records] == [([], []), (["c"], []), (["d"], []), ([], ["c"])]

    def test_who_it_is_is_asked_when_it_joins(self):
        server = coming_and_going(c=(2,))
        assert [name for task, name, _ in server.engine.asked if task == "join"] == ["a", "b", "d"]
        play_round(server)
        assert "c" not in server.cards
        play_round(server)
        assert [name for task, name, _ in server.engine.asked if task == "join"] == ["a", "b", "d", "c"]

    def test_participation_draws_from_members_only(self):
        server = coming_and_going(recipe(participation=0.5), c=(3, 5), d=(3,))
        drawn = [play_round(server).asked for _ in range(6)]
        assert [len(names) for names in drawn] == [1, 1, 2, 2, 2, 2]
        assert not {"c", "d"} & {*drawn[0], *drawn[1]}
        assert "c" not in {*drawn[4], *drawn[5]}

    def test_without_the_others_a_round_is_what_it_would_be_without_it(self):
        late, never = coming_and_going(c=(3,)), coming_and_going(c=(100,))
        for _ in range(2):
            play_round(late)
            play_round(never)
        assert torch.equal(late.state.model, never.state.model)
        play_round(late)
        play_round(never)
        assert not torch.equal(late.state.model, never.state.model)

    @pytest.mark.parametrize("joins", [1, 2])
    def test_a_site_that_fails_to_join_is_told_and_asked_again(self, joins):
        failing = {("join", "c"): lambda reply: Failure("c", "join", "no route to host")}
        server = coming_and_going(spoil=failing, **({"c": (2,)} if joins == 2 else {}))
        records = [play_round(server) for _ in range(3)]
        del server.engine.spoil["join", "c"]
        records += [play_round(server) for _ in range(2)]
        said = [[f"round {at}: site 'c' dropped from join: no route to host"] for at in (1, 2, 3)]
        assert [[str(d) for d in r.dropped] for r in records] == [[] if joins == 2 else said[0], *said[1:], [], []]
        assert records[2].asked == ["a", "b", "d"]
        assert records[3].asked == ["a", "b", "c", "d"]
        assert [r.joined for r in records] == [[], [], [], ["c"], []]

    def test_a_site_that_was_not_there_when_the_run_was_cut_is_asked_when_it_goes_on(self):
        server = coming_and_going(spoil={("join", "c"): lambda reply: Failure("c", "join", "no route to host")})
        play_round(server)
        server.join()
        assert play_round(server).asked == ["a", "b", "d"]
        assert [str(d)[:7] for d in server.dropped] == ["round 1", "round 2"]  # not twice before one round
        del server.engine.spoil["join", "c"]
        server.join()
        assert play_round(server).asked == ["a", "b", "c", "d"]

    def test_a_site_named_in_the_settings_may_be_missing_at_first(self):
        failing = {("join", "c"): lambda reply: Failure("c", "join", "no route to host")}
        server = coming_and_going(recipe(sites=["a", "c"]), failing)
        assert play_round(server).asked == ["a"]
        del server.engine.spoil["join", "c"]
        assert play_round(server).asked == ["a", "c"]

    def test_a_site_named_in_the_settings_may_join_later(self):
        server = coming_and_going(recipe(sites=["a", "c"]), c=(2,))
        assert [play_round(server).asked for _ in range(2)] == [["a"], ["a", "c"]]

    def test_the_first_round_needs_somebody(self):
        server = coming_and_going(recipe(sites=["c"]), c=(2,))
        with pytest.raises(ConfigError, match="no site that may train in the first round has labelled samples"):
            server.ready()

    def test_a_round_with_nobody_leaves_the_model(self):
        server = coming_and_going(recipe(sites=["a", "c"]), a=(1, 2), c=(3,))
        server.ready()
        play_round(server)
        before = server.state.model.clone()
        record = play_round(server)
        assert (record.asked, record.replied, record.absent) == ([], 0, ["cat", "dog", "cow"])
        assert torch.equal(server.state.model, before)
        play_round(server)
        assert not torch.equal(server.state.model, before)


class TestLabels:
    @pytest.mark.parametrize("local", ["fedavg", "scaffold"])
    def test_a_row_that_nobody_knows_keeps_its_values_and_is_taught_again(self, local):
        """Cows are known at c until round 2 and at d from round 5 on."""
        server = coming_and_going(recipe(local=local), c=(1, 3), d=(5,))
        rows, absent = [cow(server)], []
        for _ in range(6):
            absent.append(play_round(server).absent)
            rows.append(cow(server))
        assert absent == [[], [], ["cow"], ["cow"], [], []]
        same = [torch.equal(before, after) for before, after in pairwise(rows)]
        assert same == [False, False, True, True, False, False]

    def test_a_label_is_taught_for_the_first_time_when_its_site_joins(self):
        server = coming_and_going(c=(3,), d=(4,))
        first = cow(server)
        for number in range(1, 5):
            play_round(server)
            assert torch.equal(cow(server), first) is (number < 3)

    def test_a_site_that_has_left_no_longer_weighs_in_a_row(self):
        server = coming_and_going(c=(1, 2))
        play_round(server)
        play_round(server)
        d = server.engine.replies["train", "d"].tensors["model/head.weight"][1]
        assert torch.allclose(server.layout.named(server.state.model)["head.weight"][2], d)


class TestPrivacy:
    def test_a_brief_says_nothing_of_who_comes_and_goes(self):
        alone, with_c = (coming_and_going(d=(100,), **{"c": stay}) for stay in ((100,), (2, 3)))
        for _ in range(3):
            play_round(alone)
            play_round(with_c)
        briefs = [[(t, b) for t, name, b in server.engine.asked if name == "a"] for server in (alone, with_c)]
        assert [task for task, _ in briefs[0]] == [task for task, _ in briefs[1]]
        for (_, quiet), (_, told) in zip(*briefs, strict=True):
            assert {n: t.shape for n, t in quiet.tensors.items()} == {n: t.shape for n, t in told.tensors.items()}
            assert (quiet.words, quiet.numbers) == (told.words, told.numbers)
        # Up to the brief of the round it joins with, not a byte differs; after that, only the model does.
        same = [to_bytes(quiet) == to_bytes(told) for (_, quiet), (_, told) in zip(*briefs, strict=True)]
        assert same == [True] * 4 + [False] * 3  # join; train, evaluate; train | evaluate; train, evaluate


class TestResume:
    @pytest.mark.parametrize("cut", [1, 2, 3, 4])
    @pytest.mark.parametrize("local", ["fedavg", "scaffold"])
    def test_a_run_goes_on_bit_for_bit(self, cut, local):
        made = {"c": (2, 4), "d": (1, 3)}
        settings = {"local": local, "participation": 2, "tuning": "balance", "frequencies": "sites", "rounds": 5}
        whole, first, second = (coming_and_going(recipe(**settings), **made) for _ in range(3))
        for server in (whole, first, second):
            server.unlabelled = torch.randn(30, 4, generator=torch.Generator().manual_seed(1))
        for _ in range(5):
            play_round(whole)
        for _ in range(cut):
            play_round(first)
        second.state = RunState.from_message(from_bytes(to_bytes(first.state.to_message())))
        second.engine.restore(first.engine.memories())
        second.engine.asked.clear()
        second.join()
        assert [name for _, name, _ in second.engine.asked] == asked_to_join_at(cut + 1)
        for _ in range(5 - cut):
            play_round(second)
        assert torch.equal(second.state.model, whole.state.model)
        assert sorted(second.cards) == sorted(whole.cards)
        kept = second.state.method.tensors, whole.state.method.tensors
        assert kept[0].keys() == kept[1].keys()
        assert all(torch.equal(kept[0][name], kept[1][name]) for name in kept[1])

    def test_a_site_whose_data_changed_while_the_run_was_cut_does_not_train(self):
        server = coming_and_going()
        play_round(server)
        server.expected_cards = told = dict(server.cards)

        def grown(reply):
            reply.numbers["samples"] += 1
            return reply

        server.engine.spoil["join", "c"] = grown
        server.join()
        assert server.cards["c"] is told["c"]  # so that another cut does not make it forgotten
        record = play_round(server)
        assert record.asked == sorted(record.evaluation.sites) == ["a", "b", "d"]
        assert [(d.site, d.task) for d in record.dropped] == [("c", "join")]

    def test_nobody_there_to_go_on_with(self):
        server = coming_and_going()
        play_round(server)
        for name in "abcd":
            server.engine.spoil["join", name] = lambda reply: Failure("x", "join", "no route to host")
        with pytest.raises(EngineError, match="no site could join the federation: no route to host"):
            server.join()


def asked_to_join_at(number):
    memberships = {"a": ALWAYS, "b": ALWAYS, "c": Membership(2, 4), "d": Membership(1, 3)}
    return [name for name, membership in memberships.items() if membership.covers(number)]


def test_any_recipe_takes_it():
    server = federation(accord(AccordSettings(rounds=3, steps=2, batch=4)), [site("a"), site("b")])
    server.memberships = {"b": Membership(1, 2)}
    assert [play_round(server).asked for _ in range(2)] == [["a", "b"], ["a"]]
