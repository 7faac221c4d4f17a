"""The losses of learning from candidate sets: worked numbers of docs/methods.md 5.1, gradients, and edge cases."""

import itertools
import math

import pytest
import torch

from fedaccord.training.candidate_losses import (
    SMALLEST,
    TERMS,
    activation_target,
    bounded_cross_entropy,
    confidences,
    leverage_start,
    leverage_weights,
    leveraged_cross_entropy,
    leveraged_sigmoid,
    partial_loss,
    set_likelihood,
    triplet,
    uniform_weights,
    weighted_cross_entropy,
)

pytestmark = pytest.mark.usefixtures("one_thread")

NAMES = ["cc", "rc", "lw", "cavl", "abs-gce", "uniform", "calibrated"]
Z = torch.tensor([[2.0, 1.0, 0.0, -1.0]])
SETS = torch.tensor([[True, False, True, False]])
ALL = torch.ones(4, dtype=torch.bool)
HALF = uniform_weights(SETS)
NONE = float("-inf")


def rows(*sets, labels=4):
    marks = torch.zeros(len(sets), labels, dtype=torch.bool)
    for row, chosen in enumerate(sets):
        marks[row, list(chosen)] = True
    return marks


def outside_penalty(z, sets):
    return triplet(z, sets, uniform_weights(sets), terms=("nc",))


def close(value, *expected):
    return value.flatten().tolist() == pytest.approx(list(expected), abs=1e-6)


class TestWorkedNumbers:
    def test_the_three_terms(self):
        assert close(torch.softmax(Z, -1), 0.643914, 0.236883, 0.087144, 0.032059)
        assert close(set_likelihood(Z, SETS), 0.313262)
        assert close(weighted_cross_entropy(Z, SETS, HALF), 1.440190)
        assert close(outside_penalty(Z, SETS), 0.270344)
        assert close(triplet(Z, SETS, HALF), 2.023795)

    def test_the_confidences(self):
        alpha = confidences(Z, SETS)
        assert close(alpha, 0.880797, 0, 0.119203, 0)
        assert close(weighted_cross_entropy(Z, SETS, alpha), 0.678596)

    def test_lw(self):
        first, later = leverage_start(SETS, ALL), leverage_weights(Z, SETS)
        assert close(first, 0.5, 0.5, 0.5, 0.5)
        assert close(leveraged_sigmoid(Z, SETS, first, 0.0), 0.309601)
        assert close(leveraged_sigmoid(Z, SETS, first) - leveraged_sigmoid(Z, SETS, first, 0.0), 0.5)
        assert close(leveraged_sigmoid(Z, SETS, later, 0.0), 0.164595)
        assert close(leveraged_sigmoid(Z, SETS, later), 0.840568)
        assert close(leveraged_sigmoid(Z, SETS, later, 2.0), 1.516541)
        assert close(leveraged_cross_entropy(Z, SETS, later, 0.0), 0.678596)
        assert close(leveraged_cross_entropy(Z, SETS, later), 0.678596 + 0.242002)

    def test_the_other_losses(self):
        assert close(bounded_cross_entropy(Z, SETS), 0.774270)
        each = [bounded_cross_entropy(Z, rows([j])).item() for j in range(4)]
        assert each == pytest.approx([0.378832, 0.907286, 1.169709, 1.300024], abs=1e-6)
        assert activation_target(Z, SETS).tolist() == [[1, 0, 0, 0]]

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("cc", 0.313262),
            ("rc", 1.440190),
            ("uniform", 1.440190),
            ("abs-gce", 0.774270),
            ("lw", 0.809601),
            ("cavl", 1.440190),
            ("calibrated", 2.023795),
        ],
    )
    def test_the_first_pass_by_name(self, name, value):
        chosen = partial_loss(name)
        assert close(chosen.loss(Z, SETS, chosen.initial_weights(SETS, ALL)), value)

    def test_a_candidate_with_a_negative_activation_is_still_the_target_in_5_d(self):
        z = torch.tensor([[0.5, 0.3, -2.0, 0.1]])
        assert activation_target(z, rows([2, 3])).argmax(-1).item() == 3
        assert activation_target(z, rows([2])).argmax(-1).item() == 2


class TestParameters:
    def test_beta_and_form_reach_lw(self):
        weights = leverage_weights(Z, SETS)
        assert close(partial_loss("lw", beta=2.0).loss(Z, SETS, weights), 1.516541)
        assert close(partial_loss("lw", form="cross-entropy").loss(Z, SETS, weights), 0.920598)

    def test_q_reaches_abs_gce(self):
        p = torch.softmax(Z, -1)[0]
        expected = sum((1 - p[j].item() ** 0.3) / 0.3 for j in (0, 2)) / 2
        assert close(partial_loss("abs-gce", q=0.3).loss(Z, SETS, HALF), expected)

    @pytest.mark.parametrize("terms", [t for k in (1, 2, 3) for t in itertools.combinations(TERMS, k)])
    def test_any_terms_with_their_weights(self, terms):
        value = {"s": 0.313262, "pc": 1.440190, "nc": 0.270344}
        lambdas = {"s": 0.5, "pc": 2.0, "nc": 3.0}
        chosen = partial_loss("calibrated", terms=terms, lambdas=lambdas)
        expected = sum(lambdas[term] * value[term] for term in terms)
        assert chosen.loss(Z, SETS, HALF).item() == pytest.approx(expected, abs=1e-5)

    def test_confidences_are_renewed_only_where_they_are_used(self):
        renewing = {name for name in NAMES if partial_loss(name).update_weights is not None}
        assert renewing == {"rc", "lw", "cavl", "calibrated"}
        assert partial_loss("calibrated", terms=("s", "nc")).update_weights is None


def double(samples=5, labels=6, seed=3):
    generator = torch.Generator().manual_seed(seed)
    z = 2 * torch.randn(samples, labels, dtype=torch.float64, generator=generator)
    sets = torch.rand(samples, labels, generator=generator) < 0.4
    sets[:, 0] = True
    sets[:, 1] = False
    return z.requires_grad_(), sets


class TestGradients:
    @pytest.mark.parametrize("name", [*NAMES, "lw cross-entropy", *(" ".join(["calibrated", t]) for t in TERMS)])
    @pytest.mark.parametrize("some_unknown", [False, True])
    def test_they_are_those_of_the_loss(self, name, some_unknown):
        z, sets = double()
        kind, _, more = name.partition(" ")
        options = {"terms": (more,)} if kind == "calibrated" and more else {"form": more} if more else {}
        chosen = partial_loss(kind, **options)
        offset = torch.zeros(6, dtype=torch.float64)
        if some_unknown:
            offset[5] = NONE
            sets[:, 5] = False
        known = torch.isfinite(offset)
        weights = (chosen.update_weights or (lambda z, sets: chosen.initial_weights(sets, known)))(
            z.detach() + offset, sets
        )
        assert torch.autograd.gradcheck(lambda logits: chosen.loss(logits + offset, sets, weights), (z,))


class TestEdges:
    def test_a_set_of_all_labels_teaches_nothing(self):
        every = rows(range(4))
        assert outside_penalty(Z, every).item() == 0
        assert set_likelihood(Z, every).item() == 0
        weights = leverage_weights(Z, every)
        assert torch.allclose(weights, torch.softmax(Z, -1))
        assert close(leveraged_sigmoid(Z, every, weights, 5.0), leveraged_sigmoid(Z, every, weights, 0.0).item())
        assert leverage_start(every, ALL).tolist() == [[0.25] * 4]
        assert finite_gradients("calibrated", Z, every)

    def test_a_set_of_one_is_an_exact_label(self):
        one = rows([1])
        entropy = torch.nn.functional.cross_entropy(Z, torch.tensor([1])).item()
        assert confidences(Z, one).tolist() == [[0, 1, 0, 0]]
        for name in ("cc", "rc", "uniform", "cavl"):
            chosen = partial_loss(name)
            assert close(chosen.loss(Z, one, chosen.initial_weights(one, ALL)), entropy)

    @pytest.mark.parametrize("name", NAMES)
    def test_candidates_that_the_model_rules_out(self, name):
        # exp(-300) is 0 in float32, and so would be the sum over the candidates outside log space.
        z = torch.tensor([[300.0, 0.0, -1.0, -2.0], [1e30, 0.0, -1.0, -2.0]])
        sets = rows([1, 2], [1, 2])
        assert torch.isfinite(partial_loss(name).loss(z, sets, uniform_weights(sets))).all()
        assert finite_gradients(name, z, sets)
        assert close(confidences(z, sets)[0], 0, 0.731059, 0.268941, 0)

    def test_the_penalty_outside_the_set_has_a_ceiling(self):
        sure = torch.tensor([[300.0, 0.0, 0.0, 0.0]])
        assert close(outside_penalty(sure, rows([1])), -math.log(SMALLEST))
        assert finite_gradients("calibrated", sure, rows([1]))

    @pytest.mark.parametrize("name", NAMES)
    def test_labels_that_are_not_known_have_no_part(self, name):
        """As if they were not there, whatever their logits."""
        known = torch.tensor([True, True, True, False])
        chosen, sets = partial_loss(name), rows([0, 2])
        z = (Z + torch.tensor([0, 0, 0, 99.0])).masked_fill(~known, NONE)
        few, few_sets = Z[:, :3], sets[:, :3]
        first = chosen.initial_weights(sets, known)
        assert torch.allclose(first[:, :3], chosen.initial_weights(few_sets, known[:3]))
        assert chosen.loss(z, sets, first).item() == pytest.approx(
            chosen.loss(few, few_sets, first[:, :3]).item(), abs=1e-6
        )
        if chosen.update_weights is not None:
            renewed = chosen.update_weights(z, sets)
            assert renewed[0, 3] == 0
            assert torch.allclose(renewed[:, :3], chosen.update_weights(few, few_sets))
        assert finite_gradients(name, z, sets)

    @pytest.mark.parametrize("name", NAMES)
    def test_a_set_of_all_known_labels(self, name):
        z = Z.masked_fill(torch.tensor([False, False, False, True]), NONE)
        assert finite_gradients(name, z, rows([0, 1, 2]))
        assert outside_penalty(z, rows([0, 1, 2])).item() == 0
        assert leverage_weights(z, rows([0, 1, 2]))[0, 3] == 0


def finite_gradients(name, z, sets):
    chosen = partial_loss(name)
    logits = z.clamp(min=-50).clone().requires_grad_()
    offset = torch.zeros_like(z).masked_fill(~torch.isfinite(z), NONE)
    weights = chosen.initial_weights(sets, torch.isfinite(z[0]))
    if chosen.update_weights is not None:
        weights = chosen.update_weights(z, sets)
    loss = chosen.loss(logits + offset, sets, weights).sum()
    (gradient,) = torch.autograd.grad(loss, [logits])
    return bool(torch.isfinite(loss)) and bool(torch.isfinite(gradient).all())
