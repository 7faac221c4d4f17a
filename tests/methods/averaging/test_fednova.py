"""FedNova: the worked numbers of docs/methods.md 3.5, and that it takes different numbers of steps out again."""

import pytest
import torch

from fedaccord.aggregation.mean import mean
from fedaccord.aggregation.replies import Replies
from fedaccord.federation.round import play_round
from fedaccord.labels.views import Candidates, Tags
from fedaccord.messages.message import Message
from fedaccord.methods.averaging.fednova import EFFECTIVE_STEPS, effective_steps, with_normalised_steps
from fedaccord.methods.registry import make_recipe
from fedaccord.models.layout import Layout, Slot
from small_federation import SPACE, federation, pets_or_cattle, site, small_network

pytestmark = pytest.mark.usefixtures("one_thread")
NUMBER = Layout((Slot("encoder.w", (1,), 0, 1, "encoder", True), Slot("encoder.b", (1,), 1, 2, "encoder", False)))


def combined(models, steps, weights, previous=0.0):
    messages = tuple(Message(numbers={EFFECTIVE_STEPS: s}) for s in steps)
    matrix = torch.tensor([[m, m] for m in models])
    replies = Replies(
        ("a", "b"),
        messages,
        matrix,
        torch.tensor(weights, dtype=torch.float64),
        torch.ones(2, 1, dtype=torch.bool),
        torch.tensor([previous, previous]),
        NUMBER,
    )
    return with_normalised_steps(mean)(replies).tolist()


def test_the_worked_example_of_two_parabolas():
    # F_1 = (w - 1)^2 / 2 with 2 steps, F_2 = 2 (w + 1)^2 with 4 steps, eta = 0.1, equal weights.
    w, seen = 0.0, []
    for _ in range(2):
        first, second = w, w
        for _ in range(2):
            first -= 0.1 * (first - 1)
        for _ in range(4):
            second -= 0.1 * 4 * (second + 1)
        w = combined([first, second], [2, 4], [1.0, 1.0], w)[0]
        seen.append(w)
    assert seen == pytest.approx([-0.183900, -0.281569], abs=1e-6)


def test_a_gradient_under_momentum_counts_as_long_as_it_lasts():
    assert effective_steps(3, 0.9) == pytest.approx(5.61)


def test_buffers_are_averaged_as_they_are():
    weight, buffer = combined([1.0, 3.0], [1, 3], [1.0, 1.0])
    assert weight == pytest.approx(2 * (1.0 / 1 + 3.0 / 3) / 2)
    assert buffer == pytest.approx(2.0)


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_where_all_take_the_same_number_of_steps_it_is_fedavg(optimiser):
    sites = [site("a", samples=8), site("b", samples=20)]
    work = {"steps": 3, "batch": 4, "lr": 0.05, "optimiser": optimiser}
    ours, theirs = (federation(make_recipe(name, work), sites) for name in ("fednova", "fedavg"))
    for server in (ours, theirs):
        for _ in range(2):
            play_round(server)
    torch.testing.assert_close(ours.state.model, theirs.state.model, rtol=1e-5, atol=1e-6)


def test_a_large_site_does_not_pull_further_because_it_steps_more_often():
    sites = [site("a", samples=8), site("b", samples=80)]
    server = federation(make_recipe("fednova", {"epochs": 1, "batch": 4, "lr": 0.05, "momentum": 0.0}), sites)
    start = server.state.model.clone()
    play_round(server)
    steps = {name: server.engine.replies["train", name].numbers[EFFECTIVE_STEPS] for name in "ab"}
    assert steps == {"a": 2, "b": 20}
    mean_steps = (8 * 2 + 80 * 20) / 88
    expected = start.clone()
    for name, samples in (("a", 8), ("b", 80)):
        sent = server.flat(name, server.engine.replies["train", name])
        expected += mean_steps * samples / 88 * (sent - start) / steps[name]
    torch.testing.assert_close(server.state.model, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("view", [Candidates(SPACE), pets_or_cattle(), Tags(SPACE)])
def test_it_works_for_any_view(view):
    server = federation(make_recipe("fednova", {"epochs": 1, "batch": 4}), [site("a", view=view), site("b", view=view)])
    assert play_round(server).dropped == []


@pytest.mark.parametrize("steps", [0, -1.0, float("nan"), None])
def test_a_site_that_makes_up_its_steps_is_left_out(steps):
    server = federation(make_recipe("fednova", {"epochs": 1, "batch": 4}), [site("a"), site("b")])

    def hostile(reply):
        reply.numbers.pop(EFFECTIVE_STEPS)
        if steps is not None:
            reply.numbers[EFFECTIVE_STEPS] = steps
        return reply

    server.engine.spoil["train", "b"] = hostile
    record = play_round(server)
    assert [(drop.site, drop.tensor) for drop in record.dropped] == [("b", EFFECTIVE_STEPS)]
    assert torch.isfinite(server.state.model).all()
    assert not torch.equal(server.state.model, Layout.of(small_network()).read(small_network()))


@pytest.mark.parametrize("rule", ["median", "trimmed-mean", "krum", "multi-krum"])
@pytest.mark.parametrize("steps", [1e-9, 1e12])
def test_a_robust_rule_does_not_believe_one_number_of_steps(rule, steps):
    work = {"steps": 3, "batch": 4, "lr": 0.05, "aggregation": rule, "hostile": 1}
    server, honest = (federation(make_recipe("fednova", work), [site(n) for n in "abcde"]) for _ in range(2))
    server.engine.spoil["train", "e"] = lambda reply: reply.numbers.update({EFFECTIVE_STEPS: steps}) or reply
    for made in (server, honest):
        assert play_round(made).dropped == []
    assert float((server.state.model - honest.state.model).abs().max()) < 1
