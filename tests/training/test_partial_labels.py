"""What a site with candidate sets minimises, and what it keeps of its samples' labels from step to step."""

import dataclasses

import pytest
import torch

from fedaccord.federation.site_views import annotated_rows
from fedaccord.labels.views import Candidates, Coarse, Tags, Unlabelled
from fedaccord.messages.message import Message
from fedaccord.training.candidate_losses import CONFIDENCES, PartialLabels, confidences, partial_loss, uniform_weights
from fedaccord.training.local import train_locally
from fedaccord.training.settings import TrainingSettings
from fedaccord.training.solvers import SGD
from fedaccord.training.work import Batch
from small_federation import SPACE, exact, pets_or_cattle, site, small_network, work_for

pytestmark = pytest.mark.usefixtures("one_thread")

ROWS = torch.tensor([3, 1, 4])
SETS = Candidates(SPACE)


def batch_of(work, rows=ROWS):
    return Batch(rows, work.site.train.x[rows], work.site.train.target[rows])


def begun(objective, view=SETS, memory=None, network=None):
    work = work_for(site("a", view=view), network or small_network(), memory=memory)
    objective.start(work)
    return work


def restricted():
    """A site that knows two labels only, so that some of its sets hold one."""
    view = Candidates(SPACE, ["cat", "dog"])
    data = site("a", view=view)
    return dataclasses.replace(data, train=dataclasses.replace(data.train, target=data.train.target & view.informs()))


class TestSets:
    def test_an_exact_label_is_a_set_of_one(self):
        target = torch.tensor([2, 0])
        assert exact().candidate_sets(target).tolist() == [[False, False, True], [True, False, False]]

    def test_a_coarse_label_is_the_set_of_its_classes(self):
        assert pets_or_cattle().candidate_sets(torch.tensor([0, 1])).tolist() == [
            [True, True, False],
            [False, False, True],
        ]

    def test_candidates_are_themselves(self):
        target = torch.tensor([[True, False, True]])
        assert torch.equal(SETS.candidate_sets(target), target)

    def test_a_set_holds_no_label_that_the_site_does_not_know(self):
        view = SETS.with_offset(torch.tensor([0.5, 0.0, float("-inf")]))
        assert view.candidate_sets(torch.tensor([[True, False, True]])).tolist() == [[True, False, False]]

    def test_nobody_trains_on_an_empty_set(self):
        data = site("a", samples=4, view=SETS)
        target = data.train.target.clone()
        target[2] = False
        data = dataclasses.replace(data, train=dataclasses.replace(data.train, target=target))
        assert annotated_rows(data).tolist() == [0, 1, 3]

    def test_what_is_no_set(self):
        weighed = Coarse(SPACE, {"pet": {"cat": 1.0, "dog": 0.7}, "other": {"dog": 0.3, "cow": 1.0}})
        assert weighed.candidate_sets(torch.tensor([0, 1])) is None
        assert Tags(SPACE).candidate_sets(torch.zeros(2, 3, dtype=torch.int8)) is None
        assert Unlabelled(SPACE).candidate_sets(torch.tensor([-1, -1])) is None


class TestLoss:
    def test_it_is_the_batch_mean_of_the_named_loss(self):
        objective = PartialLabels(partial_loss("calibrated"))
        work = begun(objective)
        batch = batch_of(work)
        z, sets = work.model(batch.x), work.site.train.target[ROWS]
        expected = partial_loss("calibrated").loss(z, sets, uniform_weights(sets)).mean()
        assert objective.loss(work, batch).item() == pytest.approx(expected.item())

    def test_it_uses_the_prior_and_the_known_labels_of_the_view(self):
        objective = PartialLabels(partial_loss("rc"))
        data = restricted()
        work = work_for(data, small_network())
        work.view = data.view.with_offset(torch.tensor([1.5, -1.5, float("-inf")]))
        objective.start(work)
        batch = batch_of(work)
        sets = data.train.target[ROWS]
        z = work.model(batch.x) + work.view.offset
        log_p = torch.log_softmax(z[:, :2], -1)
        expected = -(uniform_weights(sets)[:, :2] * log_p).sum(-1).mean()
        assert objective.loss(work, batch).item() == pytest.approx(expected.item())
        gradient = torch.autograd.grad(objective.loss(work, batch), [work.model.head.weight])[0]
        assert gradient[2].abs().sum() == 0
        assert gradient[:2].abs().sum() > 0

    @pytest.mark.parametrize("name", ["cc", "rc", "uniform", "cavl"])
    def test_exact_sites_have_cross_entropy(self, name):
        objective = PartialLabels(partial_loss(name))
        work = begun(objective, exact())
        batch = batch_of(work)
        expected = torch.nn.functional.cross_entropy(work.model(batch.x), batch.target)
        assert objective.loss(work, batch).item() == pytest.approx(expected.item())

    def test_a_site_without_sets_trains_on_its_views_likelihood(self):
        view = Tags(SPACE)
        objective = PartialLabels(partial_loss("calibrated"))
        work = begun(objective, view)
        batch = batch_of(work)
        assert objective.loss(work, batch).item() == view.mean_nll(work.model(batch.x), batch.target).item()
        objective.after_step(work, batch)
        assert work.memory.is_empty()

    def test_confidences_are_constants_for_the_gradient(self):
        objective = PartialLabels(partial_loss("rc"))
        work = begun(objective)
        batch = batch_of(work)
        objective.loss(work, batch)
        objective.after_step(work, batch)
        assert not work.memory.tensors[CONFIDENCES].requires_grad


class TestConfidences:
    def test_they_begin_uniform_on_the_candidates(self):
        work = begun(PartialLabels(partial_loss("rc")))
        target = work.site.train.target
        assert torch.equal(work.memory.tensors[CONFIDENCES], target / target.sum(-1, keepdim=True))

    @pytest.mark.parametrize(("update_from", "after"), [("step", True), ("forward", False)])
    def test_a_step_renews_those_of_its_batch(self, update_from, after):
        objective = PartialLabels(partial_loss("rc"), update_from)
        work = begun(objective)
        batch = batch_of(work)
        first = work.memory.tensors[CONFIDENCES].clone()
        before = work.model(batch.x)
        objective.loss(work, batch)
        with torch.no_grad():
            work.model.head.bias += torch.tensor([2.0, 0.0, -2.0])  # the step
        objective.after_step(work, batch)
        z = work.model(batch.x) if after else before
        table = work.memory.tensors[CONFIDENCES]
        assert torch.allclose(table[ROWS], confidences(z, work.site.train.target[ROWS]))
        others = torch.ones(len(table), dtype=torch.bool).index_fill(0, ROWS, False)
        assert torch.equal(table[others], first[others])
        assert not torch.allclose(table[ROWS], first[ROWS])

    def test_the_last_round_is_taken_up_and_left_as_it_was(self):
        objective = PartialLabels(partial_loss("rc"))
        kept = begun(objective).memory.tensors[CONFIDENCES].roll(1, 0)
        memory, copy = Message({CONFIDENCES: kept}), kept.clone()
        work = begun(objective, memory=memory)
        batch = batch_of(work)
        assert torch.equal(work.scratch["weights"], kept)
        objective.loss(work, batch)
        objective.after_step(work, batch)
        assert torch.equal(kept, copy)  # a round that fails must find what there was before it
        assert not torch.equal(work.memory.tensors[CONFIDENCES], copy)

    @pytest.mark.parametrize("name", ["cc", "abs-gce", "uniform"])
    def test_losses_without_them_keep_nothing(self, name):
        objective = PartialLabels(partial_loss(name))
        work = begun(objective)
        objective.loss(work, batch_of(work))
        objective.after_step(work, batch_of(work))
        assert work.memory.is_empty()

    def test_renewing_moves_no_batch_norm_statistics(self):
        """Only the loss's own forward pass does."""
        changes = []
        for update_from in ("step", "forward"):
            objective = PartialLabels(partial_loss("rc"), update_from)
            work = begun(objective, network=small_network(batch_norm=True))
            work.model.train()
            objective.loss(work, batch_of(work))
            objective.after_step(work, batch_of(work))
            assert all(module.training for module in work.model.modules())
            changes.append(work.model.encoder[1].running_mean.clone())
        assert torch.equal(*changes)
        assert changes[0].abs().sum() > 0

    def test_training_finds_the_labels(self):
        """Wrong candidates are drawn at random, so similar samples with other sets say which one is right."""
        data = site("a", samples=60, view=SETS)
        drawn = torch.rand(60, 3, generator=torch.Generator().manual_seed(0)) < 0.4
        sets = drawn | torch.nn.functional.one_hot(data.train.truth, 3).bool()
        data = dataclasses.replace(data, train=dataclasses.replace(data.train, target=sets))
        work = work_for(data, small_network())
        train_locally(work, PartialLabels(partial_loss("calibrated")), SGD(0.9), TrainingSettings(epochs=30, batch=16))
        table = work.memory.tensors[CONFIDENCES]
        assert (table.argmax(-1) == data.train.truth).float().mean() > 0.9
        assert torch.allclose(table.sum(-1), torch.ones(60))
