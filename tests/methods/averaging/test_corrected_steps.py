"""Corrected steps and the control they leave, on a few numbers."""

from __future__ import annotations

import pytest
import torch

from fedaccord.methods.averaging.fednova import effective_steps
from fedaccord.methods.averaging.scaffold import CorrectedSGD
from fedaccord.training.solvers import SGD, SGDStepper


def one(value):
    return [torch.tensor([value])]


def run(settings, gradients, lr=0.1, correction=0.0, start=1.0):
    weight = one(start)
    stepper = CorrectedSGD(settings, weight, lr, one(correction))
    for gradient in gradients:
        stepper.step(one(gradient))
    return stepper, weight[0].item()


def test_a_step_goes_along_the_corrected_gradient():
    stepper, weight = run(SGD(), [2.0], correction=0.5)
    assert weight == pytest.approx(1 - 0.1 * 2.5)
    assert stepper.steps == 1


def test_without_a_correction_it_is_plain_sgd_bit_for_bit():
    for settings in (SGD(), SGD(momentum=0.9), SGD(weight_decay=0.1), SGD(clip=1.0)):
        plain = one(1.0)
        steps = SGDStepper(settings, plain, 0.1)
        for gradient in (2.0, -1.0, 3.0):
            steps.step(one(gradient))
        assert run(settings, (2.0, -1.0, 3.0))[1] == plain[0].item()


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_the_new_control_is_the_mean_gradient_without_the_correction(momentum):
    stepper, _ = run(SGD(momentum=momentum), [2.0, 2.0, 2.0, 2.0], correction=0.7)
    (control,) = stepper.control(one(1.0))
    assert control.item() == pytest.approx(2.0, rel=1e-5)


def test_weight_decay_and_clipping_are_part_of_it():
    stepper, _ = run(SGD(clip=1.0), [5.0, -0.5], correction=0.7)
    assert stepper.control(one(1.0))[0].item() == pytest.approx((1.0 - 0.5) / 2, rel=1e-5)
    stepper, _ = run(SGD(weight_decay=0.1), [2.0])
    assert stepper.control(one(1.0))[0].item() == pytest.approx(2.1, rel=1e-5)


def test_no_step_and_a_broken_one_leave_no_control():
    assert CorrectedSGD(SGD(), one(1.0), 0.1, one(0.0)).control(one(1.0)) is None
    stepper, _ = run(SGD(), [float("nan")])
    assert stepper.control(one(1.0)) is None


def test_momentum_counts_as_many_plain_steps():
    assert effective_steps(3, 0.9) == pytest.approx(5.61)  # docs/methods.md 3.5, FedNova's check
    assert effective_steps(7, 0.0) == 7
