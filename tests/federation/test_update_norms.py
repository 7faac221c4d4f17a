"""An update far longer than usual is reported, and left out from the second time on; 1e18 is left out at once.

Worked numbers: the model starts at zero or at a known length, and sites send updates of known lengths.
"""

from dataclasses import replace
from unittest import mock

import pytest
import torch

from fedaccord.aggregation import mean as means
from fedaccord.config import check_experiment
from fedaccord.errors import ConfigError
from fedaccord.federation.admission import AdmitSection
from fedaccord.federation.round import play_round
from fedaccord.federation.update_norms import TIMES, USUAL
from fedaccord.methods.averaging.recipe import fedavg
from fedaccord.methods.averaging.scaffold import scaffold
from fedaccord.methods.averaging.settings import ScaffoldSettings
from fedaccord.methods.shared_settings import ClassicSettings
from small_federation import federation, site, small_network, whole_and_resumed, zero_network

pytestmark = pytest.mark.usefixtures("one_thread")

MODEL = "model/"


def recipe(**settings):
    return fedavg(ClassicSettings(steps=2, batch=4, **settings))


def sites(names="abcde", **settings):
    return federation(recipe(**settings), [site(name) for name in names], zero_network())


def sends(server, site_, length):
    """Let a site send a model at this distance from the server's, in every round."""

    def spoil(reply):
        share = length / server.layout.size**0.5
        for name, value in server.tensors.items():
            reply.tensors[f"{MODEL}{name}"] = value + share
        return reply

    server.engine.spoil["train", site_] = spoil


def sending(lengths, **settings):
    server = sites("".join(lengths), **settings)
    for name, length in lengths.items():
        sends(server, name, length)
    return server


class TestFiveSites:
    def test_within_ten_times_the_median_nothing_is_said(self):
        server = sending({"a": 1.0, "b": 1.0, "c": 1.0, "d": 0.2, "e": 9.9})
        for _ in range(3):
            record = play_round(server)
            assert record.replied == 5
            assert (record.dropped, record.warnings) == ([], [])

    def test_above_it_an_update_is_reported_and_left_out_from_the_second_time_on(self):
        server = sending({"a": 1.0, "b": 1.0, "c": 1.0, "d": 1.0, "e": 12.0})
        first = play_round(server)
        assert first.replied == 5
        assert first.dropped == []
        (warning,) = first.warnings
        assert warning.startswith("site 'e' sent an update 12 times as long as usual (parameters, round 1)")
        assert warning.endswith("it is shortened to 10 times, and the next one is left out (admit.norm)")
        assert first.events() == [f"round 1: warning: {warning}"]
        before = server.state.model.clone()
        assert float(before.norm()) == pytest.approx((4 * 1 + 10) / 5, rel=1e-4)
        for _ in range(2):
            record = play_round(server)
            assert record.replied == 4
            assert [(d.site, d.task, d.tensor) for d in record.dropped] == [("e", "train", "parameters")]
            assert record.dropped[0].reason == "the update is 12 times as long as usual, above 10 (admit.norm)"
            assert record.warnings == []
        assert float((server.state.model - before).norm()) == pytest.approx(2.0, rel=1e-4)  # two rounds of length 1

    def test_far_above_it_an_update_is_left_out_at_once(self):
        server = sending({"a": 1.0, "b": 1.0, "c": 1.0, "d": 1.0, "e": 101.0})
        record = play_round(server)
        assert [d.site for d in record.dropped] == ["e"]
        assert float(server.state.model.norm()) == pytest.approx(1.0, rel=1e-4)

    def test_the_lower_half_decides_among_an_even_number(self):
        server = sending({"a": 1.0, "b": 1.0, "c": 1e18, "d": 1e18})
        assert [d.site for d in play_round(server).dropped] == ["c", "d"]

    def test_sites_that_learn_nothing_do_not_make_the_others_look_hostile(self):
        """With private labels, sites that know a single label have no gradient, and move by rounding alone."""
        server = federation(recipe(), [site(name) for name in "abcde"], small_network())
        length = float(server.state.model.norm())
        for name, share in {"a": 1e-7, "b": 1e-7, "c": 1e-7, "d": 0.08, "e": 0.09}.items():
            sends(server, name, share * length)
        assert play_round(server).warnings == []
        assert play_round(server).dropped == []

    def test_sites_that_have_converged_are_compared_with_the_round_before(self):
        server = sending({"a": 1.0, "b": 1.0, "c": 1.0, "d": 1.0, "e": 1.0})
        play_round(server)
        server.state.model = torch.zeros_like(server.state.model)  # so that the model's own length says nothing
        for name in "abcd":
            sends(server, name, 0.01)
        sends(server, "e", 8.9)  # the usual length is nine tenths of one
        assert play_round(server).warnings == []
        sends(server, "e", 8.9)
        assert [text.split()[1] for text in play_round(server).warnings] == ["'e'"]  # by now 0.81

    def test_buffers_are_compared_apart_from_parameters(self):
        def huge_mean(reply):
            reply.tensors["model/encoder.1.running_mean"] += 1e18
            return reply

        server = federation(recipe(), [site(name) for name in "abcd"], small_network(batch_norm=True))
        server.engine.spoil["train", "b"] = huge_mean
        assert [(d.site, d.tensor) for d in play_round(server).dropped] == [("b", "buffers")]

    def test_tensors_beside_the_model_have_a_limit_too(self):
        def huge_control(reply):
            for name in reply.tensors:
                if name.startswith("control/"):
                    reply.tensors[name] = torch.full_like(reply.tensors[name], 1e18)
            return reply

        server = federation(scaffold(ScaffoldSettings(steps=2, batch=4)), [site(name) for name in "abcd"])
        server.engine.spoil["train", "b"] = huge_control
        assert [(d.site, d.tensor) for d in play_round(server).dropped] == [("b", "control")]
        assert float(server.state.method.tensors["control"].abs().max()) < 100


class TestFewSites:
    @pytest.mark.parametrize("names", ["ab", "ba"])
    def test_one_of_two_cannot_ruin_the_model(self, names):
        honest, hostile = names
        server, alone = (federation(recipe(), [site(name) for name in "ab"], small_network()) for _ in range(2))
        alone.recipe = replace(alone.recipe, settings=recipe(sites=[honest]).settings)
        sends(server, hostile, 1e18)
        record = play_round(server)
        play_round(alone)
        assert [d.site for d in record.dropped] == [hostile]
        assert torch.equal(server.state.model, alone.state.model)

    def test_two_that_differ_by_less_than_the_model_are_both_used(self):
        server = federation(recipe(), [site("a"), site("b")], small_network())
        sends(server, "a", 1e-6)
        sends(server, "b", 0.9 * float(server.state.model.norm()))
        for _ in range(3):
            record = play_round(server)
            assert (record.replied, record.warnings) == (2, [])

    def test_a_federation_of_one_site_has_no_limit(self):
        server = federation(recipe(), [site("a")], small_network())
        assert play_round(server).replied == 1
        sends(server, "a", 1e6)
        record = play_round(server)
        assert (record.replied, record.dropped, server.warnings) == (1, [], [])

    def test_nothing_tells_the_length_of_a_first_update_from_zero(self):
        server = sending({"a": 1e6})
        assert play_round(server).replied == 1


def test_a_site_with_more_samples_may_move_further():
    """In one epoch it takes more steps; ten times as many samples allow ten times the length."""

    def many(samples, length):
        server = federation(
            fedavg(ClassicSettings(epochs=1, batch=4)),
            [site(name) for name in "abcd"] + [site("e", samples=samples)],
            zero_network(),
        )
        for name in "abcd":
            sends(server, name, 1.0)
        sends(server, "e", length)
        return play_round(server).warnings

    assert many(36, 29.0) == []
    assert len(many(36, 31.0)) == 1
    assert len(many(12 * 50, 101.0)) == 1  # at most norm times as far
    assert many(12 * 50, 99.0) == []


@pytest.mark.parametrize("block", [1, 2, 3, 64])
def test_a_first_long_update_is_shortened_in_the_mean_of_blocks_too(block):
    with mock.patch.object(means, "_LONGEST", block):
        server = sending({"a": 1.0, "b": 1.0, "c": 1.0, "d": 1.0, "e": 50.0})
        assert play_round(server).replied == 5
        assert float(server.state.model.norm()) == pytest.approx((4 * 1 + 10) / 5, rel=1e-4)


@pytest.mark.parametrize("block", [1, 2, 3, 64])
def test_replies_in_several_blocks_are_judged_and_averaged_alike(block):
    """The mean is computed in blocks; those left out give their places to the next replies."""
    with mock.patch.object(means, "_LONGEST", block):
        server = federation(recipe(), [site(name) for name in "abcdefg"], small_network())
        without = federation(recipe(sites=list("abdfg")), [site(name) for name in "abcdefg"], small_network())
        sends(server, "c", 1e18)
        sends(server, "e", 1e18)
        for _ in range(2):
            assert [d.site for d in play_round(server).dropped] == ["c", "e"]
            play_round(without)
        assert torch.equal(server.state.model, without.state.model)


def test_a_resumed_run_remembers_who_was_reported():
    def fresh():
        return sending({"a": 1.0, "b": 1.0, "c": 1.0, "d": 1.0, "e": 12.0})

    whole, resumed = whole_and_resumed(fresh)
    assert torch.equal(whole.state.model, resumed.state.model)
    assert [d.site for d in resumed.dropped] == ["e"]
    assert resumed.state.method.numbers == whole.state.method.numbers
    assert whole.state.method.numbers[f"{TIMES}/e"] == 3
    assert whole.state.method.numbers[f"{USUAL}/parameters"] == pytest.approx(1.0, rel=1e-3)


@pytest.mark.parametrize("length", [12.0, 1e18])
def test_without_a_limit_everything_finite_counts(length):
    server = sending({"a": 1.0, "b": 1.0, "c": 1.0, "d": 1.0, "e": length})
    server.admission = AdmitSection(norm=0)
    for _ in range(2):
        record = play_round(server)
        assert (record.replied, record.dropped, record.warnings) == (5, [], [])


def test_clipping_shortens_updates_to_the_median():
    lengths = {"a": 0.5, "b": 1.0, "c": 1.0, "d": 2.0, "e": 8.0}
    plain, clipped = sending(lengths), sending(lengths)
    clipped.admission = AdmitSection(clip=True)
    for server in (plain, clipped):
        assert play_round(server).replied == 5
    assert float(plain.state.model.norm()) == pytest.approx(12.5 / 5, rel=1e-4)
    assert float(clipped.state.model.norm()) == pytest.approx(4.5 / 5, rel=1e-4)  # 0.5, 1, 1, 1, 1


class TestSettings:
    TABLE = {"data": {"dataset": "digits", "partition": {"kind": "iid", "sites": 3}}}

    def test_the_default_is_ten_and_none_in_a_study_with_an_attack(self):
        admit = check_experiment(self.TABLE).admit
        assert (admit.limit(is_attacked=False), admit.limit(is_attacked=True)) == (10, 0)
        admit = check_experiment(self.TABLE | {"admit": {"norm": 5.0}}).admit
        assert (admit.limit(is_attacked=False), admit.limit(is_attacked=True)) == (5, 5)

    def test_a_limit_near_the_median_is_refused(self):
        with pytest.raises(ConfigError, match=r"admit.norm.*1.5 would leave out honest updates; use 2 or more"):
            check_experiment(self.TABLE | {"admit": {"norm": 1.5}})
