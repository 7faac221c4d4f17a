"""What travels and what stays: parts of the model, batch-norm statistics, personal layers."""

import pytest
import torch
from torch import nn

from fedaccord.aggregation.mean import mean
from fedaccord.data.site_data import Samples, SiteData
from fedaccord.federation.recipe import Recipe
from fedaccord.federation.round import play_round
from fedaccord.federation.sharing import SHARE_ALL, SHARE_NOTHING, Sharing
from fedaccord.messages.checks import TensorSpec
from fedaccord.messages.message import Message
from fedaccord.methods.accord.recipe import accord
from fedaccord.methods.accord.settings import AccordSettings
from fedaccord.methods.averaging.recipe import fedavg
from fedaccord.methods.candidate_sets.recipe import with_personal_layer
from fedaccord.methods.shared_settings import ClassicSettings
from fedaccord.models.layout import Layout
from fedaccord.models.network import Network
from fedaccord.training.settings import TrainingSettings
from small_federation import federation, site, small_network

pytestmark = pytest.mark.usefixtures("one_thread")

HEAD = ("head.weight", "head.bias")
LINEAR = ("encoder.0.weight", "encoder.0.bias")
NORM = ("encoder.1.weight", "encoder.1.bias")
STATISTICS = ("encoder.1.running_mean", "encoder.1.running_var")
COUNTER = "encoder.1.num_batches_tracked"
ENCODER_ONLY = Sharing(parts=frozenset({"encoder"}))


def names(sharing, network=None):
    return sharing.names(Layout.of(network or small_network(batch_norm=True, personal=True)))


def test_encoder_and_head_travel_and_a_personal_layer_does_not():
    assert names(SHARE_ALL) == (*LINEAR, *NORM, *HEAD, *STATISTICS, COUNTER)


def test_parts_travel_with_their_own_statistics_and_counters():
    # docs/methods.md 1.4: the buffers follow the part in which their layer sits
    assert names(ENCODER_ONLY) == (*LINEAR, *NORM, *STATISTICS, COUNTER)
    assert names(Sharing(parts=frozenset({"head"}))) == HEAD
    assert names(Sharing(parts=frozenset({"personal"}))) == ("personal.weight",)


def test_statistics_can_stay():
    assert names(Sharing(buffers=False)) == (*LINEAR, *NORM, *HEAD)


def test_nothing_can_travel():
    assert names(SHARE_NOTHING) == ()


def test_what_is_sent_and_what_is_expected_back_have_the_same_names():
    layout = Layout.of(small_network(batch_norm=True))
    tensors = layout.named(torch.arange(float(layout.size))) | {COUNTER: torch.tensor(4)}
    everything = torch.ones(3, dtype=torch.bool)
    outgoing = ENCODER_ONLY.outgoing(layout, tensors, everything)
    assert outgoing.keys() == {f"model/{name}" for name in (*LINEAR, *NORM, *STATISTICS, COUNTER)}
    assert torch.equal(outgoing["model/encoder.0.bias"], tensors["encoder.0.bias"])
    expected = ENCODER_ONLY.expected(layout, tensors, everything)
    assert expected == {name: TensorSpec.of(tensor) for name, tensor in outgoing.items()}
    assert expected[f"model/{COUNTER}"] == TensorSpec((), torch.int64)


# Through the server and the host


def tensors_sent(server):
    """Names of all tensors that crossed the boundary for training, there and back."""
    there = {name for task, _, brief in server.engine.asked if task == "train" for name in brief.tensors}
    back = {name for (task, _), reply in server.engine.replies.items() if task == "train" for name in reply.tensors}
    assert there == back
    return {name.removeprefix("model/") for name in there}


def test_fedavg_sends_the_whole_model():
    server = federation(fedavg(ClassicSettings(steps=1)), [site("a"), site("b")], small_network(batch_norm=True))
    play_round(server)
    assert tensors_sent(server) == {*LINEAR, *NORM, *HEAD, *STATISTICS, COUNTER}
    assert server.engine.memories() == {}


def test_a_recipe_that_shares_nothing_sends_no_tensor():
    server = federation(Recipe(TrainingSettings(steps=1), None, sharing=SHARE_NOTHING), [site("a"), site("b")])
    play_round(server)
    assert tensors_sent(server) == set()
    assert set(server.engine.memories()) == {"a", "b"}


def unequal_sites():
    """Two sites with different features, so that their batch-norm statistics differ."""
    plain, moved = site("a", samples=8), site("b", samples=24)
    moved.train.x.mul_(3).add_(1)
    return [plain, moved]


def with_batch_norm(bn, method=fedavg, settings=ClassicSettings):
    server = federation(method(settings(steps=3, batch=4, bn=bn)), unequal_sites(), small_network(batch_norm=True))
    play_round(server)
    return server


def replied(server, name):
    return [server.engine.replies["train", place].tensors[f"model/{name}"] for place in "ab"]


@pytest.mark.parametrize(("method", "settings"), [(fedavg, ClassicSettings), (accord, AccordSettings)])
def test_batch_norm_statistics_are_averaged_by_sample_count(method, settings):
    server = with_batch_norm("average", method, settings)
    for name in STATISTICS:
        a, b = replied(server, name)
        torch.testing.assert_close(server.tensors[name], 0.25 * a + 0.75 * b)


@pytest.mark.parametrize(("method", "settings"), [(fedavg, ClassicSettings), (accord, AccordSettings)])
def test_batch_norm_statistics_are_pooled(method, settings):
    server = with_batch_norm("pooled", method, settings)
    (mean_a, mean_b), (var_a, var_b) = (replied(server, name) for name in STATISTICS)
    together = 0.25 * mean_a + 0.75 * mean_b
    torch.testing.assert_close(server.tensors[STATISTICS[0]], together)
    spread = 0.25 * (var_a + mean_a**2) + 0.75 * (var_b + mean_b**2) - together**2
    torch.testing.assert_close(server.tensors[STATISTICS[1]], spread, rtol=1e-4, atol=1e-5)
    assert (server.tensors[STATISTICS[1]] > 0.25 * var_a + 0.75 * var_b + 1e-4).any()


def test_batch_norm_counters_are_those_of_the_first_site():
    server = federation(fedavg(ClassicSettings(epochs=1, batch=4)), unequal_sites(), small_network(batch_norm=True))
    play_round(server)
    assert [int(count) for count in replied(server, COUNTER)] == [2, 6]
    assert int(server.state.counters[COUNTER]) == 2
    play_round(server)
    assert int(server.state.counters[COUNTER]) == 4


@pytest.mark.parametrize(("method", "settings"), [(fedavg, ClassicSettings), (accord, AccordSettings)])
def test_local_batch_norm_statistics_never_leave_the_site_and_are_there_in_the_next_round(method, settings):
    server = with_batch_norm("local", method, settings)
    assert tensors_sent(server) == {*LINEAR, *NORM, *HEAD}
    after_one = {name: server.engine.kept[name].select("personal") for name in "ab"}
    assert after_one["a"].keys() == {*STATISTICS, COUNTER}
    for name in STATISTICS:
        assert not torch.equal(after_one["a"][name], after_one["b"][name])
        assert torch.equal(server.tensors[name], dict(small_network(batch_norm=True).named_buffers())[name])

    play_round(server)
    assert tensors_sent(server) == {*LINEAR, *NORM, *HEAD}
    for place in "ab":
        assert int(server.engine.kept[place].tensors[f"personal/{COUNTER}"]) == 6  # goes on from 3
    assert int(server.state.counters[COUNTER]) == 0
    tasks = {name for _, _, brief in server.engine.asked for name in brief.tensors}
    assert not tasks & {f"model/{name}" for name in (*STATISTICS, COUNTER)}


def test_local_statistics_are_the_ones_a_site_is_judged_with():
    server = with_batch_norm("local")
    figures = play_round(server, evaluated=True).evaluation.sites["b"]
    network = small_network(batch_norm=True)
    server.layout.load(network, server.state.model)
    kept = server.engine.kept["b"].select("personal")
    network.encoder[1].running_mean.copy_(kept[STATISTICS[0]])
    network.encoder[1].running_var.copy_(kept[STATISTICS[1]])
    test = server.engine.host.sites["b"].test
    nll = nn.functional.cross_entropy(network.eval()(test.x), test.target).item()
    assert figures["nll"] == pytest.approx(nll, rel=1e-5)


# Personal parts


def personal_recipe(**settings):
    """Only the encoder travels; head and personal layer are the site's own, as in pFedPLL."""
    settings = TrainingSettings(**({"steps": 2, "batch": 4, "momentum": 0.0} | settings))
    return Recipe(settings, mean, sharing=ENCODER_ONLY, network=with_personal_layer)


OWN = {"personal.weight", *HEAD}


def test_head_and_personal_layer_stay_in_memory_and_come_back():
    server = federation(personal_recipe(), [site("a"), site("b")], small_network(personal=True))
    play_round(server)
    assert tensors_sent(server) == set(LINEAR)
    first = {name: server.engine.kept[name].select("personal") for name in "ab"}
    assert first["a"].keys() == OWN
    for name in OWN:
        assert not torch.equal(first["a"][name], first["b"][name])

    play_round(server)
    # Round two of site a, by hand: the new encoder with what a kept of round one.
    alone = federation(personal_recipe(), [site("a")], small_network(personal=True))
    alone.state.round = 1
    alone.engine.restore({"a": Message({f"personal/{name}": tensor for name, tensor in first["a"].items()})})
    encoder = next(brief for task, name, brief in reversed(server.engine.asked) if (task, name) == ("train", "a"))
    alone.state.model = alone.layout.vector(alone.tensors | encoder.select("model"))
    play_round(alone)
    by_hand, kept = (engine.kept["a"].select("personal") for engine in (alone.engine, server.engine))
    for name in OWN:
        assert torch.equal(by_hand[name], kept[name])
        assert not torch.equal(first["a"][name], kept[name])


def test_the_servers_copy_of_personal_parts_never_moves():
    network = small_network(personal=True)
    server = federation(personal_recipe(), [site("a"), site("b")], network)
    for _ in range(2):
        play_round(server)
    for name, start in network.named_parameters():
        assert torch.equal(server.tensors[name], start) == (name in OWN)


def test_sites_do_not_see_each_others_personal_parts_although_they_share_one_model_object():
    def kept_beside(seed):
        """Play two rounds in which both sites get the first encoder, next to a site a of other data."""
        sites = [site("a", seed=seed), site("b")]
        server = federation(personal_recipe(lr=0.5), sites, small_network(personal=True))
        start = server.state.model.clone()
        for _ in range(2):
            play_round(server)
            server.state.model = start.clone()
        return {name: server.engine.kept[name].select("personal") for name in "ab"}

    one, other = kept_beside(1), kept_beside(2)
    for name in OWN:
        assert torch.equal(one["b"][name], other["b"][name])
        assert not torch.equal(one["a"][name], other["a"][name])


def test_a_site_that_joins_late_starts_from_what_everyone_started_from():
    network = small_network(personal=True)
    server = federation(personal_recipe(sites=["a"], lr=0.5), [site("a"), site("b")], network)
    play_round(server)
    assert "b" not in server.engine.memories()
    figures = play_round(server).evaluation.sites["b"]
    fresh = small_network(personal=True)
    server.layout.load(fresh, server.state.model)  # trained encoder, untouched rest
    assert torch.equal(fresh.head.weight, network.head.weight)
    test = server.engine.host.sites["b"].test
    nll = nn.functional.cross_entropy(fresh.eval()(test.x), test.target).item()
    assert figures["nll"] == pytest.approx(nll, rel=1e-5)


def test_a_convolution_travels_in_logical_order_whatever_its_memory_format():
    # The host keeps convolutions in channels_last; a reply read in memory order would mix up the kernel.
    network = Network(nn.Sequential(nn.Conv2d(2, 3, 2), nn.Flatten()), nn.Linear(3, 3))
    points = site("a", test=0)
    images = Samples(points.train.x.repeat(1, 2).reshape(-1, 2, 2, 2), points.train.target)
    data = SiteData("a", points.view, images, images)
    server = federation(fedavg(ClassicSettings(steps=1, lr=1e-30)), [data], network)
    before = server.state.model.clone()
    play_round(server, evaluated=False)
    assert server.dropped == []
    assert torch.equal(server.state.model, before)
