"""Momentum at the server and pFedMo's returns: the worked numbers of docs/methods.md 8.9."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedaccord.methods.momentum.server_momentum import agreement_losses, heavy_ball, nesterov, personalised, score


def one(value):
    return torch.tensor([value], dtype=torch.float64)


MEAN, MEAN_MOMENTUM, MODEL, MOMENTUM = one(1.0), one(0.8), one(2.0), one(1.5)


@pytest.mark.parametrize(("rule", "expected"), [("printed", 1.06), ("pull", 1.2), ("reversed", 1.34)])
def test_a_personalised_return(rule, expected):
    model, momentum = personalised(rule, 0.5 * 0.4, MEAN, MEAN_MOMENTUM, MODEL, MOMENTUM)
    assert model.item() == pytest.approx(expected)
    assert momentum.item() == pytest.approx(0.94)


@given(st.floats(0, 1), *(st.floats(-5, 5) for _ in range(4)))
def test_the_printed_rule_is_what_it_comes_to(share, mean, mean_momentum, model, momentum):
    """Its own two lines, and the form in which the pull has cancelled."""
    own = (1 - share) * mean_momentum + share * momentum
    printed = (1 - share) * mean + share * model + (mean_momentum - own)
    found, found_momentum = personalised("printed", share, *map(one, (mean, mean_momentum, model, momentum)))
    assert found.item() == pytest.approx(printed, abs=1e-9)
    assert found_momentum.item() == pytest.approx(own, abs=1e-9)


@given(st.floats(0, 1), st.floats(-5, 5, width=32), st.floats(-5, 5, width=32))
def test_without_momentum_the_printed_rule_leaves_exactly_the_mean(share, mean, model):
    mean, model = torch.tensor([mean]), torch.tensor([model])
    assert torch.equal(personalised("printed", share, mean, mean, model, model)[0], mean)


@pytest.mark.parametrize("rule", ["printed", "pull", "reversed"])
def test_a_share_of_zero_returns_the_means_bit_for_bit(rule):
    values = torch.randn(4, 50, generator=torch.Generator().manual_seed(0))
    model, momentum = personalised(rule, 0.0, *values)
    assert torch.equal(model, values[0])
    assert torch.equal(momentum, values[1])


def test_agreement_of_two_samples():
    representation = torch.tensor([[2.0, 0, 0], [0, 1, 0]])
    logits = torch.tensor([[1.0, 0, 0], [0, 2, 0]])
    (loss,) = agreement_losses(representation, logits[None]).tolist()
    assert loss == pytest.approx(0.925885, abs=1e-6)
    (floor,) = agreement_losses(representation, representation[None]).tolist()
    assert floor == pytest.approx(0.820450, abs=1e-6)  # the entropy: no site can agree more
    each = agreement_losses(representation[:1], logits[None, :1]).item()
    assert each == pytest.approx(0.764459, abs=1e-6)


def test_scores_by_the_worst_loss_so_far():
    worst, scores = 0.0, []
    for loss in (1.2, 1.5, 0.9):
        worst = max(worst, loss)
        scores.append(score(loss, worst))
    assert scores == pytest.approx([0.0, 0.0, 0.4])
    assert score(0.0, 0.0) == 0.0


@given(st.lists(st.floats(1e-6, 100), min_size=1, max_size=9))
def test_a_score_is_at_least_zero_and_below_one(losses):
    assert all(0 <= score(loss, max(losses)) < 1 for loss in losses)


def test_server_steps_by_hand():
    """From w = 0 the sites' mean is -0.225 (docs/methods.md 3.4, round 1), then from there once more."""
    model, momentum = nesterov(one(0.0), one(-0.225), one(0.0), rate=1.0, beta=0.5)
    assert (model.item(), momentum.item()) == pytest.approx((-0.3375, -0.225))
    half, _ = nesterov(one(0.0), one(-0.225), one(0.0), rate=0.5, beta=0.0)
    assert half.item() == pytest.approx(-0.1125)
    model, momentum = heavy_ball(one(0.0), one(-0.225), one(2.0), lr=0.1, alpha=2.0, beta=0.5)
    assert (model.item(), momentum.item()) == pytest.approx((-2.0 * 0.1 * 3.25, 3.25))
