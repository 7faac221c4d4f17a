"""The alignment of correlations at a site: worked numbers of docs/methods.md 7.3, blocks, masks and gradients."""

import math

import pytest
import torch
from torch import tensor

from fedaccord.data.site_data import Samples, SiteData
from fedaccord.labels.correlation import pair_sums, phi_of_scores
from fedaccord.labels.views import Tags
from fedaccord.labels.views.likelihoods import PRIOR, relative_offset
from fedaccord.messages.message import Message
from fedaccord.methods.tags.settings import FedHarmonySettings
from fedaccord.methods.tags.site import (
    ALIGNMENT_SHARE,
    BLOCKS,
    CORRELATION,
    COUNTS,
    FREQUENCIES,
    PAIRS,
    TAUGHT,
    TEACHER,
    Blocks,
    Harmony,
    RunningPhi,
    alignment_loss,
    remember_teacher,
    send_correlations,
    send_tag_counts,
    tag_entropy,
)
from fedaccord.training.work import Batch
from small_federation import SPACE, site, small_network, work_for

STUDENT = tensor([[0.38, 0.26, -0.316392], [0.26, 0.26, -0.316392], [-0.316392, -0.316392, 0.395833]])
OTHERS = tensor([[0.0, 0.5, 0.1], [0.5, 0.0, -0.2], [0.1, -0.2, 0.0]])


def distance(ids, per_block=True):
    blocks = Blocks(tensor(ids))
    return float(alignment_loss(blocks.inside(STUDENT), blocks.inside(OTHERS), blocks.pairs, per_block))


class TestAlignment:
    def test_worked_example(self):
        assert distance([0, 0, 0]) == pytest.approx(0.081510, abs=1e-6)
        assert distance([0, 0, 1]) == pytest.approx(0.057600, abs=1e-6)

    def test_tags_of_their_own_cost_nothing(self):
        assert distance([0, 1, 2]) == 0

    def test_over_all_pairs_blocks_of_different_size_weigh_by_their_pairs(self):
        def over(ids, per_block):
            generator = torch.Generator().manual_seed(0)
            student, teacher = torch.rand(2, 5, 5, generator=generator)
            blocks = Blocks(tensor(ids))
            return (
                float(alignment_loss(blocks.inside(student), blocks.inside(teacher), blocks.pairs, per_block)),
                student,
                teacher,
            )

        mean, student, teacher = over([0, 0, 0, 1, 1], per_block=False)
        squared = (student - teacher).square()
        inside = [(c, d) for group in ((0, 1, 2), (3, 4)) for c in group for d in group if c != d]
        assert mean == pytest.approx(sum(float(squared[c, d]) for c, d in inside) / len(inside))
        assert over([0, 0, 0, 1, 1], per_block=True)[0] != pytest.approx(mean)

    def test_blocks_hold_what_the_whole_matrix_does(self):
        ids = tensor([2, 0, 2, 1, 0, 0])
        blocks, matrix = Blocks(ids), torch.rand(6, 6)
        inside = blocks.inside(matrix)
        for row in range(len(blocks.index)):
            members = blocks.index[row][blocks.filled[row]]
            assert torch.equal(inside[row][: len(members), : len(members)], matrix[members][:, members])
        assert int(blocks.filled.sum()) == 5  # the tag alone in its block has no pair


class TestRunningPhi:
    @pytest.mark.parametrize("share", [1.0, 0.6])
    def test_it_begins_as_the_whole_training_part_and_follows_batches(self, share):
        generator = torch.Generator().manual_seed(1)
        scores = torch.rand(40, 4, generator=generator)
        counted = torch.rand(40, 4, generator=generator) <= share
        blocks = Blocks(torch.zeros(4, dtype=torch.int64))
        running = RunningPhi(blocks.index, scores, counted, beta=1.0)
        found, seen = running.update(scores[:20], counted[:20])
        expected, pairs = phi_of_scores(scores[:20], counted[:20])
        apart = ~torch.eye(4, dtype=torch.bool)
        assert pairs[apart].all()
        torch.testing.assert_close(found[0][apart], expected.float()[apart], rtol=1e-4, atol=1e-5)
        slow = RunningPhi(blocks.index, scores, counted, beta=1e-6)
        torch.testing.assert_close(
            slow.update(scores[:20], counted[:20])[0][0][apart],
            phi_of_scores(scores, counted)[0].float()[apart],
            rtol=1e-3,
            atol=1e-4,
        )
        assert seen.all()

    def test_a_pair_that_is_not_in_the_batch_stays_as_it_was_and_has_no_slope(self):
        scores, counted = torch.rand(10, 2), torch.ones(10, 2, dtype=torch.bool)
        counted[5:, 1] = False
        running = RunningPhi(Blocks(tensor([0, 0])).index, scores, counted, beta=0.5)
        before = running.product.clone()
        late = scores[5:].clone().requires_grad_()
        found, _ = running.update(late, counted[5:])
        torch.testing.assert_close(running.product[0, 0, 1], before[0, 0, 1])
        assert not torch.autograd.grad(found[0, 0, 1], late)[0].any()


def tag_site(samples=30, known=None, missing=0.0):
    made = site("a", samples=samples, view=Tags(SPACE, known))
    target = made.train.target.clone()
    target[torch.rand(target.shape, generator=torch.Generator().manual_seed(3)) < missing] = -1
    return SiteData("a", made.view, Samples(made.train.x, target), made.test)


def lesson(known=3, **more):
    apart = ~torch.eye(known, dtype=torch.bool)
    return Message({TEACHER: torch.full((known, known), 0.5), TAUGHT: apart, **more})


def begun(objective, data, brief=None, memory=None, network=None):
    work = work_for(data, network or small_network(), brief=brief, memory=memory)
    objective.start(work)
    return work


def value(loss):
    return loss if isinstance(loss, float) else loss.item()


def whole_batch(data):
    return Batch(torch.arange(len(data.train)), data.train.x, data.train.target)


class TestHarmony:
    @pytest.mark.parametrize("missing", [0.0, 0.3])
    def test_its_gradient_is_that_of_the_terms_written_down(self, missing):
        data, strength = tag_site(missing=missing), 3.0
        objective = Harmony(FedHarmonySettings(strength=strength, beta=1.0, block_loss="mean"))
        work = begun(objective, data, lesson())
        batch = whole_batch(data)
        loss = objective.loss(work, batch)
        ours = torch.autograd.grad(loss, work.parameters)

        network = small_network()
        logits = network(batch.x)
        counted = batch.target != -1
        scores = torch.sigmoid(logits)
        pairs = [(c, d) for c in range(3) for d in range(3) if c != d]
        apart = torch.zeros(())
        for c, d in pairs:
            both = counted[:, c] & counted[:, d]
            p, q = scores[both, c].mean(), scores[both, d].mean()
            phi = ((scores[both, c] * scores[both, d]).mean() - p * q) / ((p * (1 - p) * q * (1 - q)).sqrt() + 1e-8)
            apart = apart + (phi - 0.5) ** 2 / len(pairs)
        tags = float(counted.sum()) / len(batch.x)
        written = data.view.mean_nll(logits, batch.target) + strength * tags * apart
        assert loss.item() == pytest.approx(written.item(), rel=1e-5)
        theirs = torch.autograd.grad(written, list(network.parameters()))
        for mine, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-5)

    def test_against_frequencies_rare_tags_are_aligned_less(self):
        data, batch = tag_site(), whole_batch(tag_site())
        plain = value(data.view.mean_nll(small_network()(batch.x), batch.target))
        terms = []
        for objective in (Harmony(), Harmony(FedHarmonySettings(strength_against="frequencies"))):
            terms.append(value(objective.loss(begun(objective, data, lesson()), batch)) - plain)
        entropy = tag_entropy(data.train.target)
        assert terms[1] / terms[0] == pytest.approx(float(entropy.mean()), rel=1e-4)

    def test_without_a_teacher_or_strength_it_is_the_likelihood(self):
        data = tag_site()
        batch = whole_batch(data)
        plain = value(data.view.mean_nll(small_network()(batch.x), batch.target))
        for objective, brief in ((Harmony(), None), (Harmony(FedHarmonySettings(strength=0.0)), lesson())):
            assert value(objective.loss(begun(objective, data, brief), batch)) == pytest.approx(plain)

    def test_pairs_that_the_others_say_nothing_of_do_not_count(self):
        data = tag_site()
        nothing = lesson()
        nothing.tensors[TAUGHT] = torch.zeros(3, 3, dtype=torch.bool)
        objective, batch = Harmony(), whole_batch(data)
        plain = value(data.view.mean_nll(small_network()(batch.x), batch.target))
        assert value(objective.loss(begun(objective, data, nothing), batch)) == pytest.approx(plain)

    def test_blocks_leave_the_pairs_between_them_alone(self):
        data, batch = tag_site(), whole_batch(tag_site())
        whole = Harmony()
        blocks = lesson()
        blocks.tensors[BLOCKS] = tensor([0, 0, 1])
        pair = lesson()
        pair.tensors[TAUGHT] = tensor([[0, 1, 0], [1, 0, 0], [0, 0, 0]]).bool()
        one, other = (value(whole.loss(begun(whole, data, told), batch)) for told in (blocks, pair))
        assert one == pytest.approx(other)

    def test_it_learns_the_teachers_correlations(self):
        data, objective = tag_site(60), Harmony(FedHarmonySettings(strength=30.0))
        told = lesson()
        work = begun(objective, data, told)
        before = phi_of_scores(torch.sigmoid(small_network()(data.train.x)).detach())[0]
        for _ in range(150):
            gradients = torch.autograd.grad(objective.loss(work, whole_batch(data)), work.parameters)
            with torch.no_grad():
                for parameter, gradient in zip(work.parameters, gradients, strict=True):
                    parameter -= 0.02 * gradient
        reply = Message()
        objective.finish(work, reply)
        apart = ~torch.eye(3, dtype=torch.bool)

        def far(found):
            return float((found.float() - told.tensors[TEACHER])[apart].square().mean())

        assert far(reply.tensors[CORRELATION]) < 0.5 * far(before)
        assert 0 < reply.numbers[ALIGNMENT_SHARE] < 1

    def test_a_site_tells_of_and_is_taught_only_the_tags_it_knows(self):
        data = tag_site(known=["cat", "cow"])
        objective = Harmony()
        work = begun(objective, data, lesson(2))
        before = work.model.head.weight[1].clone()
        gradients = torch.autograd.grad(objective.loss(work, whole_batch(data)), list(work.model.head.parameters()))
        assert not gradients[0][1].any()
        reply = Message()
        objective.finish(work, reply)
        assert reply.tensors[CORRELATION].shape == reply.tensors[PAIRS].shape == (2, 2)
        assert torch.equal(work.model.head.weight[1], before)
        counts = send_tag_counts(work, 0.0).tensors[COUNTS]
        assert counts.shape == (3, 2, 2)
        assert counts[0, 0, 0] == 30

    def test_noise_hides_what_leaves_and_is_not_drawn_from_the_runs_seed(self):
        data = tag_site(200)
        for task, name in ((send_correlations, CORRELATION), (send_tag_counts, COUNTS)):
            plain = task(work_for(data, small_network()), 0.0).tensors[name]
            noisy = [task(work_for(data, small_network()), 0.02).tensors[name] for _ in range(2)]
            assert torch.isfinite(noisy[0]).all()
            assert not torch.equal(noisy[0], plain)
            assert not torch.equal(noisy[0], noisy[1])

    def test_one_row_adds_little_to_sums_by_a_given_model_and_more_to_those_by_one_trained_on_it(self):
        data = tag_site(6)
        x = torch.cat([data.train.x, torch.full((1, 4), 3.0)])
        target = torch.cat([data.train.target, tensor([[1, 1, 1]], dtype=torch.int8)])

        def sums(rows, trained):
            model = small_network()
            weights = list(model.parameters())
            for _ in range(5 if trained else 0):
                slopes = torch.autograd.grad(data.view.mean_nll(model(x[:rows]), target[:rows]), weights)
                for weight, slope in zip(weights, slopes, strict=True):
                    weight.data -= 5 * slope
            return pair_sums(torch.sigmoid(model(x[:rows])).detach(), target[:rows] != -1)

        def moved(trained):
            change = sums(7, trained) - sums(6, trained)
            return float(torch.cat([change.rows.triu(), change.first, change.both.triu()]).norm())

        bound = math.sqrt(3 * 3 + 3 * 4)  # what `noisy_sums` takes as one row's part
        assert moved(trained=False) <= bound < moved(trained=True)

    def test_the_prior_is_used_when_a_site_predicts_and_not_when_it_trains(self):
        data = tag_site()
        memory = Message({FREQUENCIES: tensor([0.5, 0.1, 0.9]), PRIOR: torch.full((3,), 9.0)})
        objective = Harmony(FedHarmonySettings(site_prior=True))
        work = work_for(data, small_network(), memory=memory)
        work.view = work.view.with_offset(memory.tensors[PRIOR])
        objective.start(work)
        plain = data.view.mean_nll(small_network()(data.train.x), data.train.target)
        assert value(objective.loss(work, whole_batch(data))) == pytest.approx(value(plain))
        torch.testing.assert_close(
            work.memory.tensors[PRIOR], relative_offset(data.train.target, tensor([0.5, 0.1, 0.9]))
        )

    def test_what_is_remembered_is_used_later(self):
        data = tag_site()
        work = work_for(data, small_network(), brief=lesson())
        assert remember_teacher(work).is_empty()
        objective, batch = Harmony(), whole_batch(data)
        told, kept = begun(objective, data, lesson()), begun(objective, data, memory=work.memory)
        assert value(objective.loss(told, batch)) == pytest.approx(value(objective.loss(kept, batch)))


def test_the_entropy_of_tags_by_hand():
    target = tensor([[1, 0, -1], [1, 0, -1], [0, 0, -1], [0, 0, -1]], dtype=torch.int8)
    rare = 1 / 6
    by_hand = -(rare * math.log(rare) + (1 - rare) * math.log(1 - rare))
    assert tag_entropy(target).tolist() == pytest.approx([math.log(2), by_hand, math.log(2)])


def test_the_relative_offset_by_hand():
    target = tensor([[1, -1], [1, -1], [0, -1], [1, -1]], dtype=torch.int8)
    found = relative_offset(target, tensor([0.25, 0.4]), pseudo_count=4.0)
    own = (3 + 4 * 0.25) / (4 + 4)
    assert found.tolist() == pytest.approx([torch.logit(tensor([own, 0.25])).diff().neg().item(), 0.0], abs=1e-6)
