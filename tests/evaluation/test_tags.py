"""Figures of tags: worked numbers of docs/methods.md 7.8, scikit-learn beside ours, and masks."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, f1_score, precision_score, recall_score

from fedaccord.evaluation.metrics import average_precision, tag_metrics
from fedaccord.labels.judging import correlation_error

Y = torch.tensor([[1, 0, 1], [0, 1, 0], [1, 1, 0], [0, 0, 1]], dtype=torch.int8)
S = torch.tensor([[0.9, 0.4, 0.2], [0.3, 0.8, 0.6], [0.6, 0.55, 0.1], [0.7, 0.2, 0.8]])


def test_worked_example():
    assert average_precision(S, Y).tolist() == pytest.approx([0.833333, 1.0, 0.833333], abs=1e-6)
    found = tag_metrics(S, Y)
    expected = {
        "map": 0.888889,
        "o_map": 0.821068,
        "cp": 0.722222,
        "cr": 0.833333,
        "cf1": 0.773810,
        "macro_f1": 0.766667,  # of F1 0.8, 1 and 0.5
        "op": 0.714286,
        "or": 0.833333,
        "of1": 0.769231,
        "hamming": 0.25,
        "accuracy": 0.75,
        "tags_judged": 3,
    }
    assert found == pytest.approx(expected, abs=1e-6)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 30), st.integers(1, 5))
def test_scikit_learn_agrees_column_by_column_on_what_is_annotated(seed, rows, tags):
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, 6, (rows, tags)) / 5  # many ties
    target = rng.integers(-1, 2, (rows, tags))
    found = tag_metrics(torch.from_numpy(scores), torch.from_numpy(target))
    judged = [c for c in range(tags) if (target[:, c] == 1).any()]
    if not judged:
        assert "map" not in found
        return
    kept = {c: target[:, c] >= 0 for c in judged}
    ap = [average_precision_score(target[kept[c], c], scores[kept[c], c]) for c in judged]
    cp = [precision_score(target[kept[c], c], scores[kept[c], c] >= 0.5, zero_division=0) for c in judged]
    cr = [recall_score(target[kept[c], c], scores[kept[c], c] >= 0.5) for c in judged]
    f1 = [f1_score(target[kept[c], c], scores[kept[c], c] >= 0.5, zero_division=0) for c in judged]
    seen = target >= 0
    assert found["map"] == pytest.approx(np.mean(ap))
    assert found["macro_f1"] == pytest.approx(np.mean(f1))
    assert found["o_map"] == pytest.approx(average_precision_score(target[seen], scores[seen]))
    assert (found["cp"], found["cr"]) == pytest.approx((np.mean(cp), np.mean(cr)))
    assert found["op"] == pytest.approx(precision_score(target[seen], scores[seen] >= 0.5, zero_division=0))
    assert found["or"] == pytest.approx(recall_score(target[seen], scores[seen] >= 0.5))
    assert found["tags_judged"] == len(judged)


def test_what_is_not_annotated_changes_nothing():
    more_scores, more = torch.cat([S, torch.rand(5, 3)]), torch.cat([Y, torch.full((5, 3), -1, dtype=torch.int8)])
    assert tag_metrics(more_scores, more) == pytest.approx(tag_metrics(S, Y))
    assert correlation_error(more_scores, more) == pytest.approx(correlation_error(S, Y))


def test_a_model_that_never_says_yes():
    found = tag_metrics(torch.zeros(4, 3), Y)
    assert (found["op"], found["of1"], found["cf1"], found["or"]) == (0, 0, 0, 0)


def test_tags_without_a_positive_are_left_out_and_counted():
    none = Y.clone()
    none[:, 1] = 0
    assert tag_metrics(S, none)["tags_judged"] == 2
    assert tag_metrics(S, none)["map"] == pytest.approx(0.833333, abs=1e-6)
    assert set(tag_metrics(S, torch.zeros_like(Y))) == {"accuracy", "hamming", "op", "or", "of1", "tags_judged"}
    assert tag_metrics(S, torch.full_like(Y, -1)) == {}


def test_correlation_error_is_zero_for_the_labels_themselves_and_not_measured_without_pairs():
    labels = torch.from_numpy(np.random.default_rng(0).integers(0, 2, (50, 4)).astype(np.int8))
    assert correlation_error(labels.double(), labels)["correlation_error"] == pytest.approx(0, abs=1e-7)
    assert correlation_error(torch.rand(50, 4), labels)["correlation_error"] > 0.01
    assert correlation_error(S, torch.ones_like(Y)) == {}
