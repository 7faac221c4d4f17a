"""FedAvg, FedProx, training alone and pooling: what everything else is compared to."""

import json

import pytest
import torch

from fedaccord.data.sites import pool_sites
from fedaccord.engines.engine import build_host
from fedaccord.errors import ConfigError
from fedaccord.federation.round import play_round
from fedaccord.hosting import build_network, host_spec
from fedaccord.labels.views import Candidates, Tags
from fedaccord.messages.message import Message, to_bytes
from fedaccord.messages.names import POOL
from fedaccord.methods.averaging.recipe import fedavg, fedprox
from fedaccord.methods.averaging.settings import FedProxSettings
from fedaccord.methods.registry import METHODS, make_recipe, method_entry
from fedaccord.methods.shared_settings import ClassicSettings
from fedaccord.methods.without_federation.recipe import local, pooled
from fedaccord.methods.without_federation.settings import LocalSettings, PooledSettings
from fedaccord.models.layout import Layout
from fedaccord.seeds import derive
from fedaccord.training.local import batches
from small_federation import SPACE, copied, exact, federation, pets_or_cattle, site, small_network

pytestmark = pytest.mark.usefixtures("one_thread")

WORK = {"epochs": 2, "batch": 4, "lr": 0.1}


def played(recipe, sites, rounds=3, **how):
    server = federation(recipe, sites, **how)
    return server, [play_round(server) for _ in range(rounds)]


def three_sites():
    return [site("a", samples=8), site("b", samples=13), site("c", samples=21)]


def mixed_sites():
    return [
        site("exact", samples=30),
        site("some", samples=30, view=exact(["cat", "dog"])),
        site("sets", samples=30, view=Candidates(SPACE)),
        site("coarse", samples=30, view=pets_or_cattle()),
    ]


# FedAvg


def test_fedavg_of_one_site_is_plain_sgd_on_its_data():
    data = site("a", samples=18)
    server, _ = played(fedavg(ClassicSettings(momentum=0.9, weight_decay=0.01, **WORK)), [data], rounds=2, seed=3)

    network = small_network()
    for round_ in (1, 2):  # momentum is fresh in every round
        optimiser = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
        order = torch.Generator().manual_seed(derive(3, "batches", "a", round_))
        for rows in batches(18, 4, order, epochs=2):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(network(data.train.x[rows]), data.train.target[rows]).backward()
            optimiser.step()
    torch.testing.assert_close(server.state.model, Layout.of(network).read(network), rtol=0, atol=1e-6)


def test_fedavg_weighs_sites_by_their_samples():
    server, _ = played(fedavg(ClassicSettings(**WORK)), three_sites(), rounds=1)
    replies = [server.engine.replies["train", name] for name in "abc"]
    expected = sum(n / 42 * r.tensors["model/head.weight"] for n, r in zip((8, 13, 21), replies, strict=True))
    torch.testing.assert_close(server.tensors["head.weight"], expected)


def test_fedavg_learns():
    server, records = played(fedavg(ClassicSettings(**WORK)), three_sites(), rounds=8)
    assert records[-1].loss < 0.5 * records[0].loss
    assert records[-1].evaluation.over_sites()["mean"]["accuracy"] > 0.9


def test_fedavg_runs_every_sites_softmax_over_all_labels_unless_told_otherwise():
    sites = [site("a", view=exact(["cat", "dog"]))]
    start = small_network().head.weight[2]
    as_published, _ = played(fedavg(ClassicSettings(**WORK)), sites, rounds=1)
    assert not torch.equal(as_published.tensors["head.weight"][2], start)
    restricted, _ = played(fedavg(ClassicSettings(softmax="view", **WORK)), sites, rounds=1)
    assert torch.equal(restricted.tensors["head.weight"][2], start)


# FedProx


def test_fedprox_without_pull_is_fedavg_bit_for_bit():
    averaged, records = played(fedavg(ClassicSettings(**WORK)), three_sites())
    unheld, same = played(fedprox(FedProxSettings(mu=0.0, **WORK)), three_sites())
    assert torch.equal(averaged.state.model, unheld.state.model)
    assert [record.loss for record in records] == [record.loss for record in same]


def test_fedprox_with_a_strong_pull_stays_near_the_shared_model():
    start = federation(fedavg(ClassicSettings()), three_sites()).state.model
    free, _ = played(fedavg(ClassicSettings(**WORK)), three_sites(), rounds=1)
    held, _ = played(fedprox(FedProxSettings(mu=5.0, **WORK)), three_sites(), rounds=1)
    assert 0 < (held.state.model - start).norm() < 0.5 * (free.state.model - start).norm()


def test_fedprox_is_a_plain_sgd_on_the_sum_of_both_terms():
    data = site("a", samples=12)
    server, _ = played(fedprox(FedProxSettings(mu=0.5, momentum=0.0, **WORK)), [data], rounds=1)
    network, received = small_network(), [p.detach().clone() for p in small_network().parameters()]
    optimiser = torch.optim.SGD(network.parameters(), lr=0.1)
    for rows in batches(12, 4, torch.Generator().manual_seed(derive(0, "batches", "a", 1)), epochs=2):
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(network(data.train.x[rows]), data.train.target[rows])
        pairs = zip(network.parameters(), received, strict=True)
        (loss + 0.25 * sum((p - r).square().sum() for p, r in pairs)).backward()
        optimiser.step()
    torch.testing.assert_close(server.state.model, Layout.of(network).read(network), rtol=0, atol=1e-6)


# Training alone


def test_alone_every_site_has_a_model_of_its_own_and_the_server_none():
    test = site("server", test=30).test
    server, records = played(local(LocalSettings(**WORK)), three_sites(), rounds=3, test=(test.x, test.truth))
    network = small_network()
    assert torch.equal(server.state.model, Layout.of(network).read(network))
    assert server.state.round == 3
    models = [server.engine.kept[name].select("personal") for name in "abc"]
    for model in models:
        assert model.keys() == {name for name, _ in network.named_parameters()}
    assert len({tuple(model["head.weight"].flatten().tolist()) for model in models}) == 3
    assert all(not reply.tensors for (task, _), reply in server.engine.replies.items() if task == "train")
    # A model that nobody trained has no figures; the sites' own do.
    assert records[-1].evaluation.global_ == {}
    assert records[-1].evaluation.confusion is None
    assert set(records[-1].evaluation.sites) == {"a", "b", "c"}
    assert records[-1].loss < records[0].loss
    assert records[-1].replied == 3


def test_alone_a_site_goes_on_from_where_it_stopped_whoever_else_is_there():
    among_others, _ = played(local(LocalSettings(**WORK)), three_sites())
    alone, _ = played(local(LocalSettings(**WORK)), three_sites()[:1])
    assert to_bytes(among_others.engine.kept["a"]) == to_bytes(alone.engine.kept["a"])

    network, data = small_network(), three_sites()[0].train
    for round_ in (1, 2, 3):
        optimiser = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
        order = torch.Generator().manual_seed(derive(0, "batches", "a", round_))
        for rows in batches(8, 4, order, epochs=2):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(network(data.x[rows]), data.target[rows]).backward()
            optimiser.step()
    torch.testing.assert_close(alone.engine.kept["a"].tensors["personal/head.weight"], network.head.weight.detach())


# Pooling


@pytest.mark.parametrize("labels", ["truth", "views"])
def test_pooling_trains_on_everything_and_judges_every_site(labels):
    sites = mixed_sites()
    pool = pool_sites(POOL, {s.name: s for s in sites}, SPACE, labels)
    assert len(pool.train) == 120
    test = site("server", test=60).test
    server, records = played(
        pooled(PooledSettings(labels=labels, **WORK)), [*sites, pool], rounds=4, test=(test.x, test.truth)
    )
    assert records[0].asked == [POOL]
    assert records[-1].loss < 0.6 * records[0].loss
    assert set(records[-1].evaluation.sites) == {"exact", "some", "sets", "coarse"}
    assert records[-1].evaluation.global_["accuracy"] > 0.8


def test_pooling_true_classes_is_plain_sgd_on_all_samples_together():
    sites = three_sites()
    pool = pool_sites(POOL, {s.name: s for s in sites}, SPACE, "truth")
    server, _ = played(pooled(PooledSettings(momentum=0.0, **WORK)), [*sites, pool], rounds=1)
    network = small_network()
    optimiser = torch.optim.SGD(network.parameters(), lr=0.1)
    x, truth = torch.cat([s.train.x for s in sites]), torch.cat([s.train.truth for s in sites])
    for rows in batches(8 + 13 + 21, 4, torch.Generator().manual_seed(derive(0, "batches", POOL, 1)), epochs=2):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(network(x[rows]), truth[rows]).backward()
        optimiser.step()
    torch.testing.assert_close(server.state.model, Layout.of(network).read(network), rtol=0, atol=1e-6)


def test_pooled_tags_are_tags():
    sites = {name: site(name, view=Tags(SPACE)) for name in "ab"}
    pool = pool_sites(POOL, sites, SPACE, "views")
    _, records = played(pooled(PooledSettings(labels="views", **WORK)), [*sites.values(), pool], rounds=4)
    assert records[-1].loss < records[0].loss
    assert records[-1].evaluation.sites["a"]["accuracy"] > 0.6


# The registry, and the way any process builds a site's side


def test_an_unknown_method_is_an_error_that_says_the_closest():
    with pytest.raises(ConfigError, match=r"method.name: unknown method 'fedavgg'; did you mean 'fedavg'\?"):
        method_entry("fedavgg")


def test_every_method_can_be_made_from_its_settings_and_from_their_json():
    for name, method in METHODS.items():
        settings = method.settings(rounds=3)
        assert make_recipe(name, settings).settings == settings, name
        assert make_recipe(name, json.loads(settings.model_dump_json())).settings == settings, name


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "local", "accord"])
def test_a_host_built_from_json_answers_as_one_built_here(name):
    sites = {s.name: s for s in mixed_sites()}
    settings = METHODS[name].settings(steps=2, batch=4)
    model = {"name": "mlp", "settings": {"hidden": [5]}, "input_shape": [4]}
    spec = host_spec(sites, SPACE, model, name, settings, seed=1)
    built = build_host(spec.entry, json.loads(json.dumps(spec.spec)), spec.tensors)
    network = build_network(model, SPACE.names, make_recipe(name, settings), seed=1)
    here = federation(make_recipe(name, settings), list(sites.values()), network, seed=1)
    for task in ("join", "train", "evaluate"):
        for place in sites:
            brief = here.address(here.brief(place, here.tensors), 1)
            reply, kept = built.handle(task, place, copied(brief), Message())
            expected, expected_kept = here.engine.host.handle(task, place, copied(brief), Message())
            assert to_bytes(reply) == to_bytes(expected)
            assert to_bytes(kept) == to_bytes(expected_kept)
