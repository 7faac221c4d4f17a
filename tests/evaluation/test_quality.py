"""Figures with intervals: scikit-learn's values, resamples that agree with it, worked numbers, and coverage."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.calibration import calibration_curve
from sklearn.metrics import (
    average_precision_score,
    balanced_accuracy_score,
    brier_score_loss,
    f1_score,
    roc_auc_score,
)

from fedaccord.evaluation import resampled
from fedaccord.evaluation.intervals import Estimate, Resampling, percentile_interval, reflected_interval, share_interval
from fedaccord.evaluation.quality import OVER_GUESS, calibration_bins, class_quality, share_quality, tag_quality

FEW = Resampling(0, 200)


def predictions(rows, classes, seed, ties=False):
    rng = np.random.default_rng(seed)
    logits = rng.integers(0, 3, (rows, classes)).astype(float) if ties else rng.normal(size=(rows, classes))
    truth = rng.integers(0, classes, rows)
    logits[np.arange(rows), truth] += 1
    return np.exp(logits) / np.exp(logits).sum(1, keepdims=True), truth


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(5, 40), st.integers(2, 5), st.booleans())
def test_figures_of_all_resamples_at_once_are_scikit_learns_on_the_drawn_rows(seed, rows, classes, ties):
    p, y = predictions(rows, classes, seed, ties)
    (weights,) = Resampling(seed).weights(rows, 3)
    assert (weights.sum(1) == rows).all()
    said = p.argmax(1)
    for drawn in weights:
        at, one = np.repeat(np.arange(rows), drawn.astype(int)), drawn[None]
        labels = np.unique(y[at])
        actual, predicted = y[:, None] == labels, said[:, None] == labels
        recalls = resampled.mean_over_classes(resampled.class_recalls(actual, predicted, one))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert recalls[0] == pytest.approx(balanced_accuracy_score(y[at], said[at]))
        f1 = resampled.mean_over_classes(resampled.class_f1(actual, predicted, one))
        expected = f1_score(y[at], said[at], labels=labels, average="macro", zero_division=0)
        assert f1[0] == pytest.approx(expected)
        for c in labels[: len(labels) if len(labels) > 1 else 0]:
            area = resampled.auroc(p[:, c], y == c, one)[0]
            assert area == pytest.approx(roc_auc_score(y[at] == c, p[at, c]))
            precision = resampled.average_precision(p[:, c], y == c, one)[0]
            assert precision == pytest.approx(average_precision_score(y[at] == c, p[at, c]))


def test_the_figures_of_classes_are_scikit_learns():
    p, y = predictions(60, 4, seed=1)
    found = class_quality(p, np.r_[y[:-5], [-1] * 5], guess=2, resampling=FEW)  # five rows without a label
    p, y = p[:-5], y[:-5]
    value = {name: measure.value for name, measure in found.measures.items()}
    assert (found.rows, found.classes, found.resamples) == (55, 4, 200)
    assert value["accuracy"] == (p.argmax(1) == y).mean()
    assert value["auroc"] == pytest.approx(roc_auc_score(y, p, multi_class="ovr"))
    assert value["brier"] == pytest.approx(brier_score_loss(y, p, scale_by_half=True))
    assert value["guess"] == (y == 2).mean()
    assert value["over_guess"] == pytest.approx(value["accuracy"] - value["guess"])
    right, sure = p.argmax(1) == y, p.max(1)
    observed, predicted = calibration_curve(right, sure, n_bins=10, strategy="quantile")
    counts, means, shares, *_ = np.array(found.calibration).T
    assert means.tolist() == pytest.approx(predicted.tolist())
    assert shares.tolist() == pytest.approx(observed.tolist())
    assert counts.sum() == 55
    assert value["ece"] == pytest.approx((counts * np.abs(means - shares)).sum() / 55)
    for measure in found.measures.values():
        assert measure.low <= measure.value <= measure.high
    assert found.replicates.shape == (200,)


def test_only_classes_with_test_rows_count():
    p, y = predictions(40, 3, seed=2)
    y = np.where(y == 2, 1, y)
    found = class_quality(p, y, None, FEW)
    assert found.classes == 2
    assert found.measures["auroc"].value == pytest.approx(np.mean([roc_auc_score(y == c, p[:, c]) for c in (0, 1)]))
    assert found.measures["guess"].value == max(np.bincount(y)) / 40  # without a guess: the best constant answer


def test_the_figures_of_tags_leave_out_what_is_not_annotated():
    rng = np.random.default_rng(3)
    target = rng.integers(-1, 2, (50, 3)).astype(np.int8)
    target[:, 2] = 1  # a tag that every row has: it has a precision, but no ROC curve
    scores = np.clip(rng.random((50, 3)) + 0.2 * (target == 1), 0, 1)
    found = tag_quality(scores, target, FEW)
    kept = [(target[target[:, c] >= 0, c], scores[target[:, c] >= 0, c]) for c in range(3)]
    value = {name: measure.value for name, measure in found.measures.items()}
    assert value["map"] == pytest.approx(np.mean([average_precision_score(*pair) for pair in kept]))
    assert value["auroc"] == pytest.approx(np.mean([roc_auc_score(*pair) for pair in kept[:2]]))
    assert value["macro_f1"] == pytest.approx(np.mean([f1_score(t, s >= 0.5) for t, s in kept]))
    assert value["over_guess"] == pytest.approx(value["map"] - value["guess"])
    seen = target >= 0
    assert value["brier"] == pytest.approx(((scores - target)[seen] ** 2).mean())
    assert sum(row[0] for row in found.calibration) == seen.sum()
    assert "accuracy" not in value


def test_shuffled_labels_take_their_annotation_along():
    scores, target = np.array([0.9, 0.5, 0.5, 0.1]), np.array([1, 0, -1, 1])
    orders = np.array([[0, 1, 2, 3], [2, 0, 1, 3], [1, 3, 0, 2]])
    found = resampled.shuffled_average_precision(scores, target == 1, target >= 0, orders)
    for order, precision in zip(orders, found, strict=True):
        put = target[order]
        assert precision == pytest.approx(average_precision_score(put[put >= 0], scores[put >= 0]))


def test_random_scores_of_tags_are_not_better_than_guessing():
    better = 0
    for trial in range(60):
        rng = np.random.default_rng(trial)
        target = (rng.random((15, 3)) < 0.3).astype(np.int8)
        found = tag_quality(rng.random((15, 3)), target, Resampling(trial, 200)).measures
        better += found["over_guess"].low > 0
    assert better <= 5  # 2.5 % of them by chance
    sure = tag_quality(np.where(target == 1, 0.9, 0.1), target, FEW).measures
    assert sure["over_guess"].low > 0


def test_a_share_and_guessing_on_the_same_rows():
    hits, guessed = np.array([1, 1, 1, 0, 1, 1, 0, 1], bool), np.array([1, 0, 0, 0, 1, 0, 0, 0], bool)
    found = share_quality("in_set", hits, guessed, Resampling(5))
    assert {name: m.value for name, m in found.measures.items()} == {"in_set": 0.75, "guess": 0.25, "over_guess": 0.5}
    assert found.measures["over_guess"].low > 0  # each row that guessing gets right, the model gets right, too


@pytest.mark.parametrize(("rows", "truth"), [(4, [0, 1, 0, 1]), (6, [1] * 6), (0, [])])
def test_few_rows_or_one_class_are_not_measured(rows, truth):
    found = class_quality(np.full((rows, 2), 0.5), np.array(truth, dtype=int), None, FEW)
    assert (found.rows, found.measures, found.replicates) == (rows, {}, None)


def test_a_model_that_is_always_right_is_not_certain():
    assert share_interval(1.0, 10, np.ones(5)) == Estimate(1.0, pytest.approx(0.691503, abs=1e-6), 1.0)
    assert share_interval(0.0, 10, np.zeros(5)) == Estimate(0.0, 0.0, pytest.approx(0.308497, abs=1e-6))
    y = np.arange(20) % 2
    found = class_quality(np.eye(2)[y], y, None, FEW)
    assert found.measures["accuracy"].low < 0.9
    assert found.measures["auroc"] == Estimate(1.0)  # all resamples agree: no interval rather than a false one
    assert [(low < 0.9, high) for _, _, _, low, high in found.calibration] == [(True, 1.0)]


def test_a_model_that_answers_as_guessing_does_may_still_differ_elsewhere():
    y = np.arange(20) % 4 // 3  # a quarter of the rows
    found = class_quality(np.tile([0.9, 0.1], (20, 1)), y, 0, FEW).measures[OVER_GUESS]
    unseen = 1 - 0.025 ** (1 / 20)
    assert (found.value, found.low, found.high) == pytest.approx((0.0, -unseen, unseen))
    tags = np.stack([y, 1 - y], 1)
    assert tag_quality(np.full((20, 2), 0.5), tags, FEW).measures[OVER_GUESS] == Estimate(0.0)


def test_intervals_are_percentiles_and_those_of_errors_are_reflected():
    replicates = np.r_[np.linspace(0.1, 0.3, 201), np.nan]
    found = percentile_interval(0.15, replicates)
    assert (found.low, found.high) == pytest.approx((0.105, 0.295))
    reflected = reflected_interval(0.15, replicates)
    assert (reflected.low, reflected.high) == pytest.approx((0.005, 0.195))


def test_bins_hold_equally_many_rows():
    assert set(np.bincount(calibration_bins(np.linspace(0, 1, 103)))) == {10, 11}
    assert np.bincount(calibration_bins(np.linspace(0, 1, 12))).tolist() == [6, 6]


def test_the_interval_of_a_share_covers_it_about_as_often_as_it_says():
    rng, covered, widths = np.random.default_rng(7), 0, []
    for trial in range(300):
        hits = rng.random(60) < 0.7
        (weights,) = Resampling(trial).weights(60, 200)
        found = share_interval(hits.mean(), 60, resampled.weighted_mean(hits, weights))
        covered += found.low <= 0.7 <= found.high
        widths.append(found.high - found.low)
    assert 0.9 <= covered / 300 <= 0.98
    assert np.mean(widths) == pytest.approx(2 * 1.96 * np.sqrt(0.7 * 0.3 / 60), rel=0.05)


def test_resamples_depend_on_the_seed_alone_and_come_in_blocks(monkeypatch):
    whole = np.concatenate(list(Resampling(3).weights(30, 10)))
    monkeypatch.setattr("fedaccord.evaluation.intervals._BLOCK", 90)
    blocks = list(Resampling(3).weights(30, 10))
    assert [len(block) for block in blocks] == [3, 3, 3, 1]
    assert np.array_equal(np.concatenate(blocks), whole)
    assert not np.array_equal(np.concatenate(list(Resampling(4).weights(30, 10))), whole)


def test_very_large_tests_draw_fewer_resamples():
    assert Resampling(0).number(2000, 10) == 1000
    assert Resampling(0).number(10_000, 10) == 200
    assert Resampling(0, 500).number(10, 2) == 500
