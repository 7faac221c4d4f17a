"""accord with labelled samples at the server: a supervised step after every aggregation."""

import pytest
import torch

from fedaccord.aggregation.mean import per_label
from fedaccord.data.sites import FederationData
from fedaccord.federation.round import play_round
from fedaccord.federation.streaming import needs_only_mean
from fedaccord.labels.views import Tags
from fedaccord.methods.accord.checks import labelled_findings
from fedaccord.methods.accord.labelled_server import SupervisedStep
from fedaccord.methods.accord.parts import parts_of
from fedaccord.methods.accord.settings import AccordSettings
from fedaccord.methods.registry import make_recipe
from mixed_federation import coarse_sites, samples
from small_federation import INPUTS, SPACE, exact, federation, pets_or_cattle, site, small_network, whole_and_resumed

pytestmark = pytest.mark.usefixtures("one_thread")
QUICK = {"rounds": 3, "schedule": "constant", "lr": 0.1, "batch": 8, "epochs": 2, "personal": "off"}
SENTENCE = "the server's 12 labelled samples: a supervised step in every round"


def started(labelled, sites=None, network=None, **settings):
    recipe = make_recipe("accord", {**QUICK, **settings})
    server = federation(recipe, sites or coarse_sites(), network, test=samples(60, seed=6))
    server.labelled = labelled
    server.ready()
    return server


def played(labelled, sites=None, rounds=3, **settings):
    server = started(labelled, sites, **settings)
    return server, [play_round(server) for _ in range(rounds)]


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
        has: played(samples() if has else None, rounds=6)[1][-1].evaluation.global_["accuracy"] for has in (True, False)
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
    SupervisedStep()(server)
    start = small_network().head.weight
    assert (server.tensors["head.weight"] != start).any(1).tolist() == [True, True, False]
    server, records = played(of_classes("cat", "dog"), rounds=6)
    assert records[-1].evaluation.global_["accuracy"] > 0.9
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
    (conclude,) = server.recipe.conclude
    assert list(conclude(server))[-1].done > 0
    assert all("experts/weights" in memory.tensors for memory in server.engine.memories().values())
