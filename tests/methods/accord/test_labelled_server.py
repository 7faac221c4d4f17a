"""accord with labelled samples at the server: one more site, and more training after the last round."""

from dataclasses import replace

import pytest
import torch

from fedaccord.aggregation.mean import per_label
from fedaccord.data.sites import FederationData
from fedaccord.federation.experts import stored_experts
from fedaccord.federation.round import evaluate, play_round
from fedaccord.federation.streaming import needs_only_mean
from fedaccord.labels.views import Tags
from fedaccord.methods.accord.checks import labelled_findings
from fedaccord.methods.accord.labelled_server import OneMoreSite, _shares, labelled_site, parts_to_train_on
from fedaccord.methods.accord.parts import parts_of
from fedaccord.methods.accord.settings import AccordSettings
from fedaccord.methods.registry import make_recipe
from fedaccord.recording import conclude
from fedaccord.runs.records import scopes
from mixed_federation import coarse_sites, samples
from small_federation import INPUTS, SPACE, exact, federation, pets_or_cattle, site, small_network, whole_and_resumed

pytestmark = pytest.mark.usefixtures("one_thread")
QUICK = {"rounds": 3, "schedule": "constant", "lr": 0.1, "batch": 8, "epochs": 2, "personal": "off"}
SENTENCE = "the server's 12 labelled samples: one more site in every round"


def started(labelled, sites=None, network=None, **settings):
    recipe = make_recipe("accord", {**QUICK, **settings})
    server = federation(recipe, sites or coarse_sites(), network, test=samples(60, seed=6))
    server.labelled = labelled
    server.ready()
    return server


def played(labelled, sites=None, rounds=3, **settings):
    server = started(labelled, sites, **settings)
    return server, [play_round(server) for _ in range(rounds)]


def ended(server, records):
    """Return the figures after the steps that follow the last round."""
    return conclude(server, scopes(records[-1].evaluation))


def of_classes(*classes):
    x, truth = samples(60)
    held = torch.isin(truth, torch.tensor(SPACE.columns(classes)))
    return x[held], truth[held]


def findings(labelled, sites=None):
    sites = sites or coarse_sites()
    data = FederationData(SPACE, {one.name: one for one in sites}, (INPUTS,), labelled=labelled)
    return [finding.text for finding in labelled_findings(data)]


def test_classes_that_no_coarse_name_separates_are_learned_from_the_server():
    accuracy = {
        has: ended(*played(samples(30) if has else None, rounds=6))["global"]["accuracy"] for has in (True, False)
    }
    assert accuracy[True] > 0.9
    assert accuracy[True] > accuracy[False] + 0.2


def test_the_step_is_after_the_aggregation_so_that_the_sites_do_not_undo_it():
    server, _ = played(samples(), rounds=1)
    replies = [server.engine.replies["train", name].tensors["model/head.bias"] for name in "abc"]
    assert not torch.allclose(torch.stack(replies).mean(0), server.tensors["head.bias"])
    briefs = [brief for task, _, brief in server.engine.asked if task == "train"]
    assert all(torch.equal(brief.tensors["model/head.bias"], small_network().head.bias) for brief in briefs)


@pytest.mark.parametrize("batch_norm", [False, True])
def test_a_resumed_run_ends_with_the_same_bits(batch_norm):
    whole, resumed = whole_and_resumed(lambda: started(samples(), network=small_network(batch_norm)))
    assert torch.equal(whole.state.model, resumed.state.model)


def test_without_labelled_samples_nothing_changes():
    server, records = played(None)
    x, truth = samples()
    empty, _ = played((x[:0], truth[:0]))
    assert torch.equal(server.state.model, empty.state.model)
    assert not server.trains
    assert not any("labelled samples" in part for part in parts_of(AccordSettings(), server))
    assert records[-1].replied == 3


def test_replies_are_still_added_one_by_one():
    recipe = make_recipe("accord", {})
    assert recipe.aggregator is per_label
    assert needs_only_mean(recipe)


def test_the_parts_name_the_step():
    assert SENTENCE in parts_of(AccordSettings(), started(samples()))


def test_samples_of_one_class_teach_nothing_and_check_says_so():
    cats = of_classes("cat")
    assert torch.equal(played(cats)[0].state.model, played(None)[0].state.model)
    assert findings(cats) == [
        "the server's labelled samples are not used: they are all 'cat', so they tell no classes apart"
    ]
    assert findings((cats[0][:0], cats[1][:0])) == [
        "the server's labelled samples are not used: they have no class, so they tell no classes apart"
    ]


def test_samples_beside_tags_are_not_used_and_check_says_so():
    tagged = [site(name, samples=20, view=Tags(SPACE)) for name in "ab"]
    assert torch.equal(played(samples(), tagged)[0].state.model, played(None, tagged)[0].state.model)
    assert findings(samples(), tagged) == [
        "the server's labelled samples are not used: each has one class, and 'a', 'b' have tags"
    ]


def test_a_class_without_samples_keeps_its_row_and_is_taught_by_the_sites():
    server = started(of_classes("cat", "dog"), regularise=False)
    OneMoreSite()(server)
    start = small_network().head.weight
    assert (server.tensors["head.weight"] != start).any(1).tolist() == [True, True, False]
    assert ended(*played(of_classes("cat", "dog"), rounds=6))["global"]["accuracy"] > 0.9
    assert findings(of_classes("cat", "dog")) == []  # the name "cattle" stands for cows alone


def test_a_class_that_nothing_teaches_is_warned_of():
    assert findings(of_classes("cat", "cow")) == [
        "the server has no labelled sample of 'dog'; no other label teaches them, so the model cannot learn them"
    ]
    assert findings(of_classes("cat", "cow"), [site("e", view=exact())]) == []


def test_steps_that_end_in_a_model_that_is_not_finite_are_discarded():
    x, truth = samples()
    server, _ = played((x * float("inf"), truth), rounds=1)
    assert torch.equal(server.state.model, played(None, rounds=1)[0].state.model)
    assert server.warnings == [
        "the server's steps led to a model that is not finite and were discarded; lower method.lr"
    ]


def test_the_server_alone_learns_while_no_site_replies():
    server = started(samples(), [site("a", samples=20, view=pets_or_cattle())])
    server.engine.spoil["train", "a"] = lambda reply: type(reply)()
    record = play_round(server)
    assert record.replied == 0
    assert record.absent == []
    assert not torch.equal(server.state.model, server.initial)


@pytest.mark.parametrize("personal", ["mixture", "cheap"])
def test_every_site_still_fits_its_experts(personal):
    server, _ = played(samples(), personal=personal)
    conclude(server, scopes(None))
    assert all("experts/weights" in memory.tensors for memory in server.engine.memories().values())


def test_the_samples_count_as_one_more_site_by_their_number():
    sites = [site("a", samples=24), site("b", samples=36, view=exact(["cat", "dog"]))]
    server = started(of_classes("cat", "cow"), sites)
    number = len(server.labelled[0])
    shares, rows = _shares(server, labelled_site(server)), server.layout.head_rows()
    encoder = server.layout.mask("encoder")
    torch.testing.assert_close(shares[encoder], torch.full((int(encoder.sum()),), number / (number + 60)))
    # Cats: both sites; dogs: the server has none of them; cows: only the first site.
    by_label = torch.tensor([number / (number + 60), 0.0, number / (number + 24)])
    torch.testing.assert_close(shares[rows], by_label[:, None].expand(rows.shape))


def test_sites_that_are_silent_or_dropped_do_not_count():
    server = started(samples(), [site("a", samples=24), site("b", samples=24)])
    server.silent = ["a"]
    server.drop("b", "train", "", "too late")
    assert _shares(server, labelled_site(server)).eq(1).all()


class TestAfterTheLastRound:
    def test_the_server_trains_on_if_rows_kept_apart_say_so(self):
        server, records = played(samples(30))
        before, figures = server.state.model.clone(), ended(server, records)
        assert not torch.equal(server.state.model, before)
        assert figures["global"]["accuracy"] > records[-1].evaluation.global_["accuracy"]
        (words,) = server.concluded
        assert words.startswith("the server's 30 labelled samples train the global model after the last round: loss on")

    def test_otherwise_the_model_stays_and_the_summary_says_why(self):
        server, records = played(samples(30))
        before, recipe = server.state.model.clone(), server.recipe
        server.recipe = replace(recipe, settings=recipe.settings.model_copy(update={"lr": 100.0}))  # it goes astray
        assert ended(server, records) == scopes(records[-1].evaluation)
        assert torch.equal(server.state.model, before)
        (words,) = server.concluded
        assert words.startswith("the server's 30 labelled samples do not train the global model after the last round")

    def test_it_does_not_train_on_if_exact_sites_teach_all_of_its_classes(self):
        server, records = played(samples(30), [*coarse_sites(), site("exact", samples=20)])
        before = server.state.model.clone()
        assert ended(server, records) == scopes(records[-1].evaluation)
        assert torch.equal(server.state.model, before)
        assert server.concluded == []

    def test_an_exact_site_that_does_not_train_teaches_nothing(self):
        server, _ = played(samples(30), [*coarse_sites(), site("exact", samples=20)])
        assert parts_to_train_on(server) is None
        coarse = server.recipe.settings.model_copy(update={"sites": ["a", "b", "c"]})
        server.recipe = replace(server.recipe, settings=coarse)
        assert parts_to_train_on(server) is not None

    def test_too_few_samples_to_keep_some_apart_are_not_trained_on(self):
        x, truth = samples(6)
        server, records = played((x, truth))
        before = server.state.model.clone()
        assert ended(server, records) == scopes(records[-1].evaluation)
        assert torch.equal(server.state.model, before)
        assert server.concluded == []

    def test_sites_keep_the_shared_model_that_their_experts_stand_on(self):
        server, _ = played(samples(30), personal="cheap")
        shared = {name: tensor.clone() for name, tensor in server.tensors.items()}
        conclude(server, scopes(None))
        assert not torch.equal(server.tensors["head.weight"], shared["head.weight"])
        for memory in server.engine.memories().values():
            kept = stored_experts(memory).shared
            assert all(torch.equal(kept[name], tensor) for name, tensor in shared.items())

    def test_a_site_answers_as_before_the_server_trained_on(self):
        server, _ = played(samples(30), personal="cheap")
        personalise, train_on = server.recipe.conclude
        list(personalise(server))
        before = evaluate(server, server.state.round)
        list(train_on(server))
        after = evaluate(server, server.state.round)
        assert after.sites == before.sites
        assert after.global_ != before.global_
