"""The order in which a site sees its samples."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedaccord.training.local import batches

SIZES = {"samples": st.integers(1, 40), "size": st.integers(1, 12), "seed": st.integers(0, 2**32)}


def take(samples, size, seed=0, **how):
    return [batch.tolist() for batch in batches(samples, size, torch.Generator().manual_seed(seed), **how)]


def test_ten_samples_in_batches_of_four():
    assert [len(batch) for batch in take(10, 4)] == [4, 4, 2]
    assert [len(batch) for batch in take(10, 4, epochs=2)] == [4, 4, 2, 4, 4, 2]
    assert [len(batch) for batch in take(10, 4, steps=5)] == [4, 4, 2, 4, 4]


@given(epochs=st.integers(1, 4), **SIZES)
def test_an_epoch_shows_every_sample_once(samples, size, seed, epochs):
    rows = [row for batch in take(samples, size, seed, epochs=epochs) for row in batch]
    for epoch in range(epochs):
        assert sorted(rows[epoch * samples : (epoch + 1) * samples]) == list(range(samples))
    assert len(rows) == epochs * samples


@given(steps=st.integers(1, 30), **SIZES)
def test_steps_are_counted_exactly_and_show_samples_evenly(samples, size, seed, steps):
    taken = take(samples, size, seed, steps=steps)
    assert len(taken) == steps
    rows = [row for batch in taken for row in batch]
    seen = [rows.count(row) for row in range(samples)]
    assert max(seen) - min(seen) <= 1


@given(steps=st.integers(1, 30) | st.none(), **SIZES)
def test_the_same_seed_gives_the_same_order(samples, size, seed, steps):
    assert take(samples, size, seed, steps=steps) == take(samples, size, seed, steps=steps)


def test_every_pass_and_every_seed_has_an_order_of_its_own():
    first, second = take(20, 20, epochs=2)
    assert first != second
    assert take(20, 20, seed=1)[0] != first


def test_a_last_batch_of_one_sample_is_left_out_where_batch_norm_needs_a_variance():
    assert [len(batch) for batch in take(9, 4, drop_single=True)] == [4, 4]
    assert [len(batch) for batch in take(10, 4, drop_single=True)] == [4, 4, 2]
    assert [len(batch) for batch in take(9, 4, steps=5, drop_single=True)] == [4] * 5


@pytest.mark.parametrize(("samples", "size"), [(1, 4), (3, 1)])
def test_where_there_are_only_single_samples_nothing_is_left(samples, size):
    assert take(samples, size, drop_single=True) == []
    assert take(samples, size, steps=5, drop_single=True) == []


def test_no_samples_give_no_batches():
    assert take(0, 4) == []
    assert take(0, 4, steps=3) == []
