"""Reconstruction from updates: all sites at once equals one after the other, for chains and for any network."""

from copy import deepcopy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from inversion_loop import invert_each, made_up, mismatch
from torch import nn

from fedaccord.adversary.inversion import Dummies, Inversion, matching, variation_gradient
from fedaccord.adversary.many_models import Models, linear_chain
from fedaccord.models.catalogue import build
from fedaccord.models.network import Network, insert_personal_layer

INPUTS, LABELS, BLOCK = 6, 3, slice(4, 6)


def mlp(*hidden, bias=True):
    name, how = ("mlp", {"hidden": list(hidden)}) if hidden else ("linear", {})
    network = build(name, how, (INPUTS,), LABELS, seed=3)
    if not bias:
        network.head = nn.Linear(network.head.in_features, LABELS, bias=False)
    return network.double()


def smooth():
    """A network that is no chain of ReLU layers, with batch norm."""
    torch.manual_seed(5)
    inner = nn.Sequential(nn.Linear(INPUTS, 7), nn.BatchNorm1d(7), nn.Tanh())
    return Network(inner, nn.Linear(7, LABELS)).double().eval()


NETWORKS = {
    "linear": mlp(),
    "one hidden": mlp(8),
    "two hidden": mlp(8, 5),
    "no bias": mlp(8, bias=False),
    "any": smooth(),
}


@pytest.fixture(params=NETWORKS)
def network(request):
    return NETWORKS[request.param]


def setting(network, sites=3, dummies=9):
    return made_up(network, sites, INPUTS, LABELS, dummies, dtype=torch.float64)


def test_chains_are_known_by_their_layers():
    assert linear_chain(NETWORKS["two hidden"]) == [
        ("encoder.1.weight", "encoder.1.bias"),
        ("encoder.3.weight", "encoder.3.bias"),
        ("head.weight", "head.bias"),
    ]
    assert linear_chain(NETWORKS["linear"]) == [("head.weight", "head.bias")]
    assert linear_chain(NETWORKS["any"]) is None
    assert linear_chain(Network(nn.Sequential(nn.Linear(2, 2)), nn.Linear(2, 2))) is None  # nothing between
    assert linear_chain(insert_personal_layer(deepcopy(NETWORKS["one hidden"]))) is None


def test_mismatch_and_gradients_are_those_of_derivatives_of_derivatives(network):
    model, directions, start = setting(network)
    value, along_x, along_logits = matching(network, model, directions)(start.x, start.logits)
    for site in range(3):
        x, logits = start.x[site].clone().requires_grad_(), start.logits[site].clone().requires_grad_()
        expected = mismatch(network, model, directions[site], x, logits)
        by_x, by_logits = torch.autograd.grad(expected, [x, logits])
        assert float(value[site]) == pytest.approx(float(expected.detach()), abs=1e-9)
        assert torch.allclose(along_x[site], by_x, atol=1e-9)
        assert torch.allclose(along_logits[site], by_logits, atol=1e-9)


@pytest.mark.parametrize("block", [None, BLOCK])
def test_all_at_once_is_one_after_the_other(network, block):
    model, directions, start = setting(network)
    together = Inversion(steps=5)(network, model, directions, start, block)
    apart = invert_each(network, model, directions, start, steps=5, block=block)
    assert torch.allclose(together.x, apart.x, atol=1e-7)
    assert torch.allclose(together.logits, apart.logits, atol=1e-7)
    assert not torch.allclose(together.x, start.x, atol=0.1)


def test_all_at_once_is_one_after_the_other_as_a_defence_runs_it():
    """In single precision over all steps rounding grows, but to nothing that a score would see."""
    network = build("mlp", {"hidden": [8]}, (INPUTS,), LABELS, seed=3)
    model, directions, start = made_up(network, 4, INPUTS, LABELS, dummies=100)
    together = Inversion()(network, model, directions, start, BLOCK)
    apart = invert_each(network, model, directions, start, block=BLOCK)
    assert together.x.dtype == torch.float32
    assert float((together.x - apart.x).abs().max()) < 1e-3
    assert float((together.logits - apart.logits).abs().max()) < 1e-3
    assert float((together.logits - start.logits).abs().max()) > 0.5


def test_each_site_may_have_its_own_model(network):
    model, directions, start = setting(network)
    models = torch.stack([model, 1.1 * model, 0.9 * model])
    together = Inversion(steps=3)(network, models, directions, start, BLOCK)
    apart = invert_each(network, models, directions, start, steps=3, block=BLOCK)
    assert torch.allclose(together.x, apart.x, atol=1e-7)


@settings(max_examples=15, deadline=None)
@given(st.permutations(range(4)))
def test_a_site_is_reconstructed_by_its_own_update_alone(order):
    network = NETWORKS["one hidden"]
    model, directions, start = setting(network, sites=4)
    found = Inversion(steps=3)(network, model, directions, start, BLOCK)
    moved = Inversion(steps=3)(network, model, directions[order], Dummies(*(p[order] for p in start)), BLOCK)
    assert torch.allclose(found.x[order], moved.x, atol=1e-10)


def test_steps_bring_the_directions_together_and_keep_inputs_in_bounds():
    network = NETWORKS["one hidden"]
    model, directions, start = setting(network)
    begin = matching(network, model, directions)(*start)[0]
    found = Inversion(steps=60)(network, model, directions, start, BLOCK)
    end = matching(network, model, directions)(*found)[0]
    assert bool((end < begin - 0.05).all())
    assert float(found.x[..., BLOCK].min()) >= 0
    assert float(found.x[..., BLOCK].max()) <= 1
    assert float(found.x.abs().max()) <= 3


def test_the_sign_of_the_worked_example():
    """One step of softmax regression: the true sample matches the gradient exactly, the printed sign not at all."""
    network = Network(nn.Identity(), nn.Linear(2, 2, bias=False)).double()
    with torch.no_grad():
        network.head.weight.zero_()
    x, sure = torch.tensor([[[1.0, 2.0]]]).double(), torch.tensor([[[40.0, -40.0]]]).double()
    gradient = torch.tensor([[-0.5, -1.0, 0.5, 1.0]]).double()
    before, after = torch.zeros(4).double(), -0.1 * gradient
    corrected, printed = (before - after) / 0.1, (after - before) / 0.1
    assert torch.allclose(corrected, gradient)
    assert float(matching(network, before, corrected)(x, sure)[0]) == pytest.approx(0.0, abs=1e-9)
    assert float(matching(network, before, printed)(x, sure)[0]) == pytest.approx(2.0, abs=1e-9)


def test_without_an_update_or_a_gradient_everything_stays_finite(network):
    model, directions, start = setting(network)
    still = Inversion(steps=2)(network, model, torch.zeros_like(directions), start)
    assert bool(torch.isfinite(still.x).all())
    flat = torch.zeros_like(model)  # with equal labels the loss has no slope at all
    even = Dummies(torch.zeros_like(start.x), torch.zeros_like(start.logits))
    found = Inversion(steps=2)(network, flat, directions, even)
    assert bool(torch.isfinite(found.x).all() and torch.isfinite(found.logits).all())


def test_the_gradient_of_the_total_variation():
    x = torch.tensor([[[1.0, 3.0, 2.0], [0.0, 0.5, 0.5]]], dtype=torch.float64, requires_grad=True)
    (expected,) = torch.autograd.grad(x.diff(dim=-1).abs().mean(), x)
    assert torch.allclose(variation_gradient(x.detach()), expected)


def test_many_models_answer_as_each_does(network):
    model, directions, start = setting(network)
    models = model + 0.1 * directions
    same = Models(network, models).logits(start.x[0])
    own = Models(network, models).logits(start.x)
    for site in range(3):
        alone = Models(network, models)
        assert torch.allclose(same[site], alone.logits_of(models[site], start.x[0]))
        assert torch.allclose(own[site], alone.logits_of(models[site], start.x[site]))
