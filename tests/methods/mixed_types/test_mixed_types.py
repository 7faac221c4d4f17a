"""FedMT's loss at a site: worked numbers and edge cases of docs/methods.md 6.2 and 6.10, its samples and its memory."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from fedaccord.errors import ConfigError, FedAccordError
from fedaccord.federation.pooled_correspondence import COUNTS, EXCHANGE, EXCHANGES, SCORES
from fedaccord.labels.correspondence import CORRESPONDENCE
from fedaccord.labels.views import Coarse
from fedaccord.messages.message import Message
from fedaccord.messages.names import SILENT
from fedaccord.methods.mixed_types.augment import Partners, mix_loss
from fedaccord.methods.mixed_types.objective import (
    LEARNED_LOGITS,
    MixedTypes,
    client_loss,
    count_names,
    logits_of_parts,
)
from fedaccord.methods.mixed_types.settings import FedMTSettings
from fedaccord.models.network import Network
from fedaccord.training.local import seeded, train_locally
from fedaccord.training.objectives import Proximal, Sum
from fedaccord.training.settings import TrainingSettings
from fedaccord.training.solvers import SGD
from fedaccord.training.work import Batch
from small_federation import SPACE, exact, pets_or_cattle, site, small_network, work_for

pytestmark = pytest.mark.usefixtures("one_thread")

SETTINGS = TrainingSettings(batch=8, epochs=2, lr=0.1)


class Given:
    """Partners that are told and not drawn."""

    def __init__(self, rows):
        self.rows = rows

    def take(self, count):
        assert count == len(self.rows)
        return self.rows


def mixed_types(source="declared", lambda2=1.0, **settings):
    return MixedTypes(FedMTSettings(lambda2=lambda2, **settings), source)


def taught_network(batch_norm=False):
    """A network that knows the three clouds of points well."""
    network, data = small_network(batch_norm), site("teacher", samples=90)
    work = work_for(data, network)
    with seeded(0):
        train_locally(work, mixed_types(threshold=0, project_on="all", lambda2=0), SGD(0.9), TrainingSettings(epochs=8))
    return network


def started(objective, data=None, network=None, **more):
    work = work_for(data or site("a", samples=40, view=pets_or_cattle()), network or taught_network(), **more)
    with seeded(1):
        objective.start(work)
    return work


def trained(objective, work):
    with seeded(1):
        return train_locally(work, objective, SGD(0.9), SETTINGS)


def log(*p):
    return torch.tensor([p]).log()


def test_example_2b():
    mixed = mix_loss(log(0.6, 0.3, 0.1), torch.tensor([0]), torch.tensor([2]), 0.7)
    fixed = nn.functional.cross_entropy(log(0.8, 0.1, 0.1), torch.tensor([0]))
    assert mixed.item() == pytest.approx(1.048353, abs=1e-6)
    assert fixed.item() == pytest.approx(0.223144, abs=1e-6)
    assert client_loss(torch.tensor(0.356675), fixed, mixed, 1.0, 1 / 16).item() == pytest.approx(0.436144, abs=1e-6)


@pytest.mark.parametrize("batch_norm", [False, True])
def test_parts_of_a_batch_have_the_logits_that_each_has_by_itself(batch_norm):
    network, data = small_network(batch_norm), site("a", samples=30)
    parts = list(data.train.x[:20].split([8, 5, 7]))
    seen = []
    network.encoder.register_forward_pre_hook(lambda _, given: seen.append(len(given[0])))
    together = logits_of_parts(network.train(), parts)
    assert seen == ([8, 5, 7] if batch_norm else [20])  # batch norm looks at a batch as a whole
    for logits, part in zip(together, parts, strict=True):
        assert torch.allclose(logits, network(part), atol=1e-6)


class TestWhichSamples:
    def test_only_confident_ones_train(self):
        work = started(mixed_types(threshold=0.9))
        p = torch.softmax(work.model(work.site.train.x), -1).amax(-1)
        assert work.rows.tolist() == (p > 0.9).nonzero().flatten().tolist()
        assert 0 < len(work.rows) < 40
        assert work.memory.numbers["figures/confident"] == len(work.rows) / 40

    def test_without_a_confident_sample_the_site_stays_silent_and_its_model_as_it_was(self):
        work = work_for(site("a", view=pets_or_cattle()), small_network())
        reply = trained(mixed_types(source="counts", threshold=0.999), work)
        assert SILENT in reply.words
        assert reply.tensors == {}
        assert work.memory.numbers["figures/confident"] == 0
        assert all(torch.equal(now, before) for now, before in zip(work.parameters, work.received, strict=True))

    def test_a_single_confident_sample_is_no_batch_for_batch_norm(self):
        for batch_norm, silent in ((True, True), (False, False)):
            network = small_network(batch_norm)
            data = site("a", samples=12, view=pets_or_cattle())
            top = torch.softmax(network.eval()(data.train.x), -1).amax(-1).detach().sort().values
            work = work_for(data, network)
            reply = trained(mixed_types(threshold=float((top[-1] + top[-2]) / 2)), work)
            assert (SILENT in reply.words) is silent

    def test_projected_on_all_it_never_stays_silent_and_pseudo_labels_still_want_confidence(self):
        work = work_for(site("a", samples=40, view=pets_or_cattle()), small_network())
        reply = trained(mixed_types(threshold=0.999, project_on="all"), work)
        assert SILENT not in reply.words
        assert reply.numbers["confident"] == 0
        alone = work_for(site("a", samples=40, view=pets_or_cattle()), small_network())
        trained(mixed_types(threshold=0.999, project_on="all", lambda2=0), alone)
        assert all(torch.equal(a, b) for a, b in zip(work.parameters, alone.parameters, strict=True))

    def test_samples_without_annotation_take_no_part(self):
        data = site("a", samples=40, view=pets_or_cattle())
        data.train.target[::2] = -1
        work = work_for(data, taught_network())
        work.rows = (data.train.target >= 0).nonzero().flatten()
        with seeded(1):
            mixed_types(threshold=0.5).start(work)
        assert (work.rows % 2 == 1).all()


class TestPseudoLabels:
    def test_the_posterior_never_contradicts_the_coarse_label(self):
        network = small_network()  # knows nothing, so its own guesses often do
        paper = started(mixed_types(threshold=0), network=network)
        posterior = started(mixed_types(threshold=0, pseudo_label="posterior"), network=network)
        target = paper.site.train.target
        groups = torch.tensor([0, 0, 1])
        assert not torch.equal(groups[paper.scratch["pseudo"]], target)
        assert torch.equal(groups[posterior.scratch["pseudo"]], target)

    def test_they_are_made_once_by_the_model_as_it_was_received(self):
        objective = mixed_types(threshold=0.0, augment="none")
        work = started(objective)
        data, rows = work.site.train, work.rows[:20]
        received = work.model(data.x[rows]).argmax(-1)
        with torch.no_grad():
            for parameter in work.model.head.parameters():
                parameter.neg_()
        changed = objective._augment_confident(work, Batch(rows, data.x[rows], data.target[rows]))
        assert not torch.equal(work.model(data.x[rows]).argmax(-1), received)
        assert torch.equal(changed.pseudo, received)


class TestMixing:
    def test_partners_are_handed_out_without_end_each_once_before_any_comes_again(self):
        partners = Partners(torch.arange(10, 17), torch.Generator().manual_seed(0))
        taken = [partners.take(count).tolist() for count in (3, 5, 4, 9)]
        assert [len(rows) for rows in taken] == [3, 5, 4, 9]
        flat = [row for rows in taken for row in rows]
        assert [sorted(flat[at : at + 7]) for at in (0, 7, 14)] == [[*range(10, 17)]] * 3
        assert flat[:7] != flat[7:14]

    def test_every_confident_sample_of_a_batch_is_mixed_also_where_others_train_too(self):
        objective = mixed_types(threshold=0.9, project_on="all", augment="none")
        work = started(objective, site("a", samples=100, view=pets_or_cattle()))
        data = work.site.train
        assert 0 < work.scratch["confident"] < len(work.rows)
        for rows in work.rows.split(24):
            changed = objective._augment_confident(work, Batch(rows, data.x[rows], data.target[rows]))
            assert len(changed.mixed) == len(changed.partners) == len(changed.strong) > 0

    def test_partners_are_drawn_from_all_samples_and_as_many_as_are_confident(self):
        work = started(mixed_types(threshold=0.9), site("a", samples=100, view=pets_or_cattle()))
        pool = work.scratch["mix"].pool
        assert len(pool) == work.scratch["confident"]
        assert not work.scratch["sure"][pool].all()
        assert work.scratch["sure"][work.rows].all()


class TestLoss:
    def test_each_weight_adds_its_term(self):
        x = site("a", samples=40, view=pets_or_cattle()).train
        losses = {}
        for lambda1, lambda2 in ((0, 1), (0, 3), (2, 1)):
            objective = mixed_types(threshold=0.2, lambda1=lambda1, lambda2=lambda2, augment="none")
            work = started(objective)
            rows = work.rows[:8]
            with seeded(2):
                losses[lambda1, lambda2] = objective.loss(work, Batch(rows, x.x[rows], x.target[rows])).item()
        z = work.model(x.x[rows])
        projected = work.view.mean_nll(z, x.target[rows]).item()
        fixed = nn.functional.cross_entropy(z, work.scratch["pseudo"][rows]).item()
        assert losses[0, 1] == pytest.approx(projected + fixed, abs=1e-5)
        assert losses[0, 3] == pytest.approx(projected + 3 * fixed, abs=1e-5)
        assert losses[2, 1] > losses[0, 1] + 0.01

    def test_mixed_samples_are_nearer_to_the_one_whose_label_counts_more(self):
        data = site("a", samples=40, view=pets_or_cattle()).train
        objective = mixed_types(threshold=0.2, augment="none")
        work = started(objective)
        rows = work.rows[:8]
        work.scratch["mix"] = Given(work.rows[8:16])
        with seeded(4):
            changed = objective._augment_confident(work, Batch(rows, data.x[rows], data.target[rows]))
        share, pseudo = changed.share, work.scratch["pseudo"]
        expected = share * data.x[rows] + (1 - share) * data.x[work.rows[8:16]]
        assert torch.allclose(changed.mixed, expected, atol=1e-6)
        assert abs(share - 0.5) > 0.05
        assert torch.equal(changed.partners, pseudo[work.rows[8:16]])
        z = work.model(expected)
        mixed = mix_loss(z, pseudo[rows], pseudo[work.rows[8:16]], share)
        z = work.model(data.x[rows])
        fixed = nn.functional.cross_entropy(z, pseudo[rows])
        with seeded(4):
            loss = objective.loss(work, Batch(rows, data.x[rows], data.target[rows]))
        wanted = client_loss(work.view.mean_nll(z, data.target[rows]), fixed, mixed, 1.0, 1.0)
        assert loss.item() == pytest.approx(wanted.item(), abs=1e-5)

    def test_where_all_coarse_labels_count_few_pseudo_labels_weigh_as_few(self):
        objective = mixed_types(threshold=0.2, project_on="all", lambda1=0, lambda2=3, augment="none")
        work = started(objective)
        data, rows = work.site.train, torch.arange(8)
        work.scratch["sure"] = torch.arange(40) < 2  # two of the batch's eight
        z = work.model(data.x[rows])
        fixed = nn.functional.cross_entropy(z[:2], work.scratch["pseudo"][:2])
        expected = work.view.mean_nll(z, data.target[rows]) + 3 * 2 / 8 * fixed
        batch = Batch(rows, data.x[rows], data.target[rows])
        with seeded(2):
            assert objective.loss(work, batch).item() == pytest.approx(expected.item(), abs=1e-5)
            drawn = objective.augment(work, batch)
        together = objective.row_losses(work.view, work.model(drawn.x), drawn).sum()
        assert together.item() == pytest.approx(expected.item(), abs=1e-5)

    def test_images_are_shifted_before_their_coarse_labels_are_learned_and_before_they_are_mixed(self):
        objective = mixed_types(threshold=0.0)
        data = site("a", samples=24, view=pets_or_cattle())
        data = replace(data, train=replace(data.train, x=(2 * torch.rand(1, 1, 16, 16) - 1).repeat(24, 1, 1, 1)))
        network = Network(nn.Sequential(nn.Flatten(), nn.Linear(256, 6)), nn.Linear(6, 3))
        seen = []
        network.encoder.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
        work = started(objective, data, network)
        seen.clear()
        rows = torch.arange(8)
        with seeded(2):
            objective.loss(work, Batch(rows, data.train.x[rows], data.train.target[rows]))
        weak, strong, blend = torch.cat(seen).split(8)
        for changed in (weak, strong, blend):  # all samples are one picture, which mixed with itself is itself
            assert not torch.allclose(changed, data.train.x[rows], atol=1e-3)
        pixels = torch.cat([data.train.x[0].flatten(), torch.zeros(1)])
        assert (weak.flatten()[:, None] - pixels).abs().amin(1).max() < 1e-4  # moved, nothing else

    def test_semifl_does_not_look_at_coarse_labels(self):
        models = []
        for flipped in (False, True):
            data = site("a", samples=40, view=pets_or_cattle())
            if flipped:
                data.train.target.copy_(1 - data.train.target)
            work = work_for(data, taught_network())
            trained(mixed_types(source=None, threshold=0.5), work)
            models.append(torch.cat([p.detach().flatten() for p in work.parameters]))
        assert torch.equal(*models)

    def test_an_exact_site_is_taught_its_own_labels(self):
        data = site("a", samples=40, view=exact())
        data.train.target.copy_((data.train.target + 1) % 3)  # not what the model thinks
        work = work_for(data, taught_network())
        for _ in range(4):
            trained(mixed_types(source="counts", threshold=0.3, pseudo_label="posterior"), work)
        assert (work.model(data.train.x).argmax(-1) == data.train.target).float().mean() > 0.8
        assert CORRESPONDENCE not in work.memory.tensors


class TestMatrix:
    TRUTH = pets_or_cattle().matrix

    def test_counts_come_close_and_are_kept_with_their_error_and_change(self):
        work = started(mixed_types(source="counts", threshold=0.5))
        found = work.memory.tensors[CORRESPONDENCE]
        assert work.memory.numbers["figures/matrix_error"] == pytest.approx(float((found - self.TRUTH).norm()))
        assert work.memory.numbers["figures/matrix_error"] < 0.5
        assert "figures/matrix_change" not in work.memory.numbers
        again = started(mixed_types(source="counts", threshold=0.5), memory=work.memory)
        assert again.memory.numbers["figures/matrix_change"] == 0
        assert torch.equal(again.view.matrix, found)

    def test_the_declared_matrix_is_not_looked_at(self):
        other = Coarse(SPACE, {"pet": ["cow"], "cattle": ["cat", "dog"]})  # wrong, on the same annotations
        data, lying = site("a", samples=40, view=pets_or_cattle()), site("a", samples=40, view=pets_or_cattle())
        object.__setattr__(lying, "view", other)
        results = []
        for one in (data, lying):
            work = work_for(one, taught_network())
            work.view = one.view.with_matrix(None)
            trained(mixed_types(source="counts", threshold=0.5), work)
            results.append(torch.cat([p.detach().flatten() for p in work.parameters]))
        assert torch.equal(*results)

    def test_a_matrix_in_the_brief_is_used(self):
        told = torch.tensor([[0.9, 0.9, 0.2], [0.1, 0.1, 0.8]])
        work = started(mixed_types(source="brief", threshold=0.5), brief=Message({CORRESPONDENCE: told}))
        assert torch.equal(work.view.matrix, told)
        assert torch.equal(work.memory.tensors[CORRESPONDENCE], told)

    def test_a_learnable_matrix_learns_is_kept_and_goes_on(self):
        work = work_for(site("a", samples=40, view=pets_or_cattle()), taught_network())
        trained(mixed_types(source="learnable", threshold=0.5), work)
        first = work.memory.tensors[CORRESPONDENCE]
        errors = [work.memory.numbers["figures/matrix_error"]]
        assert torch.allclose(first.sum(0), torch.ones(3))
        for _ in range(3):
            free = work.memory.tensors[LEARNED_LOGITS]
            work = work_for(work.site, taught_network(), memory=work.memory)
            reply = trained(mixed_types(source="learnable", threshold=0.5), work)
            assert not torch.equal(work.memory.tensors[LEARNED_LOGITS], free)
            errors.append(work.memory.numbers["figures/matrix_error"])
        assert errors == sorted(errors, reverse=True)
        assert CORRESPONDENCE not in reply.tensors

    def test_a_learnable_matrix_starts_from_the_mean_it_is_told_and_sends_its_own(self):
        told = torch.tensor([[0.9, 0.9, 0.2], [0.1, 0.1, 0.8]])
        objective = mixed_types(source="learnable", threshold=0.5, correspondence="learnable-average")
        work = started(objective, brief=Message({CORRESPONDENCE: told}))
        assert torch.allclose(torch.softmax(work.extra_parameters[0], 0), told, atol=1e-6)
        work = work_for(work.site, taught_network(), brief=Message({CORRESPONDENCE: told}))
        reply = trained(objective, work)
        assert reply.tensors[CORRESPONDENCE].shape == (2, 3)
        assert not torch.equal(reply.tensors[CORRESPONDENCE], told)

    def test_a_pull_towards_the_model_leaves_the_matrix_free(self):
        moved = []
        for mu in (0.0, 1e4):
            work = work_for(site("a", samples=40, view=pets_or_cattle()), taught_network(), lr=1e-5)
            trained(Sum((mixed_types(source="learnable", threshold=0.5), Proximal(mu))), work)
            moved.append(work.memory.tensors[LEARNED_LOGITS])
        assert torch.allclose(moved[0], moved[1], atol=1e-6)

    def test_names_alone_cannot_be_known(self):
        data = site("a", samples=40, view=pets_or_cattle())
        object.__setattr__(data, "view", Coarse(SPACE, names=["pet", "cattle"]))
        with pytest.raises(ConfigError, match=r"site 'a' does not know what .*correspondence = \"estimated\""):
            started(mixed_types(threshold=0.5), data)


class TestCounting:
    def work(self, **more):
        return work_for(site("a", samples=40, view=pets_or_cattle()), taught_network(), **more)

    def test_under_a_told_matrix_every_annotated_sample_is_counted_once(self):
        asked = self.work(brief=Message({CORRESPONDENCE: torch.full((2, 3), 0.5)}))
        counts = count_names(asked, FedMTSettings()).tensors[COUNTS]
        target = self.work().site.train.target
        assert counts.sum(1).tolist() == pytest.approx(torch.bincount(target).tolist(), rel=1e-5)

    def test_otherwise_it_is_the_sites_own_estimate_with_zeros_where_it_has_none(self):
        alone = count_names(self.work(), FedMTSettings(threshold=0.9)).tensors[COUNTS]
        assert all(total == pytest.approx(1) or total == 0 for total in alone.sum(0).tolist())
        assert count_names(self.work(), FedMTSettings(threshold=0.99999)).tensors[COUNTS].sum() == 0

    def test_a_later_exchange_uses_the_scores_of_its_own_round_and_no_other(self):
        told = {CORRESPONDENCE: torch.full((2, 3), 0.5)}
        first = self.work(brief=Message(told, {EXCHANGE: 0, EXCHANGES: 2}))
        counts = count_names(first, FedMTSettings()).tensors[COUNTS]
        later = self.work(brief=Message(told, {EXCHANGE: 1, EXCHANGES: 2}), memory=first.memory)
        with torch.no_grad():
            later.model.head.weight.zero_()
        assert torch.equal(count_names(later, FedMTSettings()).tensors[COUNTS], counts)
        assert later.memory.is_empty()
        late = Message(told, {EXCHANGE: 1, EXCHANGES: 2})
        stale = self.work(round_=2, brief=late, memory=Message(numbers={SCORES: 1}))
        with pytest.raises(FedAccordError, match="site 'a' was asked to count without the model of round 2"):
            count_names(stale, FedMTSettings())
