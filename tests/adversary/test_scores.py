"""What a site is judged by: numbers by hand, and the direction of a push."""

import math

import pytest
import torch
from torch import nn

from fedaccord.adversary.inversion import Dummies
from fedaccord.adversary.many_models import Models
from fedaccord.adversary.scores import (
    Push,
    adjusted_group_update,
    counterfactual_gap,
    dummy_fairness,
    group_push,
    group_update,
    label_direction,
    label_gap,
)
from fedaccord.data.sensitive import Target
from fedaccord.evaluation.groups import equal_opportunity_difference
from fedaccord.models.catalogue import build
from fedaccord.models.layout import Layout
from fedaccord.models.network import Network

TARGET = Target(("a", "b"), group=0, label=1, block=1)  # inputs: one number, then two groups


def dummies(groups, labels):
    """One site with sure groups and labels."""
    x = torch.cat([torch.zeros(len(groups), 1), torch.tensor(groups, dtype=torch.float32)], 1)
    return Dummies(x[None], 40.0 * torch.nn.functional.one_hot(torch.tensor(labels), 2)[None].float())


def test_the_label_gap_by_hand():
    sure = dummies([[1, 0], [1, 0], [0, 1], [0, 1]], [1, 0, 0, 0])
    assert label_gap(sure, TARGET).tolist() == pytest.approx([0.5])
    soft = dummies([[0.5, 0.5], [0, 1.0]], [1, 0])  # inside 1/2 and 0, outside 1/2 and 1
    assert label_gap(soft, TARGET).tolist() == pytest.approx([1 - 1 / 3], abs=1e-6)
    assert math.isnan(float(label_gap(dummies([[0, 1], [0, 1]], [1, 0]), TARGET)))


def test_the_published_score_is_the_eod_of_a_sites_model_on_the_dummies():
    network = Network(nn.Identity(), nn.Linear(3, 2, bias=False))
    with torch.no_grad():
        network.head.weight.copy_(torch.tensor([[0.0, 0.0, 1.0], [0.0, 1.0, 0.0]]))  # predicts the label for group a
    model = Layout.of(network).read(network)
    found = dummies([[1, 0], [1, 0], [0, 1], [0, 1]], [1, 1, 1, 1])
    assert dummy_fairness(Models(network, model[None]), found, TARGET).tolist() == [-1.0]
    empty = dummies([[1, 0], [0, 1]], [1, 0])  # nobody outside the group has the label
    assert math.isnan(float(dummy_fairness(Models(network, model[None]), empty, TARGET)))


def test_the_published_score_of_all_sites_is_that_of_each():
    network = build("mlp", {"hidden": [6]}, (3,), 2, seed=1)
    noise = torch.randn(7, Layout.of(network).size, generator=torch.Generator().manual_seed(0))
    x = torch.rand(7, 12, 3, generator=torch.Generator().manual_seed(1))
    labels = torch.randn(7, 12, 2, generator=torch.Generator().manual_seed(2))
    labels[3] = torch.tensor([1.0, 0.0])  # nobody has the label: no rate is known
    found = dummy_fairness(Models(network, noise), Dummies(x, labels), TARGET)
    for number, score in enumerate(found.tolist()):
        predicted = Models(network, noise[number]).logits(x[number]).argmax(-1) == TARGET.label
        actual, member = labels[number].argmax(-1) == TARGET.label, x[number, :, 1:].argmax(-1) == TARGET.group
        assert score == pytest.approx(equal_opportunity_difference(predicted, actual, member), nan_ok=True)
    assert math.isnan(found[3])


@pytest.fixture
def network():
    return build("mlp", {"hidden": [6, 4]}, (3,), 3, seed=1)


def pushed(network, by):
    """The flat vectors of a model, and of it after its group weights moved along the label's direction."""
    layout = Layout.of(network)
    model = layout.read(network)
    layers = Models(network, model).layers
    towards = label_direction(layers, TARGET.label).float()
    update = torch.zeros_like(model)
    layout.named(update)["encoder.1.weight"][:, 1] = by * towards
    return model, update


def test_the_group_update_tells_the_direction_of_a_push(network):
    model, update = pushed(network, 0.1)
    noise = 0.001 * torch.randn(len(model), generator=torch.Generator().manual_seed(0))
    still = torch.zeros_like(update)
    updates = torch.stack([update + noise, -update + noise, noise, still])
    scores = group_update(Models(network, updates), Models(network, model), TARGET)
    towards = label_direction(Models(network, model).layers, TARGET.label)
    assert float(scores[0]) == pytest.approx(float(towards.norm()), rel=0.05)  # all of the movement is along it
    assert float(scores[1]) == pytest.approx(-float(towards.norm()), rel=0.05)
    assert abs(float(scores[2])) < float(scores[0])
    assert math.isnan(float(scores[3]))
    larger = group_update(Models(network, 7 * updates), Models(network, model), TARGET)
    assert torch.allclose(larger[:3], scores[:3])  # the size of a step says nothing


def test_the_freed_update_by_hand():
    """Shares 1/4, 1/2 and 3/4, so 1/2: 2 - 1/2 * 4 = 0, 3 - 1/2 * 4 = 1, 1 + 1/2 * 2 = 2, over lengths 2, 2 and 4.

    The last one left its biases alone: 9 - 1/2 * 0 = 9, over the middle length, 2.
    """
    push = Push(*(torch.tensor(v, dtype=torch.float64) for v in ([2, 3, 1, 9], [4, 4, -2, 0], [1] * 4, [4] * 4)))
    shared, size = torch.tensor([[1, 2, 12, math.nan], [4, 4, 16, math.nan]], dtype=torch.float64)
    found = adjusted_group_update(push, shared, size).tolist()
    assert found == pytest.approx([0.0, 0.5, 0.5, 4.5])


def test_rows_that_a_site_pushes_alike_are_no_push_of_the_group(network):
    """Two fifths of all rows list the group. Sites with more or fewer samples of the label push all of them alike."""
    layout = Layout.of(network)
    model = layout.read(network)
    towards = label_direction(Models(network, model).layers, TARGET.label).float()
    generator = torch.Generator().manual_seed(0)
    updates = torch.zeros(5, layout.size)
    for site, skew in enumerate((-3.0, -1.0, 0.0, 1.0, 3.0)):
        rows = torch.randn(6, generator=generator) + skew * towards
        parts = layout.named(updates[site])
        parts["encoder.1.bias"][:] = rows
        parts["encoder.1.weight"][:, 1] = 0.4 * rows
    push = group_push(Models(network, updates), Models(network, model), TARGET)
    honest = adjusted_group_update(push, push.shared, push.size)
    assert honest.abs().max() < 1e-6
    assert group_update(Models(network, updates), Models(network, model), TARGET).std() > 0.1  # label skew alone
    layout.named(updates[1])["encoder.1.weight"][:, 1] += 0.5 * towards
    push = group_push(Models(network, updates), Models(network, model), TARGET)
    scores = adjusted_group_update(push, push.shared, push.size)
    assert scores.argmax() == 1
    assert scores[1] == pytest.approx(0.5 * float(towards.norm()) / float(push.size[1].sqrt()), rel=1e-4)
    larger = group_push(Models(network, 7 * updates), Models(network, model), TARGET)
    assert torch.allclose(adjusted_group_update(larger, larger.shared, larger.size), scores, atol=1e-6)


def test_the_direction_of_a_label_by_hand():
    network = Network(nn.Identity(), nn.Linear(2, 3, bias=False))
    model = Layout.of(network).read(network)
    assert label_direction(Models(network, model).layers, 1).tolist() == [-0.5, 1.0, -0.5]
    one = build("mlp", {"hidden": [4]}, (3,), 3, seed=1)
    head = one.head.weight.detach().double()
    found = label_direction(Models(one, Layout.of(one).read(one)).layers, 2)
    assert torch.allclose(found, head[2] - (head[0] + head[1]) / 2)


def test_the_counterfactual_gap_by_hand():
    network = Network(nn.Identity(), nn.Linear(3, 2, bias=False))
    layout = Layout.of(network)
    weights = torch.tensor([[[5.0, 0.0, 0.0], [2.0, 3.0, 1.0]], [[0.0, 0.0, 0.0], [0.0, 1.0, 4.0]]])
    models = torch.stack([layout.vector({"head.weight": w}) for w in weights])
    probe = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
    # The number's part of the log-odds is the same for either group and falls out.
    assert counterfactual_gap(Models(network, models), probe, TARGET).tolist() == pytest.approx([2.0, -3.0], abs=1e-5)
