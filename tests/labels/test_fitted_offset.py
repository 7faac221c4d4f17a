"""The offset that fits a model's answers to a site's annotations."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from fedaccord.labels.views import Candidates, Tags, Unlabelled
from fedaccord.labels.views.fitted_offset import fit_offset
from small_federation import SPACE, exact, pets_or_cattle


def test_one_step_adds_the_log_ratio_of_counts(monkeypatch):
    monkeypatch.setattr("fedaccord.labels.views.fitted_offset.STEPS", 1)
    target = torch.tensor([0, 0, 0, 0, 1, 2])  # a model without an opinion expects two of each
    found = fit_offset(exact(), torch.zeros(6, 3), target)
    torch.testing.assert_close(found, torch.tensor([5 / 3, 2 / 3, 2 / 3]).log())


@given(st.integers(0, 100))
def test_the_model_then_expects_what_the_site_annotates(seed):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(60, 3, generator=generator)
    target = torch.randint(0, 3, (60,), generator=generator)
    offset = fit_offset(exact(), logits, target)
    expected = torch.softmax(logits + offset, -1).sum(0)
    torch.testing.assert_close(expected, torch.bincount(target, minlength=3).float(), atol=0.5, rtol=0)


def test_a_label_without_rows_keeps_a_finite_offset():
    offset = fit_offset(exact(), torch.zeros(9, 3), torch.tensor([0] * 9))
    assert torch.isfinite(offset).all()
    assert offset[1] == offset[2] < -1


def test_a_label_that_the_site_does_not_know_stays_unknown():
    offset = fit_offset(exact(["cat", "dog"]), torch.zeros(4, 3), torch.tensor([0, 0, 0, 1]))
    assert offset[2] == float("-inf")
    assert offset[0] > offset[1]


def test_coarse_names_shift_all_of_their_classes_alike():
    offset = fit_offset(pets_or_cattle(), torch.zeros(6, 3), torch.tensor([0, 0, 0, 0, 0, 1]))
    assert offset[0] == offset[1] > offset[2]


def test_tags_get_the_log_ratio_of_their_odds(monkeypatch):
    monkeypatch.setattr("fedaccord.labels.views.fitted_offset.STEPS", 1)
    target = torch.tensor([[1, 0, -1], [1, 0, -1], [1, 1, -1], [0, 0, -1]], dtype=torch.int8)
    offset = fit_offset(Tags(SPACE), torch.zeros(4, 3), target)  # the model expects each tag at two of four rows
    torch.testing.assert_close(offset, torch.tensor([4 / 2, 2 / 4, 1.0]).log())


def test_without_annotations_nothing_is_shifted():
    logits = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(fit_offset(Unlabelled(SPACE), logits, torch.full((5,), -1)), torch.zeros(3))
    everything = torch.ones(5, 3, dtype=torch.bool)
    torch.testing.assert_close(fit_offset(Candidates(SPACE), logits, everything), torch.zeros(3))


def test_few_rows_do_not_say_much():
    offset = fit_offset(exact(), torch.zeros(1, 3), torch.tensor([0]))
    assert float(offset.max() - offset.min()) < 4  # one row of a label is no proof that there are no others


def test_logits_that_are_not_finite_shift_nothing():
    logits = torch.tensor([[float("inf"), 0.0, 0.0], [0.0, float("nan"), 0.0]])
    assert torch.equal(fit_offset(exact(), logits, torch.tensor([0, 1])), torch.zeros(3))
