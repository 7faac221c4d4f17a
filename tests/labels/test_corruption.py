"""Annotations of a study, made from true labels: seeded, and always true."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedaccord.errors import ConfigError
from fedaccord.labels.corruption import (
    class_dependent_candidates,
    coarse_annotations,
    cyclic_flips,
    draw_candidates,
    instance_rates,
    superset_candidates,
    uniform_candidates,
)


def rng(seed=0):
    return np.random.default_rng(seed)


def labels(n, classes, seed=0):
    return rng(seed).integers(0, classes, n)


def predictions(y, classes, seed=0):
    return rng(seed).dirichlet(np.ones(classes), len(y))


GENERATORS = {
    "uniform": lambda y, classes, rate, seed: uniform_candidates(y, classes, rate, rng(seed)),
    "uniform pairs": lambda y, classes, rate, seed: uniform_candidates(y, classes, rate, rng(seed), min_size=2),
    "class": lambda y, classes, rate, seed: class_dependent_candidates(y, cyclic_flips(classes, rate, 0.1), rng(seed)),
    "instance": lambda y, classes, rate, seed: draw_candidates(
        instance_rates(predictions(y, classes), y, rate), y, rng(seed)
    ),
    "superset": lambda y, classes, rate, seed: superset_candidates(y, classes, rng(seed)),
}


@settings(deadline=None)
@given(
    name=st.sampled_from(sorted(GENERATORS)),
    classes=st.integers(3, 6),
    n=st.integers(0, 30),
    rate=st.one_of(st.sampled_from([0, 1]), st.floats(0, 1)),
    seed=st.integers(0, 1000),
)
def test_the_true_label_is_in_every_set_and_no_set_is_full(name, classes, n, rate, seed):
    y = labels(n, classes, seed)
    sets = GENERATORS[name](y, classes, rate, seed)
    assert sets.dtype == bool
    assert sets.shape == (n, classes)
    assert sets[np.arange(n), y].all()
    assert not sets.all(1).any()
    if name == "uniform pairs":
        assert (sets.sum(1) >= 2).all()


@pytest.mark.parametrize("name", sorted(GENERATORS))
def test_the_same_seed_draws_the_same_sets(name):
    y = labels(50, 5)
    first, again, other = (GENERATORS[name](y, 5, 0.5, seed) for seed in (3, 3, 4))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


# --- uniform


@pytest.mark.parametrize("q", [0.1, 0.3, 0.7])
def test_uniform_flipping_adds_q_of_the_wrong_labels(q):
    sets = uniform_candidates(labels(20_000, 10), 10, q, rng(), drop_full=False)
    assert sets.sum(1).mean() == pytest.approx(1 + 9 * q, abs=0.05)


def test_rates_of_zero_and_one():
    y = labels(200, 4)
    assert (uniform_candidates(y, 4, 0, rng()).sum(1) == 1).all()
    assert uniform_candidates(y, 4, 1, rng(), drop_full=False).all()
    # A full set says nothing; where each draw gives one, a wrong label is taken out again.
    assert (uniform_candidates(y, 4, 1, rng()).sum(1) == 3).all()


def test_one_class_leaves_only_the_full_set():
    assert uniform_candidates(np.zeros(3, int), 1, 0.5, rng()).all()


def test_min_size_fills_small_sets_with_any_wrong_label():
    y = np.zeros(3000, int)
    sets = uniform_candidates(y, 4, 0, rng(), min_size=2)
    assert (sets.sum(1) == 2).all()
    assert sets[:, 1:].mean(0) == pytest.approx([1 / 3] * 3, abs=0.04)
    assert (uniform_candidates(y, 4, 0, rng(), min_size=4, drop_full=False).sum(1) == 4).all()


def test_drop_full_draws_again_rather_than_cutting():
    # Of the sets {0}, {0,1}, {0,2}, {0,1,2} at q = 1/2 the first three stay equally likely.
    sets = uniform_candidates(np.zeros(30_000, int), 3, 0.5, rng())
    shares = np.bincount(sets[:, 1] + 2 * sets[:, 2], minlength=4) / len(sets)
    assert shares == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0], abs=0.01)
    assert uniform_candidates(np.zeros(300, int), 3, 0.5, rng(), drop_full=False).all(1).any()


@pytest.mark.parametrize(
    ("min_size", "drop_full", "message"),
    [
        (4, True, "min_size is 4, but a candidate set of 4 classes holds 3 at most"),
        (5, False, "min_size is 5, but a candidate set of 4 classes holds 4 at most"),
    ],
)
def test_a_min_size_that_cannot_be_met_is_refused(min_size, drop_full, message):
    with pytest.raises(ConfigError, match=message):
        uniform_candidates(labels(5, 4), 4, 0.5, rng(), min_size, drop_full)


# --- supersets


class EveryPattern:
    """A generator whose first draw takes each of the `2^(C-1)` patterns of wrong labels once."""

    def __init__(self, classes):
        patterns = itertools.product([0.9, 0.1], repeat=classes - 1)
        self.first = np.array([(0.9, *pattern) for pattern in patterns])

    def random(self, shape):
        first, self.first = self.first, np.full(self.first.shape, 0.9)
        return first[: shape[0]]


def test_supersets_have_the_expected_size_of_example_5e():
    sets = superset_candidates(np.zeros(2**9, int), 10, EveryPattern(10))
    proper = sets[:-1]  # the last pattern is the full set, drawn again
    assert len(np.unique(proper, axis=0)) == 2**9 - 1
    assert proper.sum(1).mean() == pytest.approx(5.491194, abs=5e-7)
    assert not sets[-1].all()


def test_supersets_are_drawn_uniformly():
    sets = superset_candidates(np.full(30_000, 1), 3, rng())
    shares = np.bincount(sets[:, 0] + 2 * sets[:, 2], minlength=4) / len(sets)
    assert shares == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0], abs=0.01)
    assert superset_candidates(labels(20_000, 10), 10, rng()).sum(1).mean() == pytest.approx(5.491194, abs=0.05)


def test_supersets_need_two_classes():
    assert superset_candidates(np.array([1, 0]), 2, rng()).tolist() == [[False, True], [True, False]]
    with pytest.raises(ConfigError, match="need at least two classes"):
        superset_candidates(np.zeros(3, int), 1, rng())


# --- class-dependent


def test_cyclic_flips_confuse_a_class_with_the_next():
    assert cyclic_flips(3, 0.5, 0.1).tolist() == [[1, 0.5, 0.1], [0.1, 1, 0.5], [0.5, 0.1, 1]]


def test_cyclic_flips_take_whole_numbers():
    assert cyclic_flips(3, 0.5, 0).tolist() == [[1, 0.5, 0], [0, 1, 0.5], [0.5, 0, 1]]


def test_class_dependent_sets_follow_the_row_of_the_true_class():
    flips = np.array([[1, 0.8, 0.1], [0.3, 1, 0.2], [0, 0.6, 1]])
    for label in range(3):
        sets = class_dependent_candidates(np.full(20_000, label), flips, rng(), drop_full=False)
        assert sets.mean(0) == pytest.approx(flips[label], abs=0.02)


@pytest.mark.parametrize(
    ("flips", "message"),
    [
        ([[1, 0.5, 0], [0, 1, 0.5]], "square with ones on its diagonal"),
        ([1, 0.5], "square with ones on its diagonal"),
        ([[0.9, 0.5], [0.5, 1]], "square with ones on its diagonal"),
        ([[1, 1.2], [0, 1]], "probabilities between 0 and 1"),
        ([[1, -0.1], [0, 1]], "probabilities between 0 and 1"),
        ([[1, np.nan], [0, 1]], "probabilities between 0 and 1"),
    ],
)
def test_a_wrong_flipping_matrix_is_refused(flips, message):
    with pytest.raises(ConfigError, match=message):
        class_dependent_candidates(np.array([0, 1]), np.array(flips), rng())


# --- instance-dependent


F, Y = np.array([[0.7, 0.2, 0.08, 0.02]]), np.array([0])  # docs/methods.md 5.14


def test_printed_rates_of_example_5e():
    rates = instance_rates(F, Y, 0.4, normalise="none")
    assert rates == pytest.approx(np.array([[0, 0.4, 0.16, 0.04]]))
    assert 1 + rates.sum() == pytest.approx(1.6)


def test_mean_normalised_rates_of_example_5e():
    rates = instance_rates(F, Y, 0.4)
    assert rates == pytest.approx(np.array([[0, 1, 0.426667, 0.106667]]), abs=5e-7)
    assert 1 + rates.sum() == pytest.approx(2.533333, abs=5e-7)


def test_a_temperature_divides_the_logits():
    softened = np.exp(np.log(F) / 3)
    assert instance_rates(F, Y, 0.4, temperature=3.0) == pytest.approx(instance_rates(softened, Y, 0.4))
    sizes = [1 + instance_rates(F, Y, 0.6, temperature=t).sum() for t in (1, 2, 1e6)]
    assert sizes[0] < sizes[1] < sizes[2] == pytest.approx(1 + 4 * 0.6)  # the bound, where no rate is cut at 1


def test_instance_sets_have_the_size_their_rates_expect():
    f, y = F.repeat(20_000, 0), Y.repeat(20_000)
    mean = draw_candidates(instance_rates(f, y, 0.4), y, rng(), drop_full=False)
    printed = draw_candidates(instance_rates(f, y, 0.4, normalise="none"), y, rng(), drop_full=False)
    assert mean.sum(1).mean() == pytest.approx(2.533333, abs=0.02)
    assert printed.sum(1).mean() == pytest.approx(1.6, abs=0.02)


@settings(deadline=None)
@given(rho=st.floats(0, 1), seed=st.integers(0, 1000))
def test_expected_instance_sizes_stay_within_the_bounds(rho, seed):
    y = labels(20, 10, seed)
    f = rng(seed).dirichlet(np.full(10, 0.2), len(y))
    assert (1 + instance_rates(f, y, rho, "none").sum(1) <= 1 + 9 * rho + 1e-9).all()
    assert (1 + instance_rates(f, y, rho, "mean").sum(1) <= 1 + 10 * rho + 1e-9).all()


@pytest.mark.parametrize("normalise", ["none", "mean"])
def test_a_saturated_classifier_still_ranks_the_wrong_labels(normalise):
    sure = np.array([[1.0, 2e-20, 0.8e-20, 0.2e-20]])
    assert instance_rates(sure, Y, 0.4, normalise) == pytest.approx(instance_rates(F, Y, 0.4, normalise))


@pytest.mark.parametrize("normalise", ["none", "mean"])
def test_a_classifier_without_any_doubt_adds_nothing(normalise):
    assert instance_rates(np.array([[1.0, 0, 0, 0]]), Y, 0.4, normalise).tolist() == [[0, 0, 0, 0]]


def test_the_predictions_are_left_as_they_were():
    f = F.copy()
    instance_rates(f, Y, 0.4)
    assert np.array_equal(f, F)


def test_an_unknown_normalisation_is_refused():
    with pytest.raises(ConfigError, match="normalise is 'mean' or 'none', not 'max'"):
        instance_rates(F, Y, 0.4, normalise="max")


@pytest.mark.parametrize("rate", [-0.1, 1.1, np.nan])
def test_rates_outside_zero_and_one_are_refused(rate):
    with pytest.raises(ConfigError, match=f"q is a probability between 0 and 1, not {rate}"):
        uniform_candidates(Y, 4, rate, rng())
    with pytest.raises(ConfigError, match=f"rho is a probability between 0 and 1, not {rate}"):
        instance_rates(F, Y, rate)


# --- coarse labels


def test_coarse_annotations_follow_the_column_of_the_class():
    matrix = np.array([[1, 0.7, 0.0], [0, 0.2, 0.5], [0, 0.1, 0.5]])
    for label in range(3):
        drawn = coarse_annotations(np.full(20_000, label), matrix, rng())
        assert np.bincount(drawn, minlength=3) / len(drawn) == pytest.approx(matrix[:, label], abs=0.02)


def test_coarse_annotations_of_nested_labels_are_certain():
    y = np.array([0, 1, 2, 1])
    drawn = coarse_annotations(y, np.array([[1, 1, 0], [0, 0, 1]]), rng())
    assert drawn.dtype == np.int64
    assert drawn.tolist() == [0, 0, 1, 0]


def test_coarse_annotations_are_seeded():
    y, matrix = labels(50, 3), np.full((4, 3), 0.25)
    assert np.array_equal(coarse_annotations(y, matrix, rng(1)), coarse_annotations(y, matrix, rng(1)))
    assert not np.array_equal(coarse_annotations(y, matrix, rng(1)), coarse_annotations(y, matrix, rng(2)))


def test_a_class_under_no_coarse_label_cannot_be_annotated():
    matrix = np.array([[1.0, 0, 0], [0, 0, 1]])
    assert coarse_annotations(np.array([0, 2]), matrix, rng()).tolist() == [0, 1]
    with pytest.raises(ConfigError, match="a sample of class 1 cannot be annotated"):
        coarse_annotations(np.array([0, 2, 1]), matrix, rng())
