"""The stepper against torch.optim, which we do not import at run time."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedaccord.training.solvers import SGD, SGDStepper, clip_norm

SHAPES = [(3, 2), (3,), (2, 3, 2)]


def parameters(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


def gradients(step):
    return parameters(seed=100 + step)


@settings(max_examples=40)
@given(
    lr=st.sampled_from([0.01, 0.1, 1.0]),
    momentum=st.sampled_from([0.0, 0.5, 0.9]),
    weight_decay=st.sampled_from([0.0, 1e-4, 0.1]),
)
def test_sgd_steps_as_torch_does_bit_for_bit(lr, momentum, weight_decay):
    ours = parameters()
    stepper = SGDStepper(SGD(momentum, weight_decay), ours, lr)
    theirs = [torch.nn.Parameter(p) for p in parameters()]
    optimiser = torch.optim.SGD(theirs, lr=lr, momentum=momentum, weight_decay=weight_decay)
    for step in range(6):
        stepper.step(gradients(step))
        for parameter, gradient in zip(theirs, gradients(step), strict=True):
            parameter.grad = gradient
        optimiser.step()
        for mine, other in zip(ours, theirs, strict=True):
            assert torch.equal(mine, other.detach())


def test_clipping_before_a_step_is_what_torch_does():
    ours = parameters()
    stepper = SGDStepper(SGD(momentum=0.9, weight_decay=0.1, clip=0.5), ours, 0.1)
    theirs = [torch.nn.Parameter(p) for p in parameters()]
    optimiser = torch.optim.SGD(theirs, lr=0.1, momentum=0.9, weight_decay=0.1)
    for step in range(4):
        stepper.step(gradients(step))
        for parameter, gradient in zip(theirs, gradients(step), strict=True):
            parameter.grad = gradient
        torch.nn.utils.clip_grad_norm_(theirs, 0.5)
        optimiser.step()
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other.detach(), rtol=1e-5, atol=1e-6)


def test_momentum_by_hand():
    weight = torch.tensor([1.0])
    stepper = SGDStepper(SGD(momentum=0.5), [weight], lr=0.1)
    stepper.step([torch.tensor([2.0])])  # velocity 2
    assert weight.item() == pytest.approx(0.8)
    stepper.step([torch.tensor([2.0])])  # velocity 0.5 * 2 + 2 = 3
    assert weight.item() == pytest.approx(0.5)


def test_every_round_starts_without_momentum():
    weight, solver = torch.tensor([1.0]), SGD(momentum=0.5)
    for _ in range(2):
        SGDStepper(solver, [weight], lr=0.1).step([torch.tensor([2.0])])
    assert weight.item() == pytest.approx(0.6)


@pytest.mark.parametrize("solver", [SGD(), SGD(momentum=0.9), SGD(weight_decay=0.1), SGD(clip=1.0), SGD(0.9, 0.1, 1.0)])
def test_the_gradients_of_the_caller_are_left_alone(solver):
    gradient = [torch.tensor([3.0, 4.0])]
    stepper = SGDStepper(solver, [torch.ones(2)], 0.1)
    for _ in range(3):
        stepper.step(gradient)
    assert gradient[0].tolist() == [3, 4]


def test_clip_scales_all_gradients_by_their_joint_norm():
    clipped = clip_norm([torch.tensor([3.0]), torch.tensor([[4.0]])], 1.0)  # the joint norm is 5
    assert [g.tolist() for g in clipped] == [[pytest.approx(0.6)], [[pytest.approx(0.8)]]]


def test_clip_leaves_short_gradients_as_they_are_bit_for_bit():
    short = [torch.tensor([0.3, -0.4]), torch.zeros(2)]
    assert all(torch.equal(a, b) for a, b in zip(clip_norm(short, 1.0), short, strict=True))
    zeros = [torch.zeros(2)]
    assert clip_norm(zeros, 1.0)[0].tolist() == [0, 0]


def test_clip_counts_a_gradient_that_two_parameters_share_once_for_each():
    # For a sum of two parameters autograd gives both the same tensor; in place it would be scaled twice.
    a, b = (torch.zeros(3, requires_grad=True) for _ in range(2))
    shared = list(torch.autograd.grad(((a + b) * torch.tensor([0.0, 3.0, 4.0])).sum(), [a, b]))
    clipped = clip_norm(shared, 1.0)
    assert math.hypot(*(g.norm().item() for g in clipped)) == pytest.approx(1.0)
    # And the gradient of a plain sum is one number spread over the whole shape, which cannot be written to.
    spread = list(torch.autograd.grad(a.sum(), [a]))
    assert clip_norm(spread, 1.0)[0].norm().item() == pytest.approx(1.0)
