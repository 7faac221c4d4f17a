"""What coarse names stand for: the worked numbers of docs/methods.md 6.2 and 6.3, and empty columns."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedaccord.errors import ConfigError
from fedaccord.labels.correspondence import (
    average_columns,
    columns_of_counts,
    confident,
    estimate_by_counts,
    expected_counts,
    frobenius,
    logits_of_matrix,
    matrix_of_logits,
    median_columns,
    pair_counts,
    sent_counts,
    sent_matrix,
    uniform_matrix,
)
from fedaccord.labels.space import LabelSpace
from fedaccord.labels.views import Coarse

THREE = LabelSpace(["a", "b", "c"])
FIRST_TWO = {"ab": ["a", "b"], "c": ["c"]}


def sure_of(classes, confidences, number):
    """Return probabilities whose largest is the given confidence at the given class."""
    p = torch.zeros(len(classes), number)
    for row, (column, top) in enumerate(zip(classes, confidences, strict=True)):
        p[row] = (1 - top) / (number - 1)
        p[row, column] = top
    return p


class TestProjection:
    def test_example_2a(self):
        view, f = Coarse(THREE, FIRST_TWO), torch.tensor([[0.5, 0.2, 0.3]])
        z = f.log().requires_grad_()
        loss = view.nll(z, torch.tensor([0])).sum()
        (gradient,) = torch.autograd.grad(loss, z)
        assert view.answer(z)[0].tolist() == pytest.approx([0.7, 0.3])
        assert loss.item() == pytest.approx(0.356675, abs=1e-6)
        assert gradient[0].tolist() == pytest.approx([-0.214286, -0.085714, 0.3], abs=1e-6)

    def test_a_found_matrix_takes_the_place_of_the_declared_one(self):
        view = Coarse(THREE, {"ab": ["a", "b"]})  # declared not to know c
        found = view.with_matrix(torch.tensor([[1.0, 0.5, 0.2]]))
        assert not torch.isfinite(view.offset).all()
        assert found.offset is None
        assert found.answer(torch.zeros(1, 3)).item() == pytest.approx(1.7 / 3)

    def test_a_zero_of_an_estimate_excludes_nothing(self):
        view = Coarse(THREE, FIRST_TWO).with_matrix(torch.tensor([[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]]))
        assert view.nll(torch.zeros(1, 3), torch.tensor([1])).item() == pytest.approx(-torch.tensor(1e-8).log().item())

    def test_the_identity_is_ordinary_cross_entropy(self):
        same = Coarse(THREE, {name: [name] for name in THREE})
        z, y = torch.randn(5, 3), torch.tensor([0, 1, 2, 1, 0])
        assert torch.allclose(same.nll(z, y), torch.nn.functional.cross_entropy(z, y, reduction="none"))

    def test_gradients_reach_a_learnable_matrix(self):
        free = torch.zeros(2, 3, requires_grad=True)
        view = Coarse(THREE, FIRST_TWO).with_matrix(matrix_of_logits(free))
        (gradient,) = torch.autograd.grad(view.nll(torch.zeros(1, 3), torch.tensor([0])).sum(), free)
        assert (gradient[0] < 0).all()
        assert (gradient[1] > 0).all()


class TestNamesAlone:
    def test_such_a_view_teaches_no_label_and_says_so_in_its_description(self):
        view = Coarse(THREE, names=["x", "y"])
        assert view.answers == ("x", "y")
        assert not view.informs().any()
        assert view.describe() == {"kind": "coarse", "names": ["x", "y"]}
        assert view.answer(torch.tensor([[5.0, 0, 0]]))[0].tolist() == pytest.approx([0.5, 0.5])
        assert view.with_matrix(torch.ones(2, 3) / 2).informs().all()

    def test_names_beside_a_correspondence_are_refused(self):
        with pytest.raises(ConfigError, match="a correspondence, which names its labels, or names alone"):
            Coarse(THREE, FIRST_TWO, ["ab", "c"])


class TestCounts:
    PSEUDO, SURE, COARSE = (0, 0, 1, 2, 2, 2), (0.99, 0.97, 0.50, 0.96, 0.98, 0.99), (0, 0, 1, 1, 1, 0)
    TRUTH = torch.tensor([[1.0, 1, 0, 0], [0, 0, 1, 1]])

    def test_example_2c(self):
        p = sure_of(self.PSEUDO, self.SURE, 4)
        found, filled = estimate_by_counts(p, torch.tensor(self.COARSE), 0.95, uniform_matrix(2, 4))
        assert found[0].tolist() == pytest.approx([1.0, 0.5, 1 / 3, 0.5])
        assert found[1].tolist() == pytest.approx([0.0, 0.5, 2 / 3, 0.5])
        assert filled.tolist() == [True, False, True, False]
        assert frobenius(found, self.TRUTH) == pytest.approx(1.105542, abs=1e-6)

    def test_the_threshold_is_strict(self):
        _, sure = confident(torch.tensor([[0.5, 0.5], [0.51, 0.49]]), 0.5)
        assert sure.tolist() == [False, True]

    def test_an_empty_column_is_the_last_valid_one(self):
        last = torch.tensor([[0.9, 0.2], [0.1, 0.8]])
        found = columns_of_counts(torch.tensor([[0.0, 3.0], [0.0, 1.0]]), last)
        assert found.T.tolist() == [pytest.approx([0.9, 0.1]), pytest.approx([0.75, 0.25])]

    def test_no_confident_sample_leaves_everything_as_it_was(self):
        last = torch.tensor([[0.9, 0.2], [0.1, 0.8]])
        found, filled = estimate_by_counts(sure_of([0, 1], [0.6, 0.6], 2), torch.tensor([0, 1]), 0.95, last)
        assert torch.equal(found, last)
        assert not filled.any()

    def test_smoothing(self):
        found = columns_of_counts(torch.tensor([[3.0], [0.0]]), uniform_matrix(2, 1), smoothing=0.5)
        assert found.flatten().tolist() == pytest.approx([3.5 / 4, 0.5 / 4])

    def test_samples_without_a_coarse_label_count_nowhere(self):
        assert pair_counts(torch.tensor([-1, 1]), torch.tensor([0, 0]), (2, 2)).tolist() == [[0, 0], [1, 0]]
        counts = expected_counts(torch.ones(2, 2) / 2, torch.tensor([-1, 1]), uniform_matrix(2, 2))
        assert counts.tolist() == [[0, 0], [0.5, 0.5]]


class TestTogether:
    def test_example_2d(self):
        learned = matrix_of_logits(torch.tensor([[0.0], [torch.tensor(3.0).log().item()]]))
        assert learned.flatten().tolist() == pytest.approx([0.25, 0.75])
        valid = [torch.tensor([True])] * 2
        mean = average_columns([learned, torch.tensor([[0.5], [0.5]])], valid, uniform_matrix(2, 1))
        assert mean.flatten().tolist() == pytest.approx([0.375, 0.625])
        assert matrix_of_logits(logits_of_matrix(mean)).flatten().tolist() == pytest.approx([0.375, 0.625])

    def test_a_column_counts_only_where_it_is_valid(self):
        one, two = torch.tensor([[1.0, 0.0], [0.0, 0.0]]), torch.tensor([[0.0, 0.0], [1.0, 0.0]])
        valid = [torch.tensor([True, False]), torch.tensor([False, False])]
        last = torch.tensor([[0.5, 0.3], [0.5, 0.7]])
        assert average_columns([one, two], valid, last).T.tolist() == [[1.0, 0.0], pytest.approx([0.3, 0.7])]

    def test_em_on_pooled_counts_finds_what_one_site_alone_cannot(self):
        """Each of two sites sees samples of one class; a model that is often wrong pulls the other class's column."""
        generator = torch.Generator().manual_seed(3)
        truth = torch.randint(3, (600,), generator=generator)
        noise = 1.2 * torch.randn(600, 3, generator=generator)
        p = torch.softmax(2 * torch.nn.functional.one_hot(truth, 3) + noise, -1)
        declared = Coarse(THREE, FIRST_TWO).matrix
        coarse = declared[:, truth].argmax(0)
        parts = [truth == 2, truth != 2]

        def em(groups):
            matrix = uniform_matrix(2, 3)
            for _ in range(10):
                matrix = columns_of_counts(sum(expected_counts(p[g], coarse[g], matrix) for g in groups), matrix)
            return frobenius(matrix, declared)

        assert em(parts) < 0.2
        assert min(em([part]) for part in parts) > 1
        assert em(parts) == pytest.approx(em([torch.ones(600, dtype=torch.bool)]), abs=1e-5)

    @given(st.integers(0, 10_000))
    def test_columns_stay_distributions(self, seed):
        generator = torch.Generator().manual_seed(seed)
        p = torch.softmax(3 * torch.randn(20, 4, generator=generator), -1)
        coarse = torch.randint(-1, 3, (20,), generator=generator)
        start = uniform_matrix(3, 4)
        by_counts, _ = estimate_by_counts(p, coarse, 0.5, start)
        by_em = columns_of_counts(expected_counts(p, coarse, start), start)
        for found in (by_counts, by_em):
            assert torch.allclose(found.sum(0), torch.ones(4), atol=1e-5)
            assert (found >= 0).all()


class TestWhatSitesSend:
    def test_the_middle_of_three_matrices(self):
        matrices = [torch.tensor([[1.0, 0.2], [0.0, 0.8]]), torch.tensor([[0.0, 0.4], [1.0, 0.6]]), torch.eye(2)]
        valid = [torch.tensor([True, True]), torch.tensor([True, True]), torch.tensor([True, False])]
        found = median_columns(matrices, valid, uniform_matrix(2, 2))
        assert torch.allclose(found, torch.tensor([[1.0, 0.3], [0.0, 0.7]]))

    def test_a_column_that_says_nothing_falls_back(self):
        found = median_columns([torch.eye(2)] * 3, [torch.tensor([True, False])] * 3, uniform_matrix(2, 2))
        assert found.tolist() == [[1.0, 0.5], [0.0, 0.5]]
        apart = [torch.eye(3)[:, [k]] for k in range(3)]  # the middle of each entry is zero
        found = median_columns(apart, [torch.tensor([True])] * 3, uniform_matrix(3, 1))
        assert torch.equal(found, uniform_matrix(3, 1))

    def test_a_matrix_becomes_shares_whatever_was_sent(self):
        shares, valid = sent_matrix(torch.tensor([[1e38, -1.0, 0.25], [1e38, -3.0, 0.75]]))
        assert shares.tolist() == [[0.5, 0.0, 0.25], [0.5, 0.0, 0.75]]
        assert valid.tolist() == [True, False, True]

    def test_counts_are_of_no_more_samples_than_are_there(self):
        assert sent_counts(torch.tensor([[3.0, -1.0], [0.0, 5.0]]), 8).tolist() == [[3.0, 0.0], [0.0, 5.0]]
        cut = sent_counts(torch.full((2, 2), 3e38), 8)
        assert cut.tolist() == [[2.0, 2.0], [2.0, 2.0]]
        assert sent_counts(torch.zeros(2, 2), 8).tolist() == [[0.0, 0.0], [0.0, 0.0]]
