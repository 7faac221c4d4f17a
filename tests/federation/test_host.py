"""The sites' side: one host, one model object, many sites that do not know of one another."""

import dataclasses
import math

import pytest
import torch

from fedaccord.aggregation.mean import mean
from fedaccord.data.site_data import site_tensors
from fedaccord.errors import FedAccordError
from fedaccord.federation.host import SiteHost
from fedaccord.federation.recipe import Recipe
from fedaccord.federation.site_views import answering_offset, faded, uses_prior
from fedaccord.labels.views import Candidates, Coarse, Tags, Unlabelled
from fedaccord.messages.message import Message, to_bytes
from fedaccord.training.objectives import Objective, Sum, ViewLikelihood
from fedaccord.training.settings import TrainingSettings
from small_federation import SPACE, copied, exact, pets_or_cattle, site, small_network, zero_network

pytestmark = pytest.mark.usefixtures("one_thread")


def host(*sites, network=None, **settings):
    settings = TrainingSettings(**({"steps": 2, "batch": 4} | settings))
    return SiteHost({s.name: s for s in sites}, network or small_network(), Recipe(settings, mean), seed=0)


def ask(served, task, name, memory=None, round_=1, **tensors):
    brief = Message(tensors, {"round": round_}, {"run": "r"})
    reply, kept = served.handle(task, name, brief, copied(memory or Message()))
    return copied(reply), copied(kept)


def assert_same(one, other):
    assert to_bytes(one) == to_bytes(other)


def test_two_sites_give_the_same_replies_in_any_order():
    def both(order):
        served = host(site("a"), site("b"), network=small_network(batch_norm=True), prior="all", bn="local")
        answers = {}
        memories = {"a": Message(), "b": Message()}
        for round_ in (1, 2):
            for name in order:
                for task in ("train", "evaluate"):
                    reply, memories[name] = ask(served, task, name, memories[name], round_)
                    answers[round_, name, task] = reply
        return answers, memories

    (forwards, kept), (backwards, kept_backwards) = both("ab"), both("ba")
    for key, reply in forwards.items():
        assert_same(reply, backwards[key])
    for name in "ab":
        assert_same(kept[name], kept_backwards[name])
    assert to_bytes(forwards[1, "a", "train"]) != to_bytes(forwards[1, "b", "train"])


def test_asking_the_same_twice_gives_the_same_twice():
    served = host(site("a"))
    first, _ = ask(served, "train", "a")
    again, _ = ask(served, "train", "a")
    assert_same(first, again)
    later, _ = ask(served, "train", "a", round_=2)
    assert to_bytes(later) != to_bytes(first)


def test_the_brief_is_what_training_starts_from():
    bias = torch.tensor([1.0, 2.0, 3.0])
    reply, _ = ask(host(site("a"), lr=1e-30), "train", "a", **{"model/head.bias": bias})
    assert torch.equal(reply.tensors["model/head.bias"], bias)
    assert torch.equal(reply.tensors["model/head.weight"], small_network().head.weight)


def test_an_unknown_task_is_named():
    with pytest.raises(FedAccordError, match="site 'a' has no task 'trian'"):
        ask(host(site("a")), "trian", "a")


def test_every_reply_carries_run_and_round():
    served = host(site("a"))
    for task in ("join", "train", "evaluate"):
        reply, _ = ask(served, task, "a", round_=4)
        assert reply.numbers["round"] == 4
        assert reply.words["run"] == "r"


@pytest.mark.parametrize(
    ("view", "kind", "informs"),
    [
        (exact(), "exact", [1, 1, 1]),
        (exact(["cat", "cow"]), "exact", [1, 0, 1]),
        (Candidates(SPACE), "candidates", [1, 1, 1]),
        (pets_or_cattle(), "coarse", [1, 1, 1]),
        (Tags(SPACE, ["dog"]), "tags", [0, 1, 0]),
        (Unlabelled(SPACE), "unlabelled", [0, 0, 0]),
    ],
)
def test_a_site_joins_with_its_size_its_kind_of_view_and_the_labels_it_informs(view, kind, informs):
    reply, kept = ask(host(site("a", samples=9, view=view)), "join", "a", round_=0)
    assert reply.tensors.keys() == {"informs"}
    assert reply.tensors["informs"].tolist() == [bool(flag) for flag in informs]
    assert reply.numbers == {"samples": 0 if kind == "unlabelled" else 9, "round": 0}
    named = {"names": reply.words.get("names")} if kind == "coarse" else {}  # a digest, which tells no name
    assert reply.words == {"view": kind, "run": "r", **named}
    assert kept.is_empty()


def test_a_site_joins_with_one_word_more_if_its_coarse_names_have_no_declared_meaning():
    unexplained = dataclasses.replace(site("a", view=pets_or_cattle()), view=Coarse(SPACE, names=["pet", "cattle"]))
    reply, _ = ask(host(unexplained), "join", "a")
    explained, _ = ask(host(site("a", view=pets_or_cattle())), "join", "a")
    assert reply.words == {**explained.words, "meaning": "unknown"}
    assert not reply.tensors["informs"].any()


def test_with_the_full_softmax_a_site_informs_every_label():
    reply, _ = ask(host(site("a", view=exact(["cat", "cow"])), softmax="full"), "join", "a")
    assert reply.tensors["informs"].all()


def test_the_full_softmax_trains_rows_the_site_does_not_know():
    data = site("a", view=exact(["cat", "cow"]))
    start = small_network().head.weight
    for softmax, moved in (("view", [True, False, True]), ("full", [True, True, True])):
        reply, _ = ask(host(data, softmax=softmax), "train", "a")
        rows = reply.tensors["model/head.weight"] != start
        assert rows.any(1).tolist() == moved


def test_a_training_reply_holds_the_model_its_weight_loss_and_work_and_nothing_else():
    reply, kept = ask(host(site("a", samples=9)), "train", "a")
    assert reply.tensors.keys() == {f"model/{name}" for name, _ in small_network().named_parameters()}
    assert reply.numbers.keys() == {"samples", "loss", "round", "computed"}
    assert reply.numbers["samples"] == 9
    assert reply.words == {"run": "r"}
    assert kept.is_empty()


def test_an_evaluation_changes_neither_model_nor_memory():
    served = host(site("a"), network=small_network(batch_norm=True))
    ask(served, "evaluate", "a")
    reply, kept = ask(served, "evaluate", "a")
    assert kept.is_empty()
    assert served.network.encoder[1].num_batches_tracked.item() == 0
    assert reply.tensors.keys() == {"confusion"}
    assert reply.numbers["samples"] == 6


def test_a_site_without_test_samples_says_so():
    reply, _ = ask(host(site("a", test=0)), "evaluate", "a")
    assert reply.numbers == {"samples": 0, "round": 1}


def test_every_kind_of_view_trains_and_is_judged():
    views = [exact(), exact(["cat"]), Candidates(SPACE), pets_or_cattle(), Tags(SPACE, ["cat", "dog"])]
    for view in views:
        served = host(site("a", view=view), prior="all")
        reply, kept = ask(served, "train", "a")
        assert math.isfinite(reply.numbers["loss"])
        figures, _ = ask(served, "evaluate", "a", kept)
        assert 0 <= figures.numbers["accuracy"] <= 1
        assert math.isfinite(figures.numbers["nll"])


def test_a_recipe_can_bring_tasks_and_objectives_that_remember():
    class Counts(Objective):
        def loss(self, work, batch):
            return torch.zeros(())

        def finish(self, work, reply):
            work.memory.numbers["rounds"] = work.memory.numbers.get("rounds", 0) + 1
            reply.numbers["rounds"] = work.memory.numbers["rounds"]

    def greet(work):
        work.memory.words["met"] = "yes"
        return Message(words={"hello": work.site.name})

    recipe = Recipe(
        TrainingSettings(steps=1), mean, objective=Sum((ViewLikelihood(), Counts())), tasks={"greet": greet}
    )
    served = SiteHost({"a": site("a")}, small_network(), recipe, seed=0)
    _, kept = ask(served, "train", "a")
    reply, kept = ask(served, "train", "a", kept)
    assert reply.numbers["rounds"] == 2
    reply, kept = ask(served, "greet", "a", kept)
    assert reply.words == {"hello": "a", "run": "r"}
    assert kept.words == {"met": "yes"}
    assert kept.numbers == {"rounds": 2}


def test_all_data_of_all_sites_as_named_tensors():
    data = site("a")
    tensors = site_tensors({"a": data})
    assert tensors.keys() == {f"a/{part}/{key}" for part in ("train", "test") for key in ("x", "target", "truth")}
    assert tensors["a/train/x"] is data.train.x


# The site prior


@pytest.mark.parametrize(
    ("setting", "exact_site", "other_site"), [("off", False, False), ("exact-sites", True, False), ("all", True, True)]
)
def test_which_sites_have_a_prior(setting, exact_site, other_site):
    assert uses_prior(setting, exact()) == exact_site
    for view in (Candidates(SPACE), pets_or_cattle()):
        assert uses_prior(setting, view) == other_site
    served = host(site("a"), site("b", view=Candidates(SPACE)), prior=setting)
    for name, has in (("a", exact_site), ("b", other_site)):
        reply, kept = ask(served, "train", name)
        figures, _ = ask(served, "evaluate", name, kept)
        assert ("prior" in kept.tensors) == has
        for sent in (reply, figures):
            assert not any("prior" in key for key in (*sent.tensors, *sent.numbers, *sent.words))


@pytest.mark.parametrize(("round_", "strength"), [(1, 1.0), (2, 0.5), (3, 0.0), (4, 0.0)])
def test_a_fading_prior_is_gone_after_half_of_the_rounds(round_, strength):
    data = site("a", samples=20)
    prior = torch.tensor([math.log((1 + n) / (3 + 20)) for n in torch.bincount(data.train.target, minlength=3)])
    replies = {
        setting: ask(host(data, prior=setting, rounds=4), "train", "a", round_=round_)[0].tensors
        for setting in ("fading", "all", "off")
    }
    same = {1.0: "all", 0.0: "off"}.get(strength)
    for other in ("all", "off"):
        equal = all(torch.equal(replies["fading"][key], replies[other][key]) for key in replies[other])
        assert equal == (other == same)
    torch.testing.assert_close(faded(prior, (round_ - 1) / 4), strength * prior)


def test_a_fading_prior_is_not_stored_unless_annotations_are_ambiguous():
    served = host(site("a"), site("b", view=Candidates(SPACE)), prior="fading")
    assert "prior" not in ask(served, "train", "a")[1].tensors
    assert "prior" in ask(served, "train", "b")[1].tensors


def fading_offset(data):
    settings = TrainingSettings(prior="fading")
    return answering_offset(data, data.view, zero_network(), settings)


def test_the_offset_of_a_site_counts_annotated_rows_only():
    data = site("a", samples=200)
    data.train.target[:] = -1
    data.train.target[:6] = torch.tensor([0, 0, 0, 0, 1, 2])
    few = site("b", samples=6)
    few.train.target[:] = torch.tensor([0, 0, 0, 0, 1, 2])
    torch.testing.assert_close(fading_offset(data), fading_offset(few))


def test_the_offset_of_a_large_site_does_not_depend_on_the_order_of_its_rows():
    data = site("a", samples=4000)
    data.train.target[:] = torch.arange(4000) % 2  # every second row would be of one class
    offset = fading_offset(data)
    assert offset[0] - offset[1] == pytest.approx(0, abs=0.2)


def test_a_site_without_training_rows_has_no_offset():
    assert fading_offset(site("a", samples=0)) is None
    known = fading_offset(site("a", samples=0, view=exact(["cat", "cow"])))
    assert known.tolist() == [0.0, float("-inf"), 0.0]


def test_the_prior_of_an_exact_site_is_its_smoothed_counts():
    data = site("a", samples=20)
    _, kept = ask(host(data, prior="exact-sites"), "train", "a")
    counts = torch.bincount(data.train.target, minlength=3).tolist()
    assert kept.tensors["prior"].tolist() == torch.tensor([math.log((1 + n) / (3 + 20)) for n in counts]).tolist()
    _, smoother = ask(host(data, prior="exact-sites", prior_count=10), "train", "a")
    assert smoother.tensors["prior"].tolist() == pytest.approx([math.log((10 + n) / (30 + 20)) for n in counts])


def test_samples_without_annotation_do_not_count():
    data = site("a", samples=20)
    data.train.target[:5] = -1
    _, kept = ask(host(data, prior="all"), "train", "a")
    counts = torch.bincount(data.train.target[5:], minlength=3).tolist()
    assert kept.tensors["prior"].tolist() == pytest.approx([math.log((1 + n) / (3 + 15)) for n in counts])


def test_labels_a_site_does_not_know_stay_impossible_under_its_prior():
    data = site("a", samples=20, view=exact(["cat", "cow"]))
    served = host(data, prior="all")
    memory = Message()
    counts = torch.bincount(data.train.target, minlength=3).tolist()
    for round_ in (1, 2):
        reply, memory = ask(served, "train", "a", memory, round_)
        cat, dog, cow = memory.tensors["prior"].tolist()
        assert dog == -math.inf
        assert [cat, cow] == pytest.approx([math.log((1 + counts[i]) / (2 + 20)) for i in (0, 2)])
        assert reply.tensors["model/head.weight"].isfinite().all()
    assert torch.equal(reply.tensors["model/head.weight"][1], small_network().head.weight[1])


def test_the_prior_of_another_site_is_the_models_belief_given_its_annotations():
    view = pets_or_cattle()
    data = site("a", samples=20, view=view)
    _, kept = ask(host(data, prior="all"), "train", "a")
    with torch.no_grad():
        belief = view.posterior(small_network()(data.train.x), data.train.target)  # the model as it was received
    expected = torch.log((1 + belief.sum(0)) / (3 + 20))
    torch.testing.assert_close(kept.tensors["prior"], expected, rtol=1e-4, atol=1e-5)


def test_the_prior_is_used_in_training_and_at_the_test():
    data = site("a", samples=20)
    # A site of one label: with its prior the model need not learn that the others are rare here.
    data.train.target[:] = 0
    off, _ = ask(host(data, steps=1), "train", "a")
    on, kept = ask(host(data, steps=1, prior="all"), "train", "a")
    assert on.numbers["loss"] < off.numbers["loss"]
    network, test = small_network().eval(), data.test
    offset = kept.tensors["prior"]
    figures, _ = ask(host(data, prior="all"), "evaluate", "a", kept)
    with torch.no_grad():
        nll = torch.nn.functional.cross_entropy(network(test.x) + offset, test.target).item()
    assert figures.numbers["nll"] == pytest.approx(nll, rel=1e-5)


def test_a_site_judged_before_it_trained_has_its_prior_already():
    data = site("a", samples=20)
    served = host(data, prior="all", lr=1e-30)
    before, _ = ask(served, "evaluate", "a")
    _, kept = ask(served, "train", "a")
    after, _ = ask(served, "evaluate", "a", kept)
    assert_same(before, after)


def test_a_site_that_never_trains_estimates_its_prior_with_every_model_anew():
    served = host(site("a", samples=20, view=Unlabelled(SPACE)), prior="all")
    bias = {"model/head.bias": torch.tensor([9.0, 0.0, -9.0])}
    _, kept = ask(served, "evaluate", "a", **bias)
    assert kept.is_empty()
    later, _ = ask(served, "evaluate", "a", kept)
    fresh, _ = ask(served, "evaluate", "a")
    assert_same(later, fresh)


class TestDisambiguation:
    """How often the true label of a training sample is the most likely of its candidates."""

    def test_it_is_measured_on_the_training_part_with_the_model_sent(self):
        data = site("a", samples=40, view=Candidates(SPACE))
        served = host(data)
        figures, _ = ask(served, "evaluate", "a")
        z = small_network()(data.train.x).masked_fill(~data.train.target, float("-inf"))
        expected = (z.argmax(-1) == data.train.truth).float().mean().item()
        assert 0 < expected < 1
        assert figures.numbers["disambiguation"] == pytest.approx(expected)

    def test_only_where_there_are_sets_and_the_truth_is_known(self):
        unknown = site("a", view=Candidates(SPACE))
        unknown = dataclasses.replace(unknown, train=dataclasses.replace(unknown.train, truth=None))
        for data in (unknown, site("a"), site("a", view=pets_or_cattle())):
            figures, _ = ask(host(data), "evaluate", "a")
            assert "accuracy" in figures.numbers
            assert "disambiguation" not in figures.numbers
