"""What a site minimises."""

import re

import pytest
import torch

from fedaccord.errors import UserError
from fedaccord.messages.message import Message
from fedaccord.training.objectives import Objective, Proximal, RowObjective, Sum, ViewLikelihood, proximal_term
from fedaccord.training.work import Batch
from small_federation import exact, pets_or_cattle, site, small_network, work_for


def batch_of(work, rows):
    rows = torch.tensor(rows)
    return Batch(rows, work.site.train.x[rows], work.site.train.target[rows])


def test_the_proximal_term_of_the_worked_example():
    # docs/methods.md 2.4: mu = 0.1, theta = (1, 2, 3), theta^t = (1, 1, 1) -> 0.25
    theta, received = torch.tensor([1.0, 2.0, 3.0]), torch.ones(3)
    assert proximal_term([theta], [received], 0.1).item() == pytest.approx(0.25)
    assert proximal_term([theta[:1], theta[1:]], [received[:1], received[1:]], 0.1).item() == pytest.approx(0.25)


def test_the_proximal_term_pulls_with_mu_times_the_distance():
    theta = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    (pull,) = torch.autograd.grad(proximal_term([theta], [torch.ones(3)], 0.1), [theta])
    assert pull.tolist() == pytest.approx([0.0, 0.1, 0.2])


def test_fedprox_holds_a_site_near_what_it_received():
    work = work_for(site("a"), small_network())
    batch = batch_of(work, [0, 1])
    assert Proximal(0.5).loss(work, batch).item() == 0
    with torch.no_grad():
        work.parameters[0] += 2.0  # 5 x 4 weights
    assert Proximal(0.5).loss(work, batch).item() == pytest.approx(0.25 * 4 * 20)


def test_the_likelihood_is_the_batch_mean_under_the_sites_own_view():
    for view in (exact(), exact(["cat", "cow"]), pets_or_cattle()):
        work = work_for(site("a", view=view), small_network())
        batch = batch_of(work, [3, 1, 4])
        each = view.nll(work.model(batch.x), batch.target)
        assert each.shape == (3,)
        assert ViewLikelihood().loss(work, batch).item() == pytest.approx(each.mean().item())


def test_the_likelihood_uses_the_prior_in_the_works_view():
    work = work_for(site("a"), small_network())
    batch = batch_of(work, [0, 1, 2])
    plain = ViewLikelihood().loss(work, batch)
    work.view = work.view.with_offset(torch.tensor([2.0, 0.0, -2.0]))
    expected = torch.nn.functional.cross_entropy(work.model(batch.x) + torch.tensor([2.0, 0.0, -2.0]), batch.target)
    assert ViewLikelihood().loss(work, batch).item() == pytest.approx(expected.item())
    assert expected.item() != pytest.approx(plain.item())


class Noted(Objective):
    """Writes down when it is called."""

    def __init__(self, name, value, diary):
        self.name, self.value, self.diary = name, value, diary

    def start(self, work):
        self.diary.append(f"{self.name} start")

    def loss(self, work, batch):
        return torch.tensor(self.value)

    def after_step(self, work, batch):
        self.diary.append(f"{self.name} stepped")

    def finish(self, work, reply):
        reply.numbers[self.name] = self.value


def test_a_sum_adds_losses_and_passes_on_every_hook():
    diary, reply = [], Message()
    both = Sum((Noted("one", 1.0, diary), Noted("two", 2.5, diary)))
    work = work_for(site("a"), small_network())
    both.start(work)
    assert both.loss(work, batch_of(work, [0])).item() == 3.5
    both.after_step(work, batch_of(work, [0]))
    both.finish(work, reply)
    assert diary == ["one start", "two start", "one stepped", "two stepped"]
    assert reply.numbers == {"one": 1.0, "two": 2.5}


def test_an_objective_without_a_loss_says_so():
    work = work_for(site("a"), small_network())
    with pytest.raises(TypeError, match="Objective does not implement loss"):
        Objective().loss(work, batch_of(work, [0]))


class Doubled(ViewLikelihood):
    def row_losses(self, view, logits, batch):
        return 2 * super().row_losses(view, logits, batch)


class Shifted(ViewLikelihood):
    def augment(self, work, batch):
        return batch._replace(x=batch.x + 1)


def test_a_likelihood_with_other_rows_is_not_the_fast_one():
    work = work_for(site("a", samples=8), small_network())
    batch = batch_of(work, [3, 1, 4])
    plain, doubled = ViewLikelihood().loss(work, batch), Doubled().loss(work, batch)
    assert torch.allclose(doubled, 2 * plain)
    moved = batch._replace(x=batch.x + 1)
    assert torch.equal(Shifted().loss(work, batch), ViewLikelihood().loss(work, moved))


class WrongState(RowObjective):
    def __init__(self, state):
        self.state = state

    def row_state(self, work):
        return {"scale": self.state}

    def row_losses(self, view, logits, batch):
        return view.nll(logits, batch.target)


@pytest.mark.parametrize("shape", [(), (3,), (11, 2)])
def test_row_state_needs_a_row_for_each_training_row(shape):
    work = work_for(site("a", samples=8), small_network())
    batch = batch_of(work, [3, 1, 4])
    with pytest.raises(
        UserError, match=rf"WrongState.row_state: 'scale' has shape {re.escape(str(shape))}, but the site has 8 "
    ):
        WrongState(torch.ones(shape)).loss(work, batch)


class WrongLosses(RowObjective):
    def __init__(self, change):
        self.change = change

    def row_losses(self, view, logits, batch):
        return self.change(view.nll(logits, batch.target))


@pytest.mark.parametrize(("change", "found"), [(torch.mean, r"\(\)"), (lambda losses: losses[:, None], r"\(3, 1\)")])
def test_row_losses_need_a_loss_for_each_row(change, found):
    work = work_for(site("a", samples=8), small_network())
    batch = batch_of(work, [3, 1, 4])
    said = rf"WrongLosses.row_losses must return one loss per row, shape \(3,\), not {found}"
    with pytest.raises(UserError, match=said):
        WrongLosses(change).loss(work, batch)
