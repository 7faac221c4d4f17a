"""Sites that train as one program end where they would have ended one by one."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedaccord.config import check_experiment
from fedaccord.data.site_data import Samples, SiteData
from fedaccord.engines.engine import handle_jobs
from fedaccord.experiment import load_federation
from fedaccord.federation import host as host_module
from fedaccord.federation import site_evaluation
from fedaccord.federation.cohorts import (
    FEWEST_SITES,
    MANY_SITES,
    MOST_EVALUATED,
    MOST_SITES,
    MOST_TESTED,
    PIECES,
    Cohorts,
    cohort_size,
    split_evenly,
)
from fedaccord.federation.host import SiteHost
from fedaccord.federation.round import play_round
from fedaccord.labels.views import Candidates, Tags
from fedaccord.messages.message import Message
from fedaccord.methods.candidate_sets.recipe import with_personal_layer
from fedaccord.methods.registry import METHODS, make_recipe
from fedaccord.methods.tags.site import ALIGNMENT_SHARE
from fedaccord.models.catalogue import build
from fedaccord.models.network import Network, insert_personal_layer
from fedaccord.session import _cohorts
from small_federation import INPUTS, SPACE, TogetherEngine, copied, exact, pets_or_cattle, site, small_network
from small_federation import federation as server_of

CPU = torch.device("cpu")
VIEWS = {
    "exact": exact(),
    "some": exact(["cat", "cow"]),
    "others": exact(["dog", "cow"]),
    "coarse": pets_or_cattle(),
    "sets": Candidates(SPACE),
    "few sets": Candidates(SPACE, ["dog", "cow"]),
    "tags": Tags(SPACE, ["cat", "dog"]),
}
NOT_TAGS = sorted(VIEWS.keys() - {"tags"})
TOGETHER = {
    "fedavg": {"momentum": 0.9},
    "fedprox": {"mu": 0.5, "weight_decay": 0.1},
    "scaffold": {},
    "accord": {"prior": "all", "clip": 0.5},
    "private-labels": {"local": "fedprox", "mu": 0.3},
    "local": {"loss": "rc", "prior": "exact-sites"},
    "pfedpll": {"momentum": 0.5},
    "pfedpll+": {},
    "fed-cc": {},
    "fed-rc": {"head": "local"},
    "fed-lw": {"form": "cross-entropy", "clip": 1.0},
    "fed-cavl": {},
    "fed-abs-gce": {},
    "fed-uniform": {},
    "fed-clpl": {},
    "fedmom": {},
    "fednova": {"momentum": 0.5},
    "pfedmo": {"epochs": None, "steps": 6},
    "fednag": {},
    "fastslowmo": {},
    "domo": {},
    "fedadc": {},
    "slowmo": {},
    "fedmt": {"correspondence": "known", "threshold": 0.4},
    "fedmt+": {"threshold": 0.4, "local": "fedprox"},
    "semifl": {"threshold": 0.4, "lambda1": 0.5},
}

REFUSED = {("momentum", method) for method in ("pfedmo", "fednag", "fastslowmo")}  # theirs is `gamma`
REFUSED |= {("epochs", "pfedmo")}


def host_of(method, changes, sites, network=None):
    steps = {"epochs": 2, "batch": 5, "lr": 0.1} | changes
    recipe = make_recipe(method, steps)
    network = copy.deepcopy(network or small_network())
    if recipe.network is with_personal_layer:
        insert_personal_layer(network)
    return SiteHost({one.name: one for one in sites}, network, recipe, seed=3)


def jobs_of(host, round_, memories, told=None):
    """What each site would be asked in a round: the first model, as far as the site is to know it."""
    jobs = []
    for name in sorted(host.sites):
        known = host.informs[name]
        model = host.recipe.sharing.outgoing(host.layout, host._initial, known)
        brief = Message({**model, **(told or {})}, {"round": round_}, {"run": "r"})
        jobs.append((name, copied(brief), copied(memories.get(name, Message()))))
    return jobs


def rounds(host, together, number=2):
    """Play rounds at the sites alone; returns the last replies and what the sites keep."""
    memories, replies = {}, {}
    for round_ in range(1, number + 1):
        jobs = jobs_of(host, round_, memories)
        if together:
            answers = [tuple(map(copied, answer)) for answer in host.handle_together("train", jobs)]
        else:
            answers = [tuple(map(copied, host.handle("train", *job))) for job in jobs]
        replies = {job[0]: reply for job, (reply, _) in zip(jobs, answers, strict=True)}
        memories = {job[0]: kept for job, (_, kept) in zip(jobs, answers, strict=True)}
    return replies, memories


def assert_close(one, other):
    assert one.keys() == other.keys()
    for name, message in one.items():
        there = other[name]
        assert message.tensors.keys() == there.tensors.keys()
        assert message.words == there.words
        assert message.numbers == pytest.approx(there.numbers, rel=1e-4, abs=1e-5)
        for key, tensor in message.tensors.items():
            torch.testing.assert_close(tensor, there.tensors[key], rtol=1e-4, atol=1e-5)


def federation(sizes, kinds):
    members = enumerate(zip(sizes, kinds, strict=True))
    return [site(f"{kind}-{i}", samples, VIEWS[kind]) for i, (samples, kind) in members]


@pytest.mark.parametrize("method", TOGETHER)
def test_a_cohort_trains_as_its_sites_would(method):
    kinds = ["exact", "sets", "some", "others", "coarse", "few sets", "exact", "sets", "some", "exact"]
    sites = federation([12, 7, 5, 16, 9, 11, 1, 20, 10, 3], kinds)
    changes = TOGETHER[method]
    apart, together = (rounds(host_of(method, changes, sites), way) for way in (False, True))
    assert_close(together[0], apart[0])
    assert_close(together[1], apart[1])
    assert any(reply.tensors or together[1][name].tensors for name, reply in together[0].items())


@settings(max_examples=15, deadline=None)
@given(
    method=st.sampled_from(sorted(TOGETHER)),
    members=st.lists(st.tuples(st.integers(1, 23), st.sampled_from(NOT_TAGS)), min_size=2, max_size=7),
    batch=st.integers(1, 9),
    how_long=st.one_of(
        st.fixed_dictionaries({"epochs": st.integers(1, 3)}), st.fixed_dictionaries({"steps": st.integers(1, 7)})
    ),
    momentum=st.sampled_from([0.0, 0.9]),
    clip=st.sampled_from([0.0, 0.2]),
    bias=st.booleans(),
)
def test_any_cohort_does(method, members, batch, how_long, momentum, clip, bias):
    torch.manual_seed(1)
    network = Network(nn.Sequential(nn.Linear(INPUTS, 6, bias=bias), nn.Tanh()), nn.Linear(6, len(SPACE)))
    sites = federation(*zip(*members, strict=True))
    # Larger steps of single rows with momentum may diverge, and then rounding is blown up with the rest.
    changes = {"lr": 0.01, "batch": batch, "momentum": momentum, "clip": clip, "epochs": None, "steps": None}
    changes |= how_long
    changes = {key: value for key, value in changes.items() if value is not None and (key, method) not in REFUSED}
    extra = {"epochs": None} if "steps" in how_long else {}
    apart, together = (
        rounds(host_of(method, TOGETHER[method] | changes | extra, sites, network), way) for way in (False, True)
    )
    assert_close(together[0], apart[0])
    assert_close(together[1], apart[1])


def evaluated(host, memories, together):
    """Evaluate the first model at all sites; briefs with the same tensors share them, as an engine hands them over."""
    jobs = jobs_of(host, 3, memories)
    if not host.recipe.sharing.own_rows:
        jobs = [(name, Message(dict(jobs[0][1].tensors), dict(b.numbers), dict(b.words)), m) for name, b, m in jobs]
    if not together:
        return {job[0]: copied(host.handle("evaluate", *job)[0]) for job in jobs}
    by_name = {job[0]: job for job in jobs}
    replies = {}
    for names in Cohorts(host.sites, 1, fewest=2)("evaluate", list(by_name)):
        answers = host.handle_together("evaluate", [by_name[name] for name in names])
        replies |= {name: reply for name, (reply, _) in zip(names, answers, strict=True)}
    return replies


@pytest.mark.parametrize("method", ["fedavg", "accord", "private-labels", "pfedpll", "fedmt"])
def test_a_cohort_is_evaluated_as_its_sites_would_be(method):
    kinds = ["exact", "sets", "some", "others", "coarse", "exact", "sets", "some", "exact"]
    sites = federation([12, 7, 5, 16, 9, 1, 20, 10, 3], kinds)
    sites = [
        SiteData(one.name, one.view, one.train, one.test.map(lambda rows, kept=kept: rows[:kept]))
        for kept, one in enumerate(sites)  # the first has no test rows
    ]
    target = sites[5].test.target.clone()
    target[0] = -1  # a row without annotation
    sites[5] = SiteData("unsure", sites[5].view, sites[5].train, Samples(sites[5].test.x, target))
    host = host_of(method, TOGETHER[method], sites)
    memories = rounds(host, False)[1]
    apart, together = (evaluated(host, memories, way) for way in (False, True))
    assert_close(together, apart)
    assert [reply.numbers["samples"] for reply in apart.values()].count(0) == 1
    assert len({reply.numbers.get("nll") for reply in apart.values()}) > 5


def test_sites_with_the_same_model_share_one_forward_pass(monkeypatch):
    sites = [*federation([5, 6, 7], ["exact", "some", "others"]), site("large", test=9)]
    host = host_of("fedavg", {}, sites)
    seen = []
    predict = site_evaluation.predict_logits
    monkeypatch.setattr(site_evaluation, "predict_logits", lambda m, x: seen.append(len(x)) or predict(m, x))
    evaluated(host, {}, together=True)
    assert seen == [sum(len(one.test) for one in sites)]


TOLD_MORE = {  # what sites are told beside the model is made by the server, from what they answered before
    "mime": [{}, {"lite": True}, {"weight_decay": 0.1, "clip": 0.5}],
    "fedharmony": [{}, {"mu": 0.1, "optimiser": "sgd"}, {"exchanges": 2, "blocks": "common", "block_count": 2}],
    "fedharmony+": [{}, {"weight_decay": 0.1, "clip": 0.2}],
}


SIZES = (12, 7, 9, 20)


def tag_sites(sizes=SIZES, share=0.3):
    """Sites that know different tags, with annotations missing at all but one, and of different sizes."""
    generator = torch.Generator().manual_seed(5)
    made = []
    for number, samples in enumerate(sizes):
        known = (None, ["cat", "dog"], None, ["dog", "cow"])[number % 4]
        one = site(f"tags-{number}", samples, Tags(SPACE, known))
        missing = torch.rand(one.train.target.shape, generator=generator) < (share if number else 0.0)
        target = one.train.target.masked_fill(missing, -1)
        made.append(SiteData(one.name, one.view, Samples(one.train.x, target), one.test))
    return made


def played_both_ways(recipe, sites, number):
    """Play rounds with sites one by one and as one cohort, and see that they are the same; returns both servers."""
    apart, together = (server_of(recipe, sites) for _ in range(2))
    together.engine = TogetherEngine(together.engine.host)
    for _ in range(number):
        one, other = play_round(apart), play_round(together)
        torch.testing.assert_close(together.state.model, apart.state.model, rtol=1e-3, atol=1e-5)
        assert other.loss == pytest.approx(one.loss, rel=1e-4)
        assert not one.dropped + other.dropped
        shares = [reply.numbers.get(ALIGNMENT_SHARE, 0.5) for reply in together.engine.replies.values()]
        assert all(0 < share < 1 for share in shares)
    return apart, together


@settings(max_examples=20, deadline=None)
@given(
    method=st.sampled_from(["mime", "fedharmony", "fedharmony+"]),
    sizes=st.lists(st.integers(2, 23), min_size=2, max_size=6),
    share=st.sampled_from([0.0, 0.4]),
    batch=st.integers(2, 9),
    optimiser=st.sampled_from(["sgd", "adam"]),
    blocks=st.sampled_from(["off", "common", "per-site"]),
    clip=st.sampled_from([0.0, 0.2]),
)
def test_any_cohort_does_for_any_server(method, sizes, share, batch, optimiser, blocks, clip):
    changes = {"rounds": 2, "epochs": 2, "batch": batch, "lr": 0.01, "clip": clip}
    if method == "mime":
        sites = federation(sizes, (["exact", "some", "others"] * 2)[: len(sizes)])
    else:
        sites = tag_sites(sizes, share)
        changes |= {"optimiser": optimiser, "blocks": blocks} | ({} if blocks == "off" else {"block_count": 2})
    played_both_ways(make_recipe(method, changes), sites, 2)


@pytest.mark.parametrize(("method", "changes"), [(m, c) for m, all_ in TOLD_MORE.items() for c in all_], ids=str)
def test_what_a_server_makes_of_a_cohort_is_what_it_makes_of_its_sites(method, changes):
    sites = federation([12, 7, 5, 16], ["exact", "some", "exact", "others"]) if method == "mime" else tag_sites()
    recipe = make_recipe(method, {"rounds": 3, "epochs": 2, "batch": 5, "lr": 0.05} | changes)
    apart, together = played_both_ways(recipe, sites, 3)
    kept = together.engine.memories()
    for name, memory in apart.engine.memories().items():
        assert memory.tensors.keys() == kept[name].tensors.keys()
        for key, tensor in memory.tensors.items():
            torch.testing.assert_close(kept[name].tensors[key], tensor, rtol=1e-3, atol=1e-4)
    assert not torch.allclose(apart.state.model, server_of(recipe, sites).state.model, atol=1e-3)


def test_sites_whose_matrices_are_large_are_few_in_a_stack(monkeypatch):
    """Three tags are nine values; the stack is cut, and the result is the same."""
    seen = []
    train_together = host_module.train_together
    monkeypatch.setattr(
        host_module, "train_together", lambda works, *rest: seen.append(len(works)) or train_together(works, *rest)
    )
    monkeypatch.setattr(host_module, "MOST_VALUES", 18)
    recipe = make_recipe("fedharmony+", {"rounds": 2, "epochs": 1, "batch": 5, "lr": 0.05, "blocks": "off"})
    played_both_ways(recipe, tag_sites(), 2)
    assert seen == [2, 2, 2, 2]


def test_tags_train_together_too():
    sites = federation([9, 6, 14], ["tags"] * 3)
    changes = {"prior": "off"}
    apart, together = (rounds(host_of("accord", changes, sites), way) for way in (False, True))
    assert_close(together[0], apart[0])


def test_a_network_that_is_not_dense_goes_through_vmap():
    none = Samples(torch.zeros(0, 1, 8, 8), torch.zeros(0, dtype=torch.long))
    parts = [Samples(torch.randn(n, 1, 8, 8), torch.arange(n) % 3) for n in (6, 4, 9)]
    images = [SiteData(f"s{i}", exact(), part, none) for i, part in enumerate(parts)]
    network = build("lenet5", {}, (1, 8, 8), len(SPACE), seed=0)
    apart, together = (rounds(host_of("fedavg", {"epochs": 1}, images, network), way, 1) for way in (False, True))
    assert_close(together[0], apart[0])


def test_sites_that_cannot_be_told_apart_in_a_stack_train_one_by_one():
    sites = federation([6, 7], ["exact", "exact"])
    for network in (small_network(batch_norm=True), with_dropout()):
        host = host_of("fedavg", {}, sites, network)
        assert host._forward is None
        replies = host.handle_together("train", jobs_of(host, 1, {}))
        assert [reply.numbers["samples"] for reply, _ in replies] == [6, 7]
        assert cohort_size(host.recipe, host.network, CPU) == 1


def with_dropout():
    return Network(nn.Sequential(nn.Linear(INPUTS, 5), nn.Dropout(0.5)), nn.Linear(5, len(SPACE)))


def test_a_site_without_anything_to_learn_from_stays_silent_among_others():
    sites = federation([6, 5, 7], ["exact"] * 3)
    mute = sites[1]
    mute.train.target.fill_(-1)
    host = host_of("fedavg", {}, sites)
    replies = [reply for reply, _ in host.handle_together("train", jobs_of(host, 1, {}))]
    assert ["silent" in reply.words for reply in replies] == [False, True, False]


def test_a_site_that_diverges_spoils_no_other():
    sites = federation([8, 8, 8], ["exact"] * 3)
    plain = rounds(host_of("fedavg", {}, sites), True, 1)[0]
    sites[1].train.x.fill_(float("inf"))
    spoilt = rounds(host_of("fedavg", {}, sites), True, 1)[0]
    names = sorted(plain)
    assert not all(torch.isfinite(t).all() for t in spoilt[names[1]].tensors.values())
    for name in (names[0], names[2]):
        assert all(torch.equal(spoilt[name].tensors[key], t) for key, t in plain[name].tensors.items())


def test_one_broken_site_costs_no_other_its_answer():
    sites = federation([8, 8, 8], ["exact"] * 3)
    host = host_of("fedavg", {}, sites)
    jobs = jobs_of(host, 1, {})
    del jobs[1][1].numbers["round"]
    answers = list(handle_jobs(host, "train", jobs))
    assert [isinstance(answer, KeyError) for answer in answers] == [False, True, False]


class TestWhoTrainsTogether:
    def test_only_small_dense_models_on_a_cpu(self):
        recipe = make_recipe("fedavg", {})
        size = {
            "small": cohort_size(recipe, build("mlp", {"hidden": [64]}, (1, 28, 28), 10, 0), CPU),
            "wide": cohort_size(recipe, build("mlp", {"hidden": [2000]}, (1, 28, 28), 10, 0), CPU),
            "convolutions": cohort_size(recipe, build("lenet5", {}, (1, 28, 28), 10, 0), CPU),
            "on a GPU": cohort_size(recipe, build("lenet5", {}, (1, 28, 28), 10, 0), torch.device("cuda")),
        }
        assert size["small"] == size["on a GPU"] == MOST_SITES
        assert size["wide"] == size["convolutions"] == 1

    @pytest.mark.parametrize("method", sorted(METHODS.keys() - TOGETHER.keys() - TOLD_MORE.keys()))
    def test_objectives_of_another_form_do_not(self, method):
        assert cohort_size(make_recipe(method, {}), small_network(), CPU) == 1

    def test_a_matrix_that_is_learned_beside_the_model_keeps_sites_apart(self):
        assert cohort_size(make_recipe("fedmt", {"correspondence": "learnable"}), small_network(), CPU) == 1

    @pytest.mark.parametrize("method", [*TOGETHER, *TOLD_MORE])
    def test_the_others_do(self, method):
        assert cohort_size(make_recipe(method, TOGETHER.get(method, {})), small_network(), CPU) == MOST_SITES

    def test_sites_of_one_kind_and_like_size(self):
        sites = federation([5, 40, 6, 41, 7, 42, 8], ["exact", "exact", "sets", "exact", "exact", "exact", "exact"])
        cohorts = Cohorts({one.name: one for one in sites}, 3)
        asked = sorted(one.name for one in sites)
        large, small = ["exact-5", "exact-3", "exact-1"], ["exact-6", "exact-4", "exact-0"]
        assert cohorts("train", asked) == [["sets-2"], large, small]
        assert cohorts("join", asked) == [[name] for name in asked]

    def test_small_sites_are_evaluated_together_and_a_large_one_alone(self):
        sites = [site(f"small-{i}") for i in range(3)] + [site("large", test=MOST_TESTED // INPUTS + 1)]
        cohorts = Cohorts({one.name: one for one in sites}, 1)
        assert cohorts("evaluate", sorted(one.name for one in sites)) == [["large"], ["small-0", "small-1", "small-2"]]
        many = {f"{i:03d}": site(f"{i:03d}") for i in range(MOST_EVALUATED + 1)}
        assert [len(group) for group in Cohorts(many, 1)("evaluate", sorted(many))] == [MOST_EVALUATED, 1]

    @given(st.integers(1, 500), st.integers(FEWEST_SITES, MOST_SITES))
    def test_every_site_is_in_one_cohort_of_even_size(self, number, most):
        sites = [f"s{i}" for i in range(number)]
        parts = split_evenly(sites, most)
        assert [name for part in parts for name in part] == sites
        sizes = {len(part) for part in parts}
        assert max(sizes) - min(sizes) <= 1
        assert max(sizes) <= most
        assert len(parts) >= min(PIECES, number // FEWEST_SITES)


def test_few_sites_train_one_by_one_unless_told_otherwise():
    sites = {name: site(name) for name in map(str, range(30))}
    careful = Cohorts(sites, 16, MANY_SITES)
    assert careful("train", sorted(sites)[: MANY_SITES - 1]) == [[name] for name in sorted(sites)[: MANY_SITES - 1]]
    assert max(map(len, careful("train", sorted(sites)[:MANY_SITES]))) > 1
    assert max(map(len, Cohorts(sites, 16)("train", sorted(sites)[:3]))) == 3


def test_without_workers_to_share_them_cohorts_are_as_large_as_may_be():
    sites = {name: site(name) for name in map(str, range(30))}
    whole = Cohorts(sites, 16, pieces=1)
    assert list(map(len, whole("train", sorted(sites)[:10]))) == [10]
    assert list(map(len, whole("train", sorted(sites)))) == [15, 15]
    assert list(map(len, Cohorts(sites, 16)("train", sorted(sites)[:10]))) == [3, 3, 4]


@pytest.mark.parametrize(("batched", "lengths"), [("auto", [1] * 10), ("always", [3, 3, 4]), ("whole", [10])])
def test_an_experiment_says_how_sites_are_dealt(batched, lengths):
    told = {
        "name": "d",
        "data": {"dataset": "digits", "partition": {"kind": "iid", "sites": 10}},
        "model": {"hidden": [8]},
        "method": {"rounds": 1},
        "run": {"batched": batched},
    }
    experiment = check_experiment(told)
    data = load_federation(experiment, Path())
    dealer = _cohorts(experiment, data, data.sites)
    assert sorted(map(len, dealer("train", list(data.sites)))) == lengths
