"""The clean classifier behind instance-dependent candidate sets, trained once for what it depends on."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from fedaccord import clean_classifier as clean
from fedaccord.clean_classifier import clean_predictions
from fedaccord.data.dataset import Dataset, Rows, load_dataset
from fedaccord.data.declarations import Split
from fedaccord.data.study import split_dataset
from fedaccord.errors import DataError
from fedaccord.labels.views import CandidatesView

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def trainings(tmp_path, monkeypatch):
    """Keep a cache of this test's own, and count how often a network is trained."""
    monkeypatch.setenv("FEDACCORD_CACHE", str(tmp_path))
    done, train = [], clean._train

    def counted(*arguments):
        done.append(arguments)
        return train(*arguments)

    monkeypatch.setattr(clean, "_train", counted)
    return done


@pytest.fixture(scope="module")
def few():
    digits = load_dataset("digits", Path())
    return replace(digits, train=digits.train.take(np.arange(200)))


def test_it_is_trained_once(few, trainings):
    first, again = clean_predictions(few, 0), clean_predictions(few, 0)
    assert len(trainings) == 1
    assert np.array_equal(first, again)
    assert (first.argmax(1) == few.train.y).mean() > 0.8
    assert first.sum(1) == pytest.approx(np.ones(200), abs=1e-5)


def test_whatever_it_depends_on_trains_another(few, trainings, monkeypatch):
    clean_predictions(few, 0)
    clean_predictions(few, 1)
    other = few.train.x.copy()
    other[0, 0, 0, 0] += 1
    clean_predictions(replace(few, train=replace(few.train, x=other)), 0)
    clean_predictions(replace(few, train=replace(few.train, y=few.train.y[::-1].copy())), 0)
    clean_predictions(replace(few, train=few.train.take(np.arange(100))), 0)
    clean_predictions(replace(few, labels=(*few.labels, "ten")), 0)
    monkeypatch.setattr(clean, "SETTINGS", clean.SETTINGS.model_copy(update={"lr": 0.01}))
    clean_predictions(few, 0)
    monkeypatch.setattr(clean, "__version__", "next")
    clean_predictions(few, 0)
    assert len(trainings) == 8


def test_names_of_data_and_labels_change_nothing(few, trainings):
    clean_predictions(few, 0)
    clean_predictions(replace(few, name="other", labels=tuple("abcdefghij")), 0)
    assert len(trainings) == 1


def test_data_without_true_classes_has_no_clean_classifier():
    tags = Dataset("tags", Rows(np.ones((3, 2), np.float32)), None, ("a",), False)
    with pytest.raises(DataError, match="need true classes, but 'tags' has none"):
        clean_predictions(tags, 0)


@pytest.mark.slow
@pytest.mark.realdata
def test_sets_have_the_published_sizes():
    """2.99, 3.97 and 4.93 on MNIST (docs/methods.md 5.14)."""
    mnist = load_dataset("mnist", Path())

    def size(rho):
        view = CandidatesView(kind="candidates", generate="instance", rho=rho)
        clean = partial(clean_predictions, seed=0)
        made = split_dataset(mnist, Split({"kind": "iid", "sites": 2}, view, samples=4000, clean=clean))
        return np.mean([site.train.target.sum(1).float().mean().item() for site in made.sites.values()])

    assert [size(rho) for rho in (0.2, 0.3, 0.4)] == pytest.approx([2.99, 3.97, 4.93], abs=0.06)
