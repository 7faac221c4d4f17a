"""The one local loop."""

import math

import pytest
import torch
from pydantic import ValidationError

from fedaccord.seeds import derive
from fedaccord.training.local import batches, train_locally
from fedaccord.training.objectives import Objective, ViewLikelihood
from fedaccord.training.settings import TrainingSettings
from fedaccord.training.solvers import SGD
from small_federation import exact, site, small_network, work_for

pytestmark = pytest.mark.usefixtures("one_thread")


def trained(data, settings, network=None, **how):
    network = network or small_network()
    work = work_for(data, network, **how)
    solver = SGD(settings.momentum, settings.weight_decay, settings.clip)
    reply = train_locally(work, ViewLikelihood(), solver, settings)
    return network, reply.numbers["loss"]


def test_the_loop_is_a_plain_torch_loop_over_the_derived_batches():
    data, settings = site("a", samples=10), TrainingSettings(epochs=3, batch=4, momentum=0.9, weight_decay=0.01)
    network, loss = trained(data, settings, round_=2, lr=0.1, seed=5)

    bare = small_network()
    optimiser = torch.optim.SGD(bare.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    order = torch.Generator().manual_seed(derive(5, "batches", "a", 2))
    losses = []
    for rows in batches(10, 4, order, epochs=3):
        step_loss = torch.nn.functional.cross_entropy(bare(data.train.x[rows]), data.train.target[rows])
        optimiser.zero_grad()
        step_loss.backward()
        optimiser.step()
        losses.append(step_loss.item())
    assert loss == pytest.approx(sum(losses) / 9)
    for ours, theirs in zip(network.parameters(), bare.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


def test_training_lowers_the_loss():
    data, settings = site("a", samples=30), TrainingSettings(epochs=5, batch=10)
    network, first = trained(data, settings)
    _, later = trained(data, settings, network)
    assert later < 0.7 * first


@pytest.mark.parametrize("change", [{"seed": 1}, {"round_": 2}])
def test_another_seed_or_round_sees_the_samples_in_another_order(change):
    settings = TrainingSettings(steps=3, batch=2)
    plain, _ = trained(site("a"), settings)
    same, _ = trained(site("a"), settings)
    other, _ = trained(site("a"), settings, **change)
    assert torch.equal(plain.head.weight, same.head.weight)
    assert not torch.equal(plain.head.weight, other.head.weight)


def test_two_sites_with_the_same_data_see_it_in_different_orders():
    settings = TrainingSettings(steps=3, batch=2)
    one, _ = trained(site("a", seed=1), settings)
    other, _ = trained(site("b", seed=1), settings)
    assert not torch.equal(one.head.weight, other.head.weight)


def test_a_part_the_loss_does_not_reach_stays_where_it_is():
    class OnlyFeatures(Objective):
        def loss(self, work, batch):
            return work.model.features(batch.x).square().mean()

    network = small_network()
    before = {name: p.detach().clone() for name, p in network.named_parameters()}
    train_locally(work_for(site("a"), network), OnlyFeatures(), SGD(0.9), TrainingSettings(steps=3))
    moved = {name for name, p in network.named_parameters() if not torch.equal(p, before[name])}
    assert moved == {"encoder.0.weight", "encoder.0.bias"}


def test_a_site_that_knows_one_label_only_learns_nothing():
    # docs/methods.md 4.4: the restricted softmax is then constant, so the gradient is zero.
    network, loss = trained(site("a", view=exact(["dog"])), TrainingSettings(epochs=2))
    assert loss == 0
    for trained_, untouched in zip(network.parameters(), small_network().parameters(), strict=True):
        assert torch.equal(trained_, untouched)


def test_a_site_without_samples_takes_no_step():
    network, loss = trained(site("a", samples=0), TrainingSettings(steps=3))
    assert loss == 0
    assert torch.equal(network.head.weight, small_network().head.weight)


def test_batch_norm_never_meets_a_batch_of_one():
    # 9 samples in batches of 4 end with a single one, of which batch-norm would make an error.
    network, _ = trained(site("a", samples=9), TrainingSettings(epochs=1, batch=4), small_network(batch_norm=True))
    assert network.encoder[1].num_batches_tracked.item() == 2


def test_the_model_trains_in_training_mode_whatever_it_was_in():
    network = small_network(batch_norm=True).eval()
    trained(site("a"), TrainingSettings(steps=1), network)
    assert network.training
    assert network.encoder[1].running_mean.abs().sum() > 0


def test_hooks_are_called_around_every_step_with_the_rows_of_the_batch():
    class Diary(ViewLikelihood):
        def __init__(self):
            self.lines = []

        def start(self, work):
            self.lines.append("start")

        def after_step(self, work, batch):
            self.lines.append(sorted(batch.rows.tolist()))
            assert torch.equal(batch.x, work.site.train.x[batch.rows])
            assert torch.equal(batch.target, work.site.train.target[batch.rows])

    diary = Diary()
    train_locally(work_for(site("a", samples=4), small_network()), diary, SGD(), TrainingSettings(epochs=2, batch=4))
    assert diary.lines == ["start", [0, 1, 2, 3], [0, 1, 2, 3]]


def test_the_learning_rate_follows_the_round():
    assert [TrainingSettings(lr=0.2).lr_at(r) for r in (1, 50)] == [0.2, 0.2]
    cosine = TrainingSettings(lr=0.2, rounds=4, schedule="cosine")
    assert [cosine.lr_at(r) for r in (1, 2, 3)] == pytest.approx([0.2, 0.1 * (1 + math.sqrt(0.5)), 0.1])


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"steps": 3, "epochs": 1}, "give steps or epochs, not both"),
        ({"participation": 0}, "a fraction up to 1.0 or a whole number of sites, not 0"),
        ({"participation": 1.5}, "a fraction up to 1.0 or a whole number of sites, not 1.5"),
        ({"participation": 0.0}, "a fraction up to 1.0"),
        ({"lr": 0}, "greater than 0"),
        ({"momentun": 0.9}, "Extra inputs are not permitted"),
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong, said):
    with pytest.raises(ValidationError, match=said):
        TrainingSettings(**wrong)


def test_only_the_chosen_rows_train():
    data, settings = site("a", samples=10), TrainingSettings(epochs=2, batch=3)
    chosen = torch.tensor([1, 4, 8])

    class Seen(ViewLikelihood):
        rows = ()

        def loss(self, work, batch):
            self.rows = (*self.rows, *batch.rows.tolist())
            return super().loss(work, batch)

    seen = Seen()
    work = work_for(data, small_network())
    work.rows = chosen
    train_locally(work, seen, SGD(), settings)
    assert sorted(seen.rows) == [1, 1, 4, 4, 8, 8]


def test_a_solver_starts_from_what_the_site_was_told_and_adds_to_the_reply():
    class Carried(SGD):
        def start(self, work):
            stepper = super().start(work)
            stepper.velocity = [work.memory.tensors["speed"]]
            stepper.finish = lambda work, reply: reply.tensors.update(speed=stepper.velocity[0])
            return stepper

    work = work_for(site("a"), small_network())
    work.parameters = work.parameters[:1]
    work.memory.tensors["speed"] = torch.ones_like(work.parameters[0])
    reply = train_locally(work, ViewLikelihood(), Carried(0.9), TrainingSettings(steps=2))
    assert reply.tensors["speed"].shape == work.parameters[0].shape
    assert not torch.equal(reply.tensors["speed"], torch.ones_like(work.parameters[0]))
