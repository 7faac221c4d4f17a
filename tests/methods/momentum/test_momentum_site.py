"""Steps with momentum at one site: Nesterov's rule, the server's momentum as a drift, Mime's corrected steps."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedaccord.methods.momentum.mime import MimeSteps, full_gradient
from fedaccord.methods.momentum.site import Drift, DriftingSGD, Nesterov
from fedaccord.training.local import batches, step_count, train_locally
from fedaccord.training.objectives import Objective, SquaredError, ViewLikelihood
from fedaccord.training.settings import TrainingSettings
from fedaccord.training.solvers import SGD
from small_federation import SPACE, exact, site, small_network, work_for

pytestmark = pytest.mark.usefixtures("one_thread")


def parameter(value=0.0):
    return [torch.tensor([value], dtype=torch.float64, requires_grad=True)]


class TestNesterov:
    def test_three_steps(self):
        """Check the numbers of docs/methods.md 8.1: F = 0.5 (w - 3)^2, lr 0.1, gamma 0.5."""
        w = parameter()
        stepper = Nesterov(SGD(), w, 0.1, 0.5, [torch.zeros(1, dtype=torch.float64)])
        for m, expected in ((0.3, 0.45), (0.705, 0.9075), (1.11675, 1.322625)):
            stepper.step([w[0].detach() - 3])
            assert (stepper.momentum[0].item(), w[0].item()) == pytest.approx((m, expected))

    def test_it_is_the_velocity_form(self):
        """`v <- gamma v - lr g`, `w <- w + gamma v - lr g` with `v = m+ - m`."""
        gradients = torch.randn(6, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
        w, x, v = parameter(1.0), 1.0, 0.0
        stepper = Nesterov(SGD(), w, 0.1, 0.7, [torch.ones(1, dtype=torch.float64)])
        for g in gradients.tolist():
            stepper.step([torch.tensor([g], dtype=torch.float64)])
            v = 0.7 * v - 0.1 * g
            x = x + 0.7 * v - 0.1 * g
            assert w[0].item() == pytest.approx(x)

    def test_gradients_are_clipped_and_decay(self):
        w = parameter(1.0)
        stepper = Nesterov(SGD(weight_decay=0.5, clip=1.0), w, 0.1, 0.0, [w[0].detach().clone()])
        stepper.step([torch.tensor([9.0]).double()])
        assert w[0].item() == pytest.approx(1 - 0.1 * (1 + 0.5))


class TestDrift:
    """Momentum 2, lr 0.1, share 0.5, two steps without gradients: a drift of -0.1 in all."""

    @pytest.mark.parametrize(
        ("when", "places"),
        [("first", [-0.1, -0.1, -0.1]), ("each", [0.0, -0.05, -0.1]), ("ahead", [-0.05, -0.1, -0.15])],
    )
    @pytest.mark.parametrize("sent", [True, False])
    def test_where_gradients_are_taken_and_what_is_sent(self, when, places, sent):
        w = parameter()
        stepper = DriftingSGD(SGD(), w, 0.1, Drift(when, 0.5, sent), [torch.tensor([2.0]).double()], steps=2)
        for place in places[:2]:
            assert w[0].item() == pytest.approx(place)
            stepper.step([torch.zeros(1, dtype=torch.float64)])
        stepper.finish(None, None)
        assert w[0].item() == pytest.approx(-0.1 if sent else 0.0)

    def test_a_site_that_takes_no_step_stays_where_it_is(self):
        for when in ("first", "each", "ahead"):
            w = parameter()
            DriftingSGD(SGD(), w, 0.1, Drift(when, 0.5, True), [torch.ones(1).double()], steps=0).finish(None, None)
            assert w[0].item() == 0.0


class Noisy(Objective):
    """A loss with random numbers of its own, as dropout or augmentation draws them."""

    def loss(self, work, batch):
        return (work.parameters[0] * torch.rand(1)).sum()


class TestMime:
    def test_it_compares_two_points_on_the_same_batch_and_random_numbers(self):
        """With a linear loss both gradients are the same, so only the mean gradient is left."""
        work = work_for(site("a"), small_network())
        full = [torch.full_like(p, 2.0) for p in work.parameters]
        zeros = [torch.zeros_like(p) for p in work.parameters]
        mime = MimeSteps(SGD(), work, 0.0, zeros, full)
        for p in work.parameters[1:]:
            p.requires_grad_(True)
        torch.manual_seed(3)
        before = work.received[0].clone()
        for _ in range(2):
            _, gradients = mime.evaluate(lambda: _measured(work))
            mime.step(list(gradients))
        assert torch.allclose(work.parameters[0], before - 2 * 0.1 * 2.0)

    def test_a_step_is_a_mean_of_gradient_and_statistics(self):
        work = work_for(site("a"), small_network())
        before = work.received[0].clone()
        mime = MimeSteps(SGD(), work, 0.9, [torch.full_like(p, 2.0) for p in work.parameters], None)
        mime.step([torch.ones_like(p) for p in work.parameters])
        torch.testing.assert_close(work.parameters[0].detach(), before - 0.1 * (0.1 * 1.0 + 0.9 * 2.0))

    def test_the_look_back_leaves_no_trace_in_batch_norm(self):
        results = []
        for full in (False, True):
            network = small_network(batch_norm=True)
            work = work_for(site("a", samples=8), network)
            zeros = [torch.zeros_like(p) for p in work.parameters]
            solver = _Starts(lambda w, z=zeros, f=full: MimeSteps(SGD(), w, 0.0, z, z if f else None))
            train_locally(work, ViewLikelihood(), solver, TrainingSettings(steps=1, batch=8))
            results.append([b.clone() for b in network.buffers()])
        assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))

    def test_gradients_are_counted_twice(self):
        for full, factor in ((None, 1), ("zeros", 2)):
            work = work_for(site("a", samples=10), small_network())
            zeros = [torch.zeros_like(p) for p in work.parameters]
            solver = _Starts(lambda w, z=zeros, f=full: MimeSteps(SGD(), w, 0.5, z, z if f else None))
            reply = train_locally(work, ViewLikelihood(), solver, TrainingSettings(epochs=2, batch=4))
            assert reply.numbers["computed"] == 20 * factor

    @pytest.mark.parametrize("batch_norm", [False, True])
    def test_a_full_gradient_is_that_of_all_samples_at_once(self, batch_norm):
        network = small_network(batch_norm)
        data = site("a", samples=20)
        work = work_for(data, network)
        buffers = [b.clone() for b in network.buffers()]
        gradient, samples = full_gradient(work, ViewLikelihood(), SGD(weight_decay=0.1))
        assert samples == 20
        assert all(torch.equal(a, b) for a, b in zip(network.buffers(), buffers, strict=True))
        other = copy.deepcopy(network).train()
        loss = data.view.mean_nll(other(data.train.x), data.train.target)
        expected = torch.autograd.grad(loss, list(other.parameters()))
        for ours, theirs, p in zip(gradient, expected, other.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs + 0.1 * p.detach(), atol=1e-6, rtol=1e-4)

    def test_it_may_be_taken_on_some_samples_drawn_by_the_round(self):
        gradients = []
        for round_ in (1, 1, 2):
            work = work_for(site("a", samples=20), small_network(), round_=round_)
            gradient, samples = full_gradient(work, ViewLikelihood(), SGD(), most=5)
            assert samples == 5
            gradients.append(gradient[0])
        assert torch.equal(gradients[0], gradients[1])
        assert not torch.equal(gradients[0], gradients[2])


class _Starts:
    def __init__(self, make):
        self.start = make


def _measured(work):
    loss = Noisy().loss(work, None)
    return loss, torch.autograd.grad(loss, work.parameters, materialize_grads=True)


@given(
    st.integers(0, 12), st.integers(1, 5), st.none() | st.integers(1, 3), st.none() | st.integers(1, 7), st.booleans()
)
def test_steps_are_counted_as_they_are_taken(samples, size, epochs, steps, drop):
    taken = len(list(batches(samples, size, torch.Generator().manual_seed(0), epochs, steps, drop)))
    assert step_count(samples, size, epochs, steps, drop) == taken


def test_squared_error_by_hand():
    work = work_for(site("a", samples=2, view=exact()), small_network())
    data = work.site.train
    wanted = torch.eye(len(SPACE))[data.target]
    expected = 0.5 * (work.model(data.x) - wanted).square().mean()
    assert SquaredError().loss(work, data).item() == pytest.approx(expected.item())


class TestIterations:
    def test_rounds_follow(self):
        settings = TrainingSettings(iterations=100, steps=20)
        assert settings.rounds == 5
        assert TrainingSettings(**settings.model_dump()) == settings

    @pytest.mark.parametrize(
        ("given_", "said"),
        [
            ({"steps": 30}, "is not a multiple"),
            ({}, "give the steps"),
            ({"epochs": 2}, "give the steps"),
            ({"steps": 20, "rounds": 4}, "are 5 rounds; leave out rounds"),
        ],
    )
    def test_what_does_not_fit_is_told(self, given_, said):
        with pytest.raises(ValueError, match=said):
            TrainingSettings(iterations=100, **given_)

    def test_a_method_s_own_steps_count(self):
        from fedaccord.methods.momentum.settings import NesterovSettings

        assert NesterovSettings(iterations=100).rounds == 5
