"""What federation brought a site: measured where its test rows are, with its own model alone, and sent as numbers."""

import pytest
import torch

from fedaccord.data.site_data import Samples, SiteData
from fedaccord.evaluation.differences import paired_difference
from fedaccord.evaluation.intervals import Resampling
from fedaccord.federation.examination import RESAMPLED, examine
from fedaccord.federation.experts import Experts, stored_experts
from fedaccord.federation.round import evaluate, play_round
from fedaccord.labels.views import Candidates, Tags, Unlabelled
from fedaccord.messages.message import Message
from fedaccord.methods.accord.recipe import accord
from fedaccord.methods.accord.settings import AccordSettings
from fedaccord.methods.averaging.recipe import fedavg
from fedaccord.methods.shared_settings import ClassicSettings
from fedaccord.models.layout import named_tensors
from fedaccord.models.network import predict_logits
from fedaccord.seeds import derive
from small_federation import SPACE, exact, federation, pets_or_cattle, site

pytestmark = pytest.mark.usefixtures("one_thread")

EVERY_VIEW = {
    "all": exact(),
    "some": exact(["cat", "dog"]),
    "sets": Candidates(SPACE),
    "coarse": pets_or_cattle(),
}


def concluded(*sites, personal="cheap"):
    server = federation(accord(AccordSettings(steps=3, batch=4, lr=0.1, personal=personal)), list(sites))
    for _ in range(2):
        play_round(server)
    for step in server.recipe.conclude:
        list(step(server))
    return server


def with_weights(server, name, weights):
    memory = server.engine.kept[name]
    memory.tensors["experts/weights"] = torch.tensor(weights)
    return server


@pytest.mark.parametrize("personal", ["mixture", "cheap"])
def test_every_view_is_compared_with_its_own_model_alone(personal):
    server = concluded(*(site(name, 30, view, 40) for name, view in EVERY_VIEW.items()), personal=personal)
    ended, gains = evaluate(server).sites, examine(server).gains
    for name in EVERY_VIEW:
        with_weights(server, name, [0.0, 0.0, 1.0])
    alone = evaluate(server).sites
    assert gains.keys() == EVERY_VIEW.keys()
    for name, gain in gains.items():
        assert gain.measure == "accuracy"
        assert gain.alone == pytest.approx(alone[name]["accuracy"])
        assert gain.together == pytest.approx(ended[name]["accuracy"])
        assert gain.difference.estimate.value == pytest.approx(gain.together - gain.alone)
        assert (gain.difference.paired, gain.difference.rows) == (True, 40)


def test_the_interval_is_that_of_the_same_resamples():
    server = concluded(site("a", 30, test=40), site("b", 30, test=40))
    found = examine(server).gains["a"].difference.estimate
    data, memory = server.engine.host.sites["a"], server.engine.kept["a"]
    network = stored_experts(memory).trained_alone(server.load_network())
    view = data.view.with_offset(memory.tensors["prior"])
    logits, resampling = predict_logits(network, data.test.x), Resampling(derive(server.seed, "resample", "a"))
    alone = view.examine(logits, data.test.target, data.test.truth, data.train.target, resampling).replicates
    mixed = memory.tensors[RESAMPLED].numpy()
    expected = paired_difference("accuracy", mixed, alone, found.value, 40)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    assert found.low < found.value < found.high


def test_tags_are_compared_by_their_precision():
    server = concluded(site("a", 30, Tags(SPACE), 40), site("b", 30, Tags(SPACE), 40))
    gain = examine(server).gains["a"]
    assert gain.measure == "map"
    assert gain.together == pytest.approx(evaluate(server).sites["a"]["map"])


def test_only_numbers_leave_the_site():
    server = concluded(site("a", 30, test=40))
    examine(server)
    reply = server.engine.replies["examine", "a"]
    assert set(reply.tensors) == {"calibration"}
    more = {name for name in reply.numbers if "/" in name}
    assert more == {"alone/accuracy", "gain/accuracy", "gain/accuracy.low", "gain/accuracy.high"}
    assert set(reply.words) == {"run"}
    assert "alone/accuracy" not in examine(server).sites["a"].measures


def test_a_mixture_that_is_the_model_alone_gains_nothing_and_is_unclear():
    server = with_weights(concluded(site("a", 30, test=40)), "a", [0.0, 0.0, 1.0])
    difference = examine(server).gains["a"].difference
    assert difference.estimate.value == 0
    assert difference.estimate.low < 0 < difference.estimate.high  # other rows may still differ
    assert difference.standing == "unclear"


def test_sites_without_enough_rows_have_no_interval_or_no_gain():
    single = site("single", 30, test=40)
    only = torch.zeros(40, dtype=torch.int64)
    single = SiteData("single", single.view, single.train, Samples(single.test.x, only, only))
    server = concluded(
        site("large", 30, test=40),
        site("three", 30, test=3),
        site("none", 30, test=0),
        single,
        site("blind", 30, Unlabelled(SPACE), 40),
    )
    gains = examine(server).gains
    assert gains.keys() == {"large", "three", "single"}
    for name in ("three", "single"):
        assert gains[name].difference.estimate.low is None
        assert gains[name].difference.standing == "unclear"
    assert gains["three"].difference.rows == 3


def test_few_rows_never_decide():
    server = concluded(site("nine", 30, test=9))
    reply = {"gain/accuracy": 0.9, "gain/accuracy.low": 0.8, "gain/accuracy.high": 1.0, "alone/accuracy": 0.1}
    server.engine.spoil["examine", "nine"] = lambda honest: honest.numbers.update(reply) or honest
    assert examine(server).gains["nine"].difference.standing == "unclear"


def test_without_experts_there_is_no_gain():
    assert examine(concluded(site("a", 30, test=40), personal="off")).gains == {}


def test_any_method_whose_sites_store_experts_is_compared():
    server = federation(fedavg(ClassicSettings(steps=2, batch=4)), [site("a", 30, test=40), site("b", 30, test=40)])
    untrained = server.load_network()
    alone = {name: tensor.clone() for name, tensor in named_tensors(untrained).items()}
    experts = Experts(torch.ones(3) / 3, dict(untrained.head.state_dict()), alone)
    for _ in range(8):
        play_round(server)
    experts.store(server.engine.kept.setdefault("a", Message()))
    gains = examine(server).gains
    assert gains.keys() == {"a"}
    assert gains["a"].difference.standing == "better"  # than the untrained network


@pytest.mark.parametrize("name", ["gain/accuracy", "gain/accuracy.low", "alone/accuracy"])
def test_a_gain_that_is_no_number_drops_the_reply(name):
    server = concluded(site("a", 30, test=40), site("b", 30, test=40))
    server.engine.spoil["examine", "b"] = lambda reply: reply.numbers.update({name: float("nan")}) or reply
    found = examine(server)
    assert found.sites.keys() == found.gains.keys() == {"a"}
    assert [(d.site, d.tensor) for d in server.dropped] == [("b", name)]


def test_a_gain_in_a_measure_that_is_no_headline_is_ignored():
    server = concluded(site("a", 30, test=40))

    def rename(reply):
        for name in [name for name in reply.numbers if "/accuracy" in name]:
            reply.numbers[name.replace("/accuracy", "/hamming")] = reply.numbers.pop(name)
        return reply

    server.engine.spoil["examine", "a"] = rename
    found = examine(server)
    assert found.gains == {}
    assert not any("hamming" in name for name in found.sites["a"].measures)
