"""Rows kept apart from training: which they are, and that no test row is among them or read at all."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedaccord.data.site_data import Samples, SiteData
from fedaccord.data.sites import FederationData
from fedaccord.data.validation_rows import SERVER_ROWS, keep_apart
from fedaccord.errors import DataError
from fedaccord.labels.views import Candidates, Tags, Unlabelled
from small_federation import SPACE, exact, pets_or_cattle, site


def federation(*sites, **more):
    return FederationData(SPACE, {s.name: s for s in sites}, (4,), **more)


def numbered(classes, view=None):
    """A site whose first feature is the number of the training row; test rows are numbered from 1000."""
    target = torch.tensor(classes)
    x = torch.zeros(len(target), 4)
    x[:, 0] = torch.arange(len(target))
    test = Samples(x[:2] + 1000, target[:2], target[:2])
    return SiteData("a", view or exact(), Samples(x, target, target), test)


def rows(samples):
    return samples.x[:, 0].int().tolist()


def test_a_fifth_of_every_class_is_kept_apart_and_no_row_is_lost_or_tested():
    found = keep_apart(federation(numbered([0] * 20 + [1] * 10 + [2] * 10)), 0).data.sites["a"]
    counts = torch.bincount(found.test.target, minlength=3).tolist()
    assert sum(counts) == 8
    assert all(abs(count - share) <= 1 for count, share in zip(counts, (4, 2, 2), strict=True))
    assert sorted(rows(found.train) + rows(found.test)) == list(range(40))


@given(st.lists(st.integers(-1, 2), min_size=1, max_size=60), st.integers(0, 5))
def test_every_class_keeps_a_row_for_training_and_rows_without_annotation_are_not_apart(classes, seed):
    apart = None
    try:
        apart = keep_apart(federation(numbered(classes), site("z", samples=30)), seed)
    except DataError:
        pytest.fail("site z can always judge")
    found = apart.data.sites["a"]
    assert set(found.train.target.tolist()) == set(classes)
    assert -1 not in found.test.target.tolist()
    assert sorted(rows(found.train) + rows(found.test)) == list(range(len(classes)))
    assert ("a" in apart.not_judged) == (len(found.test) == 0)
    assert len(found.test) == 0 or len(found.test) >= 3


@pytest.mark.parametrize("view", [exact(), pets_or_cattle(), Candidates(SPACE), Tags(SPACE)])
def test_every_kind_of_annotation_can_judge_and_only_exact_ones_count_as_the_truth(view):
    found = keep_apart(federation(site("a", samples=30, view=view)), 1).data
    part = found.sites["a"].test
    assert (len(part), len(found.sites["a"].train)) == (6, 24)
    assert (part.truth is not None) == view.exact
    assert (found.test is not None) == (view.exact or not view.one_label)


def test_the_seed_decides_the_rows():
    draws = [rows(keep_apart(federation(numbered([0, 1] * 30)), seed).data.sites["a"].test) for seed in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2]


def test_poisoned_test_rows_change_nothing():
    clean, ruined = federation(site("a", samples=30)), federation(site("a", samples=30))
    poison = Samples(torch.full((6, 4), torch.nan), torch.full((6,), -7), torch.full((6,), 99))
    ruined.sites["a"] = SiteData("a", exact(), ruined.sites["a"].train, poison)
    ruined.test = torch.full((5, 4), torch.nan), torch.full((5,), 99)
    one, other = (keep_apart(data, 3).data for data in (clean, ruined))
    for first, second in ((one.sites["a"].train, other.sites["a"].train), (one.sites["a"].test, other.sites["a"].test)):
        assert all(torch.equal(first.tensors()[key], second.tensors()[key]) for key in first.tensors())
    assert torch.equal(one.test[0], other.test[0])  # the pool of the rows kept apart
    assert torch.equal(one.test[0], one.sites["a"].test.x)


def test_the_server_keeps_some_of_its_labelled_samples_apart():
    x, y = torch.arange(40.0)[:, None].expand(40, 4), torch.arange(40) % 3
    found = keep_apart(federation(site("a", view=Unlabelled(SPACE)), labelled=(x, y), test=(x + 1000, y)), 0)
    assert (found.server_judges, found.not_judged, found.data.test_source) == (True, ["a"], SERVER_ROWS)
    assert np.bincount(found.data.test[1]).tolist() == pytest.approx([3, 3, 2], abs=1)
    numbers = torch.cat([found.data.labelled[0], found.data.test[0]])[:, 0]
    assert sorted(numbers.tolist()) == list(range(40))


def test_a_federation_without_a_judge_is_refused():
    labelled = torch.zeros(3, 4), torch.arange(3)
    with pytest.raises(DataError, match="settings cannot be judged: no site has 9 annotated training rows"):
        keep_apart(federation(site("a", samples=8), site("b", view=Unlabelled(SPACE)), labelled=labelled), 0)
