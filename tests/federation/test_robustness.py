"""A run that combines by a robust rule: what it refuses, what it warns of, and what a hostile site achieves."""

from __future__ import annotations

import pytest
import torch

from fedaccord.config import check_experiment
from fedaccord.errors import ConfigError
from fedaccord.federation.admission import AdmitSection
from fedaccord.federation.membership import Membership
from fedaccord.federation.round import play_round
from fedaccord.federation.state import RunState
from fedaccord.messages.message import from_bytes, to_bytes
from fedaccord.methods.accord.recipe import accord
from fedaccord.methods.accord.settings import AccordSettings
from fedaccord.methods.averaging.recipe import fedavg, fedprox
from fedaccord.methods.averaging.scaffold import scaffold
from fedaccord.methods.averaging.settings import FedProxSettings, ScaffoldSettings
from fedaccord.methods.candidate_sets.recipe import with_personal_layer
from fedaccord.methods.private_labels.recipe import private_labels
from fedaccord.methods.private_labels.settings import PrivateLabelsSettings
from fedaccord.methods.registry import make_recipe
from fedaccord.methods.shared_settings import ClassicSettings
from small_federation import exact, federation, site, small_network

pytestmark = pytest.mark.usefixtures("one_thread")

RULES = ["median", "trimmed-mean", "krum", "multi-krum"]
METHODS = {
    "accord": (accord, AccordSettings),
    "fedavg": (fedavg, ClassicSettings),
    "fedprox": (fedprox, FedProxSettings),
    "scaffold": (scaffold, ScaffoldSettings),
    "private-labels": (private_labels, PrivateLabelsSettings),
}


def recipe(method="fedavg", **settings):
    make, form = METHODS[method]
    return make(form(**{"rounds": 3, "steps": 2, "batch": 4, "lr": 0.1, "hostile": 1} | settings))


def sites(number=5):
    return [site(f"s{i}") for i in range(number)]


def screaming(reply):
    """A reply as a hostile site sends it: everything a hundred thousand times as large, and the other way."""
    for name, tensor in reply.tensors.items():
        if tensor.is_floating_point():
            reply.tensors[name] = -1e5 * tensor
    return reply


class TestHostileSites:
    @pytest.mark.parametrize("method", METHODS)
    @pytest.mark.parametrize("rule", RULES)
    def test_one_of_five_cannot_carry_the_model_away(self, method, rule):
        made = federation(recipe(method, aggregation=rule), sites(), small_network(batch_norm=True))
        plain = federation(recipe(method), sites(), small_network(batch_norm=True))
        for server in (made, plain):
            server.admission = AdmitSection(norm=0)  # the rule alone
            server.engine.spoil["train", "s2"] = screaming
            for _ in range(2):
                assert play_round(server).replied == 5
        assert float(made.state.model.abs().max()) < 5
        assert float(plain.state.model.abs().max()) > 1000
        assert not [text for text in made.warnings if text.startswith("too few")]  # every site knows every label

    @pytest.mark.parametrize("rule", RULES)
    def test_a_rule_is_not_the_mean(self, rule):
        robust, plain = federation(recipe(aggregation=rule), sites()), federation(recipe(), sites())
        for server in (robust, plain):
            play_round(server)
        assert not torch.allclose(robust.state.model, plain.state.model, atol=1e-4)

    def test_a_scaffold_control_withstands_it_too(self):
        made = federation(recipe("scaffold", aggregation="median"), sites())
        made.engine.spoil["train", "s2"] = screaming
        play_round(made)
        assert 0 < float(made.state.method.tensors["control"].abs().max()) < 5


class TestTooFewSites:
    @pytest.mark.parametrize(
        ("settings", "number", "words"),
        [
            ({"aggregation": "krum"}, 4, "method.aggregation: the rule 'krum' needs at least 5 sites"),
            ({"aggregation": "trimmed-mean", "hostile": 2}, 4, "needs at least 5 sites against 2 hostile ones"),
            ({"aggregation": "median"}, 2, "needs at least 3 sites, and there are 2 in a round"),
            ({"aggregation": "median", "participation": 0.4}, 5, "needs at least 3 sites, and there are 2 in a round"),
            ({"aggregation": "median", "sites": ["s0", "s1"]}, 5, "and there are 2 in a round"),
        ],
    )
    def test_a_rule_that_cannot_work_is_refused_before_the_first_round(self, settings, number, words):
        server = federation(recipe(**settings), sites(number))
        with pytest.raises(ConfigError) as caught:
            server.ready()
        assert words in str(caught.value)

    def test_a_rule_that_can_is_not(self):
        federation(recipe(aggregation="krum"), sites(5)).ready()
        federation(recipe(), sites(1)).ready()

    def test_sites_that_join_later_count(self):
        server = federation(recipe(aggregation="krum"), sites(5))
        server.cards.clear()
        server.memberships = {"s3": Membership(3), "s4": Membership(2)}
        server.join()
        assert len(server.cards) == 3
        server.ready()
        server.memberships = {"s3": Membership(4), "s4": Membership(2)}  # after the last round
        with pytest.raises(ConfigError, match="and there are 4 in a round"):
            server.ready()

    def test_a_run_goes_on_where_the_sites_that_were_enough_have_left(self):
        server, again = (federation(recipe(aggregation="krum"), sites(5)) for _ in range(2))
        server.memberships = again.memberships = {"s4": Membership(1, 2)}
        server.ready()
        play_round(server)
        again.state = RunState.from_message(server.state.to_message())
        again.ready()
        assert "and there are 4; the model was not updated" in str(play_round(again).dropped[-1])

    def test_a_round_with_too_few_replies_leaves_the_model_and_says_so(self):
        server = federation(recipe(aggregation="krum"), sites(5))
        before = server.state.model.clone()
        server.engine.spoil["train", "s1"] = lambda reply: reply.tensors.clear() or reply
        record = play_round(server)
        assert torch.equal(server.state.model, before)
        assert str(record.dropped[-1]) == (
            "round 1: combine had no effect: the rule 'krum' needs at least 5 sites against 1 hostile one, and there "
            "are 4; the model was not updated"
        )
        server.engine.spoil.clear()
        assert play_round(server).dropped == []
        assert not torch.equal(server.state.model, before)


def cows_at_one_site():
    """Dogs are known at three sites, cats at two, cows at one."""
    known = {"a": ["cat", "dog"], "b": ["cat", "dog"], "c": ["dog", "cow"]}
    return [site(name, view=exact(labels)) for name, labels in known.items()]


class TestThinRows:
    WARNING = (
        "too few sites in a round know 'cat', 'cow' for the rule 'median': the head rows of these labels are means "
        "weighted by sample count, which one hostile site can shift"
    )

    @pytest.mark.parametrize("method", ["accord", "private-labels"])
    def test_a_warning_names_the_labels_once_in_a_run(self, method):
        server = federation(recipe(method, aggregation="median"), cows_at_one_site())
        warned = [play_round(server).warnings for _ in range(3)]
        assert warned == [[self.WARNING], [], []]
        assert server.warnings == [self.WARNING]

    @pytest.mark.parametrize("settings", [{"name": "pfedpll"}, {"name": "fed-cc", "head": "local"}, {"name": "fed-cc"}])
    def test_heads_that_never_leave_their_sites_are_nobodys_to_move(self, settings):
        common = {"rounds": 3, "steps": 2, "batch": 4, "lr": 0.1, "hostile": 1, "aggregation": "median"}
        name, given = settings["name"], {k: v for k, v in settings.items() if k != "name"}
        made = make_recipe(name, {**common, **given})
        server = federation(made, cows_at_one_site(), small_network(personal=made.network is with_personal_layer))
        shared = any(tensor.startswith("model/head") for tensor in server.brief("a", server.tensors).tensors)
        assert play_round(server).warnings == ([self.WARNING] if shared else [])
        assert shared is (settings == {"name": "fed-cc"})

    def test_it_goes_into_no_brief(self):
        server = federation(recipe("private-labels", aggregation="median"), cows_at_one_site())
        for _ in range(2):
            play_round(server)
        for _, name, brief in server.engine.asked:
            assert b"robust" not in to_bytes(brief)
            assert b"cow" not in to_bytes(brief), name

    def test_the_thin_row_is_the_mean_of_its_owners(self):
        server = federation(recipe("private-labels", aggregation="median"), cows_at_one_site())
        play_round(server)
        sent = {name: server.engine.replies["train", name].tensors["model/head.weight"] for name in "abc"}
        cat, dog, cow = server.layout.named(server.state.model)["head.weight"]
        assert torch.allclose(cat, (sent["a"][0] + sent["b"][0]) / 2)
        assert torch.equal(dog, torch.stack([sent["a"][1], sent["b"][1], sent["c"][0]]).median(0).values)
        assert torch.allclose(cow, sent["c"][1])

    def test_a_label_that_gets_thin_later_is_named_then(self):
        server = federation(recipe("private-labels", aggregation="median"), [*cows_at_one_site(), site("d")])
        server.memberships = {"d": Membership(1, 2)}
        first, second = (play_round(server).warnings for _ in range(2))
        thin = [text for text in (*first, *second) if text.startswith("too few")]
        assert ["'cow'" in text for text in thin] == [True, False]
        assert ["'cat'" in text for text in thin] == [False, True]

    def test_it_is_not_said_again_after_a_resume(self):
        server, again = (federation(recipe("accord", aggregation="median"), cows_at_one_site()) for _ in range(2))
        play_round(server)
        again.state = RunState.from_message(from_bytes(to_bytes(server.state.to_message())))
        again.engine.restore(server.engine.memories())
        assert play_round(again).warnings == []

    def test_nothing_is_said_of_rows_in_a_round_that_combined_nothing(self):
        server = federation(recipe("accord", aggregation="krum"), sites(5))
        server.memberships = {"s0": Membership(1, 2)}
        warned = [play_round(server).warnings for _ in range(2)]
        assert "there are 4; the model was not updated" in str(server.dropped[-1])
        assert not [text for told in warned for text in told if text.startswith("too few")]

    def test_a_rule_over_whole_models_warns_of_nothing(self):
        server = federation(recipe("fedavg", aggregation="median"), cows_at_one_site())
        assert play_round(server).warnings == []


@pytest.mark.parametrize("hostile", [0, -1, 0.5, 1.0, 0.0])
def test_a_share_or_number_that_means_nothing_is_refused(hostile):
    table = {
        "data": {"dataset": "digits", "partition": {"kind": "iid", "sites": 5}},
        "method": {"name": "fedavg", "aggregation": "krum", "hostile": hostile},
    }
    with pytest.raises(ConfigError, match=r"method.hostile: a share between 0 and 0.5 or a whole number of sites"):
        check_experiment(table)
