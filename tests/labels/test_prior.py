"""The site prior: log pi(y) = log of (m + summed confidence) / (m * known labels + n)."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedaccord.labels.space import LabelSpace
from fedaccord.labels.views import Candidates, Coarse, Exact, Tags, Unlabelled
from fedaccord.labels.views.likelihoods import log_prior

SPACE = LabelSpace(["cat", "dog", "cow"])
ALL = torch.ones(3, dtype=torch.bool)


def test_counts_plus_one_over_the_total():
    # Three samples of label 0, one of label 1, none of label 2: (3+1, 1+1, 0+1) / 7.
    confidences = torch.eye(3)[[0, 0, 0, 1]]
    assert log_prior(confidences, ALL).exp().tolist() == pytest.approx([4 / 7, 2 / 7, 1 / 7])


def test_uncertain_samples_count_in_parts():
    confidences = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]])
    assert log_prior(confidences, ALL).exp().tolist() == pytest.approx([2.5 / 5, 1.5 / 5, 1 / 5])


def test_labels_not_known_are_impossible():
    known = torch.tensor([True, False, True])
    prior = log_prior(torch.eye(3)[[0, 0, 0, 2]], known)
    assert prior[1] == -math.inf
    assert prior[known].exp().tolist() == pytest.approx([4 / 6, 2 / 6])


def test_a_larger_pseudo_count_flattens():
    confidences = torch.eye(3)[[0, 0, 0, 1]]
    assert log_prior(confidences, ALL, pseudo_count=10).exp().tolist() == pytest.approx([13 / 34, 11 / 34, 10 / 34])
    nearly_counts = log_prior(confidences, ALL, pseudo_count=1e-9).exp().tolist()
    assert nearly_counts == pytest.approx([0.75, 0.25, 0.0], abs=1e-8)


def test_no_sample_gives_a_flat_prior():
    assert log_prior(torch.zeros(0, 3), ALL).tolist() == pytest.approx([math.log(1 / 3)] * 3)


@settings(deadline=None)
@given(
    known=st.lists(st.booleans(), min_size=2, max_size=6).filter(any),
    samples=st.integers(0, 50),
    pseudo_count=st.floats(1e-3, 100),
    seed=st.integers(0, 2**16),
)
def test_it_sums_to_one_over_the_known_labels(known, samples, pseudo_count, seed):
    mask = torch.tensor(known)
    confidences = torch.rand(samples, len(known), generator=torch.Generator().manual_seed(seed))
    prior = log_prior(confidences, mask, pseudo_count)
    assert prior.exp().sum().item() == pytest.approx(1, abs=1e-5)
    assert torch.equal(torch.isfinite(prior), mask)


def test_the_offset_of_a_site_keeps_what_the_site_knows():
    for view in (
        Exact(SPACE, known=["cat", "cow"]),
        Candidates(SPACE),
        Coarse(SPACE, {"pet": ["cat"], "farm": ["cow"]}),
    ):
        offset = view.prior_offset(torch.eye(3)[[0, 0]])
        assert torch.equal(offset, log_prior(torch.eye(3)[[0, 0]], view.informs()))
        assert torch.equal(view.with_offset(offset).informs(), view.informs())


def test_the_offset_of_tags_is_their_log_odds():
    # 'cat' on 2 of 3 samples, 'dog' on none: (2+1)/(1+1) and (0+1)/(3+1).
    confidences = torch.tensor([[1.0, 0, 0.9], [1, 0, 0.9], [0, 0, 0.9]])
    view = Tags(SPACE, known=["cat", "dog"])
    assert view.prior_offset(confidences).tolist() == pytest.approx([math.log(3 / 2), math.log(1 / 4), 0.0])


def test_a_site_without_annotations_has_a_prior_from_the_model():
    view = Unlabelled(SPACE)
    offset = view.prior_offset(torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]))
    assert offset.exp().tolist() == pytest.approx([2.5 / 5, 1.5 / 5, 1 / 5])
    answer = view.with_offset(offset).answer(torch.zeros(1, 3))
    assert answer[0].tolist() == pytest.approx([2.5 / 5, 1.5 / 5, 1 / 5])
