"""Noise on what another objective sees of a sample."""

import pytest
import torch

from fedaccord.labels.views import Candidates
from fedaccord.training.candidate_losses import CONFIDENCES, PartialLabels, confidences, partial_loss
from fedaccord.training.local import seeded
from fedaccord.training.noise import Noisy
from fedaccord.training.objectives import Objective, Sum
from fedaccord.training.work import Batch
from small_federation import SPACE, site, small_network, work_for

pytestmark = pytest.mark.usefixtures("one_thread")


class Seen(Objective):
    """Notes what it is given."""

    def __init__(self):
        self.calls = []

    def start(self, work):
        self.calls.append("start")

    def loss(self, work, batch):
        self.calls.append(batch.x)
        return batch.x.sum()

    def after_step(self, work, batch):
        self.calls.append(batch.x)

    def finish(self, work, reply):
        self.calls.append("finish")


def test_the_loss_sees_noise_and_what_follows_does_not():
    inner, x = Seen(), torch.zeros(2000, 5)
    noisy, work = Noisy(inner, 0.5), work_for(site("a"), small_network())
    batch = Batch(torch.arange(2000), x, x)
    noisy.start(work)
    noisy.loss(work, batch)
    noisy.loss(work, batch)
    noisy.after_step(work, batch)
    noisy.finish(work, None)
    started, first, second, after, finished = inner.calls
    assert (started, finished) == ("start", "finish")
    assert abs(first.std().item() - 0.5) < 0.02
    assert abs(first.mean().item()) < 0.02
    assert not torch.equal(first, second)
    assert torch.equal(after, x)
    assert not x.any()


def test_features_are_left_out_in_the_loss_only():
    work = work_for(site("a"), small_network())
    x = work.site.train.x
    batch = Batch(torch.arange(len(x)), x, work.site.train.target)
    seen = []

    class Head(Objective):
        def loss(self, work, batch):
            seen.append(work.model.features(batch.x))
            return seen[-1].sum()

        def after_step(self, work, batch):
            seen.append(work.model.features(batch.x))

    objective = Noisy(Head(), dropout=0.5)
    objective.loss(work, batch)
    objective.after_step(work, batch)
    dropped, whole = seen
    gone = dropped == 0
    assert 0.2 < gone.float().mean() < 0.8
    assert torch.allclose(dropped[~gone], 2 * whole[~gone])  # the others make up for it
    assert not (whole == 0).any()


def test_a_loss_that_fails_leaves_no_hook_behind():
    class Broken(Objective):
        def loss(self, work, batch):
            raise ValueError

    work = work_for(site("a"), small_network())
    batch = Batch(torch.arange(2), work.site.train.x[:2], work.site.train.target[:2])
    with pytest.raises(ValueError):
        Noisy(Broken(), dropout=0.5).loss(work, batch)
    assert torch.equal(work.model(batch.x), work.model(batch.x))


def test_it_is_the_same_for_the_same_task():
    work = work_for(site("a"), small_network())
    batch = Batch(torch.arange(3), work.site.train.x[:3], work.site.train.target[:3])
    values = []
    for seed in (1, 1, 2):
        with seeded(seed):
            values.append(Noisy(Seen(), 1.0).loss(work, batch).item())
    assert values[0] == values[1] != values[2]


def test_confidences_are_renewed_from_the_samples_as_they_are():
    work = work_for(site("a", view=Candidates(SPACE)), small_network())
    objective = Noisy(Sum((PartialLabels(partial_loss("rc")),)), 3.0)
    batch = Batch(torch.arange(4), work.site.train.x[:4], work.site.train.target[:4])
    objective.start(work)
    objective.loss(work, batch)
    objective.after_step(work, batch)
    expected = confidences(work.model(batch.x), batch.target)
    assert torch.allclose(work.memory.tensors[CONFIDENCES][:4], expected)
