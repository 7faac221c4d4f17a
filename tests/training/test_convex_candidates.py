"""CLPL: the worked numbers of docs/methods.md 5.1, shares, unknown labels and gradients."""

import pytest
import torch

from fedaccord.training.candidate_losses import PSI, convex_candidates, partial_loss

pytestmark = pytest.mark.usefixtures("one_thread")
Z = torch.tensor([[2.0, 1.0, 0.0, -1.0]])
SETS = torch.tensor([[True, False, True, False]])


@pytest.mark.parametrize(
    ("psi", "on", "value"),
    [("logistic", "logits", 1.939785), ("squared-hinge", "logits", 4.0), ("squared-hinge", "softmax", 2.997577)],
)
def test_the_worked_losses(psi, on, value):
    assert float(convex_candidates(Z, SETS, psi, on)) == pytest.approx(value, abs=1e-6)
    assert float(partial_loss("clpl", psi=psi, on=on).loss(Z, SETS, SETS.float())) == pytest.approx(value, abs=1e-6)


def test_the_worked_loss_of_a_fractional_set():
    assert float(convex_candidates(Z, torch.tensor([[1, 0.3, 0.5, 0]]))) == pytest.approx(1.824928, abs=1e-6)
    assert torch.allclose(convex_candidates(Z, SETS.float()), convex_candidates(Z, SETS))


@pytest.mark.parametrize("psi", PSI)
def test_a_label_that_is_not_known_costs_nothing(psi):
    far = torch.tensor([[2.0, 1.0, 0.0, float("-inf")]], requires_grad=True)
    loss = convex_candidates(far, SETS, psi)
    assert float(loss.detach()) == pytest.approx(float(convex_candidates(Z[:, :3], SETS[:, :3], psi)), abs=1e-6)
    for on in ("logits", "softmax"):
        (gradient,) = torch.autograd.grad(convex_candidates(far, SETS, psi, on).sum(), far)
        assert bool(torch.isfinite(gradient).all())


@pytest.mark.parametrize("psi", PSI)
@pytest.mark.parametrize("on", ["logits", "softmax"])
def test_gradients(psi, on):
    generator = torch.Generator().manual_seed(2)
    z = torch.randn(5, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    shares = torch.rand(5, 4, generator=generator, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda z: convex_candidates(z, shares, psi, on), (z,))


def test_more_sure_of_the_set_is_better():
    better = torch.tensor([[3.0, -2.0, 1.0, -3.0]])
    for psi in PSI:
        assert float(convex_candidates(better, SETS, psi)) < float(convex_candidates(Z, SETS, psi))
