from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from fedaccord.data.partition import (
    Partition,
    allocate,
    by_classes,
    dirichlet,
    gamma,
    gamma_prior,
    iid,
    label_sets,
    largest_remainder,
    natural,
    quantity,
    split,
)
from fedaccord.errors import PartitionError


def rng(seed=0):
    return np.random.default_rng(seed)


def samples(*counts, seed=7):
    """Labels with the given number of samples of class 0, 1, ..., in random order."""
    return rng(seed).permutation(np.repeat(np.arange(len(counts)), counts))


def same(one: Partition, other: Partition) -> bool:
    return len(one.parts) == len(other.parts) and all(map(np.array_equal, one.parts, other.parts))


def attempt(make, *arguments):
    """Return the partition, or None and why there is none."""
    try:
        return make(*arguments), ""
    except PartitionError as error:
        return None, str(error)


def assert_sound(made: Partition, n: int):
    """Assert 7.8: disjoint, nothing lost that is not reported as unused, no site without samples."""
    everything = np.concatenate([*made.parts, made.unused])
    assert np.array_equal(np.sort(everything), np.arange(n))
    assert all(part.size and part.dtype == np.int64 for part in made.parts)
    assert all((np.diff(part) > 0).all() for part in made.parts)


# --- whole numbers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shares", "total", "expected"),
    [
        ((0.5, 0.3, 0.2), 7, (4, 2, 1)),
        ((1 / 3, 1 / 3, 1 / 3), 10, (4, 3, 3)),
        ((5000, 12500, 17500, 25000), 100, (8, 21, 29, 42)),
        ((0.1, 0.2, 0.7), 10, (1, 2, 7)),  # 0.1 + 0.2 + 0.7 is below one in floats
        ((0.0, 0.0), 0, (0, 0)),
    ],
)
def test_largest_remainder_gives_the_worked_numbers(shares, total, expected):
    assert largest_remainder(shares, total).tolist() == list(expected)


@given(
    st.lists(st.floats(0, 1e6), min_size=1, max_size=12).filter(lambda shares: sum(shares) > 1e-6),
    st.integers(0, 10**6),
)
def test_largest_remainder_is_complete_and_within_one_of_the_exact_share(shares, total):
    parts = largest_remainder(shares, total)
    exact = np.array(shares) / sum(shares) * total
    assert parts.sum() == total
    assert np.abs(parts - exact).max() < 1 + 1e-6
    assert not parts[np.array(shares) == 0].any()


@pytest.mark.parametrize(
    ("shares", "total"), [((0, 0), 3), ((3, -1), 3), ((1, np.nan), 3), ((1, np.inf), 3), ((1, 1), -1)]
)
def test_shares_that_mean_nothing_are_refused(shares, total):
    with pytest.raises(PartitionError, match="counts and shares must be finite and not negative"):
        largest_remainder(shares, total)


def test_allocate_gives_the_worked_numbers_with_ties_to_the_lower_site():
    table = allocate((6, 4), [(0.5, 0.25, 0.25), (0.1, 0.1, 0.8)])
    assert table.tolist() == [[3, 2, 1], [1, 0, 3]]
    assert table.sum(axis=0).tolist() == [4, 2, 4]


# --- what holds for every kind ---------------------------------------------------------------------------------------

KINDS = {
    "iid": lambda y, n: {"kind": "iid", "sites": n},
    "stratified": lambda y, n: {"kind": "iid", "sites": n, "stratified": True},
    "classes": lambda y, n: {"kind": "classes", "sites": n, "classes": min(2, len(np.unique(y)))},
    "quantity": lambda y, n: {
        "kind": "quantity",
        "sizes": (1 + largest_remainder(range(1, n + 1), (len(y) - n) // 2)).tolist(),
    },
    "dirichlet": lambda y, n: {"kind": "dirichlet", "sites": n, "alpha": 0.5, "min_size": 1},
    "gamma": lambda y, n: {"kind": "gamma", "sites": n, "gamma": 0.5},
    "label-sets": lambda y, n: {"kind": "label-sets", "sites": n, "labels": -(-len(np.unique(y)) // n)},
}
every_kind = pytest.mark.parametrize("kind", KINDS)


@every_kind
@settings(max_examples=40, deadline=None)
@given(
    counts=st.lists(st.integers(0, 40), min_size=1, max_size=6).filter(lambda c: sum(c) >= 8),
    sites=st.integers(1, 6),
    seed=st.integers(0, 99),
)
def test_no_sample_is_shared_or_lost_and_the_seed_decides(kind, counts, sites, seed):
    y = samples(*counts)
    spec = KINDS[kind](y, sites)
    made, why = attempt(split, y, spec, rng(seed))
    if made is None:
        assert kind in ("classes", "gamma", "label-sets")  # the others can serve every site
        assert "sites would get no samples" in why
        reject()
    assert len(made.parts) == sites
    assert_sound(made, y.size)
    assert same(made, split(y, spec, rng(seed)))


@every_kind
def test_another_seed_makes_another_partition(kind):
    y = samples(*[40] * 10)
    spec = KINDS[kind](y, 5)
    assert not same(split(y, spec, rng(1)), split(y, spec, rng(2)))


@every_kind
def test_a_single_site_gets_samples(kind):
    y = samples(30, 20, 10)
    made = split(y, KINDS[kind](y, 1), rng())
    assert_sound(made, y.size)
    if kind in ("iid", "stratified", "dirichlet", "label-sets"):
        assert made.unused.size == 0


@every_kind
def test_a_class_with_fewer_samples_than_sites_is_spread_or_left(kind):
    y = samples(50, 50, 2)
    made = split(y, KINDS[kind](y, 5), rng())
    assert_sound(made, y.size)
    rare = made.histogram(y, 3)[:, 2]
    assert rare.sum() + (y[made.unused] == 2).sum() == 2
    if kind in ("stratified", "classes"):
        assert rare.max() == 1


# --- iid -------------------------------------------------------------------------------------------------------------


def test_iid_sizes_are_equal_up_to_one():
    assert [part.size for part in iid(samples(5, 5), 3, rng()).parts] == [4, 3, 3]


def test_iid_needs_no_classes():
    several_labels_each = np.zeros((9, 4), dtype=bool)
    assert_sound(iid(several_labels_each, 2, rng()), 9)


@settings(deadline=None)
@given(st.lists(st.integers(0, 25), min_size=2, max_size=5).filter(lambda c: sum(c) >= 7), st.integers(1, 7))
def test_stratified_balances_each_class_and_the_sizes(counts, sites):
    y = samples(*counts)
    table = iid(y, sites, rng(), stratified=True).histogram(y, len(counts))
    assert (np.ptp(table, axis=0) <= 1).all()
    assert np.ptp(table.sum(axis=1)) <= 1


def test_stratified_gives_the_odd_samples_to_any_class():
    y = samples(1, 1, 1)  # were classes dealt in their order, class 0 would always be at the first site
    assert {int(y[iid(y, 3, rng(seed), stratified=True).parts[0]][0]) for seed in range(20)} == {0, 1, 2}


# --- x classes per site ----------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 8), st.integers(1, 6), st.data())
def test_classes_are_dealt_evenly_and_all_of_them_when_there_are_places(sites, total, data):
    held = data.draw(st.integers(1, total))
    y = samples(*[48] * total)
    made = by_classes(y, sites, held, rng(sites))
    owners = np.bincount(np.concatenate(made.labels), minlength=total)
    table = made.histogram(y, total)
    assert all(len(set(labels)) == held for labels in made.labels)
    assert np.ptp(owners) <= 1
    assert (owners.min() >= 1) == (sites * held >= total)
    for labels, row in zip(made.labels, table, strict=True):
        assert set(np.flatnonzero(row)) == set(labels)
        assert row.sum() <= y.size // sites
        assert all(row[c] <= -(-48 // owners[c]) for c in labels)


def test_classes_go_to_equal_sites():
    y = samples(*[60] * 10)
    made = by_classes(y, 10, 3, rng())  # 30 places for 10 classes: three owners each, 20 samples for each of them
    assert (np.sort(made.histogram(y, 10), axis=1)[:, -3:] == 20).all()
    assert made.unused.size == 0
    assert made.notes == []


def test_any_class_can_be_dealt():
    y = samples(20, 20, 20)
    assert {by_classes(y, 1, 1, rng(seed)).labels[0][0] for seed in range(20)} == {0, 1, 2}


def test_any_two_sites_can_be_dealt_the_same_classes():
    y = samples(*[20] * 4)  # eight places for four classes: each pair of classes goes to two of the four sites
    deals = [by_classes(y, 4, 2, rng(seed)).labels for seed in range(30)]
    assert {labels.index(labels[0], 1) for labels in deals} == {1, 2, 3}


def test_what_cannot_be_split_evenly_goes_to_the_site_with_least():
    y = samples(3, 3)
    made = by_classes(y, 2, 2, rng())
    assert [part.size for part in made.parts] == [3, 3]


def test_a_big_class_is_cut_to_the_equal_size_and_a_small_one_caps_its_site():
    y = samples(90, 10)
    made = by_classes(y, 2, 1, rng())
    assert sorted(part.size for part in made.parts) == [10, 50]
    assert made.unused.size == 40
    assert made.notes == ["the classes of 1 of 2 sites cannot supply 50 samples"]


def test_classes_that_nobody_owns_are_unused_and_said():
    y = samples(10, 10, 10)
    made = by_classes(y, 2, 1, rng())
    (left,) = {0, 1, 2} - {c for labels in made.labels for c in labels}
    assert set(y[made.unused]) == {left}
    assert f"classes that no site was dealt, their samples unused: [{left}]" in made.notes


def test_a_class_with_fewer_samples_than_sites_is_said():
    made = by_classes(samples(10, 10, 1), 3, 3, rng())
    assert made.labels == [[0, 1, 2]] * 3
    assert "classes dealt to a site that got no sample of them: 2" in made.notes


def test_with_replacement_every_site_reaches_the_equal_size():
    y = samples(90, 10)
    made = by_classes(y, 2, 1, rng(), replace=True)
    assert [part.size for part in made.parts] == [50, 50]
    poor = next(part for part, labels in zip(made.parts, made.labels, strict=True) if labels == [1])
    assert (y[poor] == 1).all()
    assert made.notes[0].startswith("samples were drawn with replacement")
    assert set(made.unused) == set(range(100)) - set(np.concatenate(made.parts))


# --- quantity --------------------------------------------------------------------------------------------------------


def test_the_published_sizes_have_the_same_class_proportions():
    y = samples(*[6000] * 10)
    made = quantity(y, [5000, 12500, 17500, 25000], rng())
    assert made.histogram(y, 10).tolist() == [[500] * 10, [1250] * 10, [1750] * 10, [2500] * 10]
    assert made.unused.size == 0


@settings(deadline=None)
@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=6),
    st.lists(st.integers(1, 40), min_size=1, max_size=6),
)
def test_sizes_are_exact_and_classes_in_proportion(counts, sizes):
    y = samples(*counts)
    if sum(sizes) > y.size:
        reject()
    table = quantity(y, sizes, rng()).histogram(y, len(counts))
    assert table.sum(axis=1).tolist() == sizes
    assert np.abs(table - np.outer(sizes, counts) / sum(counts)).max() < 2


def test_roundings_do_not_gather_at_the_last_site():
    y = samples(23, 30, 29)
    sizes = [16, 8, 11, 2, 2, 38]
    table = quantity(y, sizes, rng()).histogram(y, 3)
    assert np.abs(table - np.outer(sizes, [23, 30, 29]) / 82).max() < 1


# --- Dirichlet -------------------------------------------------------------------------------------------------------


def test_draws_are_repeated_until_the_smallest_site_is_large_enough():
    y = samples(*[50] * 4)
    first = [dirichlet(y, 4, 0.3, rng(seed), min_size=1, tries=1) for seed in range(20)]
    assert min(part.size for made in first for part in made.parts) < 10
    for seed in range(20):
        made = dirichlet(y, 4, 0.3, rng(seed))
        assert min(part.size for part in made.parts) >= 10
        assert made.notes == []


def test_after_the_last_draw_the_largest_site_gives_to_the_smallest():
    y = samples(40)
    made = dirichlet(y, 4, 1e-6, rng(), tries=3)  # one site gets all of the only class in each draw
    assert [part.size for part in made.parts] == [10, 10, 10, 10]
    assert made.notes == ["no draw of 3 gave every site 10 samples, so the largest sites gave 30 away"]
    assert_sound(made, 40)


def test_too_few_samples_for_the_smallest_size_lower_it_to_one():
    made = dirichlet(samples(6, 6), 3, 1.0, rng())
    assert made.notes[0] == "12 samples cannot give 3 sites 10 each, so the smallest may have 1"
    assert_sound(made, 12)


def test_as_many_sites_as_samples_get_one_each():
    assert [part.size for part in dirichlet(samples(5, 4), 9, 0.1, rng(), tries=5).parts] == [1] * 9


@pytest.mark.parametrize("alpha", [1e9, 1.7e308])
def test_a_large_alpha_is_iid(alpha):
    y = samples(400, 400)
    assert np.abs(dirichlet(y, 4, alpha, rng()).histogram(y, 2) - 100).max() <= 1


def test_a_smaller_alpha_is_more_skewed():
    y = samples(*[200] * 5)

    def top_share(alpha):
        table = dirichlet(y, 5, alpha, rng(3)).histogram(y, 5)
        return (table.max(axis=0) / table.sum(axis=0)).mean()

    assert top_share(0.05) > 0.8 > 0.4 > top_share(100)


# --- gamma -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("reading", "major", "minor"), [("multiply", 0.481928, 0.012048), ("set", 0.490798, 0.006135)])
def test_gamma_prior_gives_the_worked_numbers(reading, major, minor):
    prior = gamma_prior([0.5] * 5, 0, 0.9, reading)
    assert prior.round(6).tolist() == [major, major, minor, minor, minor]


def test_majority_classes_go_round():
    assert np.argsort(gamma_prior([0.5] * 5, 2, 0.9))[-2:].tolist() == [0, 4]
    assert gamma_prior([0.5], 3, 0.9).tolist() == [1.0]


def test_the_gamma_split_of_the_paper_fits_on_the_coarse_classes():
    y = samples(*[475] * 100)
    groups = np.arange(100) // 5
    made = gamma(y, 10, 0.9, rng(), samples_per_site=4000, groups=groups)
    table = made.histogram(groups[y], 20)
    assert made.notes == []
    for site, row in enumerate(table):
        assert set(np.argsort(row)[-2:]) == {2 * site, 2 * site + 1}
        assert 3980 <= row.sum() <= 4000
    assert (np.abs(table.sum(axis=0) - 2000) < 150).all()


def test_on_the_fine_classes_it_runs_out_and_says_so():
    y = samples(*[475] * 100)
    made = gamma(y, 1, 0.9, rng(), samples_per_site=4000)
    assert made.histogram(y, 100)[0, :2].tolist() == [475, 475]
    assert "1 of 1 sites hold fewer samples than asked" in made.notes[0]
    assert made.notes[0].endswith("as classes ran out: [0, 1]")
    full = gamma(y, 1, 0.9, rng(), samples_per_site=4000, replace=True)
    assert (full.histogram(y, 100)[0, :2] > 700).all()
    assert full.notes[0].startswith("samples were drawn with replacement")


def test_counts_are_floors_of_the_prior_that_was_drawn():
    y = samples(*[100] * 5)
    row = gamma(y, 2, 0.0, rng(), samples_per_site=83, low=0.5, high=0.5).histogram(y, 5)[0]
    assert row.tolist() == [30, 30, 7, 7, 7]  # 83 * 4 / 11 = 30.2, 83 / 11 = 7.5
    row = gamma(y, 2, 0.0, rng(), samples_per_site=83, low=0.5, high=0.5, reading="set").histogram(y, 5)[0]
    assert row.tolist() == [34, 34, 4, 4, 4]  # 83 * 4 / 9.5 = 34.9, 83 / 19 = 4.4


def test_a_site_gets_its_equal_share_where_no_size_is_given():
    y = samples(*[100] * 4)
    sizes = [part.size for part in gamma(y, 4, 0.0, rng()).parts]
    assert all(96 <= size <= 100 for size in sizes)


# --- label sets ------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 7), st.integers(1, 8), st.integers(0, 99), st.data())
def test_every_label_has_an_owner_and_every_site_its_number_of_labels(sites, total, seed, data):
    least = -(-total // sites)
    held = data.draw(st.integers(least, total))
    y = samples(*[20] * total)
    made = label_sets(y, sites, held, rng(seed))
    owners = np.bincount(np.concatenate(made.labels), minlength=total)
    assert all(len(set(labels)) == len(labels) == held for labels in made.labels)
    assert owners.min() >= 1
    assert made.unused.size == 0
    for labels, row in zip(made.labels, made.histogram(y, total), strict=True):
        assert set(np.flatnonzero(row)) == set(labels)
        assert all(20 // owners[c] <= row[c] <= -(-20 // owners[c]) for c in labels)


def test_without_coverage_a_label_may_belong_to_nobody():
    y = samples(*[20] * 6)
    made = label_sets(y, 2, 2, rng(), coverage=False)
    nobody = sorted(set(range(6)) - {c for labels in made.labels for c in labels})
    assert nobody
    assert all(len(set(labels)) == 2 for labels in made.labels)
    assert f"classes that no site was dealt, their samples unused: {nobody}" in made.notes
    assert set(nobody) <= set(y[made.unused])


def test_label_draws_are_not_tied_to_the_order_of_sites():
    y = samples(*[20] * 6)
    drawn = {tuple(map(tuple, label_sets(y, 3, 3, rng(seed)).labels)) for seed in range(20)}
    assert len(drawn) > 15


def test_no_two_labels_are_likelier_to_meet_than_others():
    y = samples(4, 4, 4)
    deals = [label_sets(y, 2, 2, rng(seed)).labels for seed in range(1500)]
    for pair in ([0, 1], [0, 2], [1, 2]):
        assert sum(pair in labels for labels in deals) / 1500 == pytest.approx(2 / 3, abs=0.04)


def test_the_site_size_is_fixed_where_asked():
    y = samples(*[100] * 6)
    made = label_sets(y, 3, 3, rng(), samples_per_site=50)
    assert [part.size for part in made.parts] == [50, 50, 50]
    assert made.notes == []
    made = label_sets(y, 3, 3, rng(), samples_per_site=500)
    assert made.notes == ["the classes of 3 of 3 sites cannot supply 500 samples"]


def test_too_few_labels_per_site_cannot_cover_all():
    with pytest.raises(PartitionError, match="2 sites with 1 labels each cannot cover 4 labels"):
        label_sets(samples(30, 30, 30, 30), 2, 1, rng())


# --- natural ---------------------------------------------------------------------------------------------------------


def test_each_id_is_a_site():
    made = natural(np.array(["b", "a", "b", "c"]))
    assert made.names == ["a", "b", "c"]
    assert [part.tolist() for part in made.parts] == [[1], [0, 2], [3]]
    assert made.unused.size == 0
    assert made.notes == []


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=60),
    st.integers(1, 4),
    st.sampled_from(["drop", "merge"]),
    st.none() | st.integers(1, 4),
)
def test_natural_sites_share_and_lose_nothing(ids, least, small, most):
    made, why = attempt(natural, ids, least, small, most)
    if made is None:
        assert max(map(ids.count, ids)) < least
        assert f"no site has {least} samples" in why
        return
    assert_sound(made, len(ids))
    assert min(part.size for part in made.parts) >= least
    assert len(made.parts) == len(set(made.names)) <= (most or 11)
    for name, part in zip(made.names, made.parts, strict=True):
        assert name == "other" or part.tolist() == [i for i, value in enumerate(ids) if str(value) == name]
    if small == "merge" and most is None:
        assert made.unused.size < least


def test_numbers_are_ordered_as_numbers_and_gaps_do_not_make_them_fractions():
    made = natural(np.array([10.0, np.nan, 2.0, 10.0]))
    assert made.names == ["2", "10"]
    assert made.unused.tolist() == [1]
    assert made.notes == ["samples without a site id, unused: 1"]
    assert natural([None, " ", "a", 1.5]).names == ["1.5", "a"]
    assert natural(pd.array(["a", None, "b"], dtype="string")).names == ["a", "b"]


def test_small_sites_are_dropped_or_merged():
    ids = ["a"] * 5 + ["b", "c", "c"]
    dropped = natural(ids, min_size=3)
    assert (dropped.names, dropped.unused.tolist()) == (["a"], [5, 6, 7])
    assert dropped.notes == ["sites with fewer than 3 samples, dropped: 2"]
    merged = natural(ids, min_size=3, small="merge")
    assert (merged.names, merged.parts[1].tolist()) == (["a", "other"], [5, 6, 7])
    assert merged.notes == ["sites with fewer than 3 samples, merged into 'other': 2"]


def test_small_sites_are_dropped_when_even_together_they_are_small():
    made = natural(["a"] * 5 + ["b"], min_size=3, small="merge")
    assert made.names == ["a"]
    assert made.notes == ["sites with fewer than 3 samples, dropped: 1"]


def test_a_site_called_other_takes_in_the_small_ones():
    made = natural(["x", "x", "x", "other", "other", "other", "y", "z", "z", "y"], min_size=3, small="merge")
    assert made.names == ["other", "x"]
    assert made.parts[0].tolist() == [3, 4, 5, 6, 7, 8, 9]


def test_the_largest_sites_are_kept():
    made = natural(list("aabbbcdddd"), most=2)
    assert made.names == ["b", "d"]
    assert made.notes == ["only the 2 largest of 4 sites are kept"]
    assert made.unused.tolist() == [0, 1, 5]


# --- specifications --------------------------------------------------------------------------------------------------

Y = samples(*[30] * 6)
IDS = np.arange(180) % 7


@pytest.mark.parametrize(
    ("spec", "direct"),
    [
        ({"kind": "iid", "sites": 3}, lambda: iid(Y, 3, rng())),
        ({"kind": "iid", "sites": 3, "stratified": True}, lambda: iid(Y, 3, rng(), True)),
        ({"kind": "classes", "sites": 3, "classes": 2}, lambda: by_classes(Y, 3, 2, rng())),
        (
            {"kind": "classes", "sites": 3, "classes": 1, "replace": True},
            lambda: by_classes(Y, 3, 1, rng(), True),
        ),
        ({"kind": "quantity", "sizes": [20, 40]}, lambda: quantity(Y, [20, 40], rng())),
        ({"kind": "dirichlet", "sites": 3, "alpha": 0.3}, lambda: dirichlet(Y, 3, 0.3, rng())),
        ({"kind": "dirichlet", "sites": 3, "alpha": 1, "min_size": 55}, lambda: dirichlet(Y, 3, 1, rng(), 55)),
        ({"kind": "gamma", "sites": 3, "gamma": 0.5}, lambda: gamma(Y, 3, 0.5, rng(), groups=np.arange(6) // 2)),
        (
            {"kind": "gamma", "sites": 3, "gamma": 0.5, "samples": 40, "low": 0.1, "high": 0.9, "reading": "set"},
            lambda: gamma(Y, 3, 0.5, rng(), 40, 0.1, 0.9, "set", np.arange(6) // 2),
        ),
        (
            {"kind": "gamma", "sites": 3, "gamma": 0.5, "replace": True, "samples": None},
            lambda: gamma(Y, 3, 0.5, rng(), replace=True, groups=np.arange(6) // 2),
        ),
        ({"kind": "label-sets", "sites": 3, "labels": 4}, lambda: label_sets(Y, 3, 4, rng())),
        (
            {"kind": "label-sets", "sites": 3, "labels": 1, "samples": 9, "coverage": False},
            lambda: label_sets(Y, 3, 1, rng(), 9, False),
        ),
        ({"kind": "natural", "by": "hospital"}, lambda: natural(IDS)),
        (
            {"kind": "natural", "min_size": 26, "small": "merge", "most": 3},
            lambda: natural(IDS, 26, "merge", 3),
        ),
    ],
)
def test_a_specification_calls_its_kind_with_its_parameters(spec, direct):
    made, expected = split(Y, spec, rng(), ids=IDS, groups=np.arange(6) // 2), direct()
    assert same(made, expected)
    assert (made.labels, made.notes, made.names) == (expected.labels, expected.notes, expected.names)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({}, "a partition needs a 'kind'; known: iid, classes, quantity"),
        ({"kind": "dirichelt"}, "unknown partition kind 'dirichelt'; did you mean 'dirichlet'?"),
        ({"kind": "iid", "site": 3}, "partition 'iid' has no parameter 'site'; did you mean 'sites'?"),
        ({"kind": "iid", "sites": 3, "alpha": 1}, "partition 'iid' has no parameter 'alpha'; known: sites, stratified"),
        ({"kind": "dirichlet", "sites": 3}, "partition 'dirichlet' needs the parameter 'alpha'"),
        ({"kind": "iid", "sites": None}, "partition 'iid' needs the parameter 'sites'"),
        ({"kind": "iid", "sites": 3, "stratified": "no"}, "stratified must be true or false, not 'no'"),
        ({"kind": "iid", "sites": 0}, "sites must be a whole number of at least 1, not 0"),
        ({"kind": "iid", "sites": True}, "sites must be a whole number of at least 1, not True"),
        ({"kind": "iid", "sites": 2.5}, "sites must be a whole number of at least 1, not 2.5"),
        ({"kind": "iid", "sites": 181}, "181 sites cannot be made from 180 samples"),
        ({"kind": "classes", "sites": 181, "classes": 1}, "181 sites cannot be made from 180 samples"),
        ({"kind": "classes", "sites": 2, "classes": 0}, "classes per site must be a whole number from 1 to 6, not 0"),
        ({"kind": "classes", "sites": 2, "classes": 7}, "classes per site must be a whole number from 1 to 6, not 7"),
        ({"kind": "quantity", "sizes": []}, "sizes must be a list, one for each site"),
        ({"kind": "quantity", "sizes": 40}, "sizes must be a list, one for each site"),
        ({"kind": "quantity", "sizes": [3, 0]}, "each of the sizes must be a whole number of at least 1, not 0"),
        ({"kind": "quantity", "sizes": [100, 81]}, "the sizes add up to 181, but there are only 180 samples"),
        ({"kind": "dirichlet", "sites": 2, "alpha": 0}, "alpha must be above 0, not 0"),
        ({"kind": "dirichlet", "sites": 2, "alpha": float("nan")}, "alpha must be a finite number, not nan"),
        ({"kind": "dirichlet", "sites": 2, "alpha": "big"}, "alpha must be a finite number, not 'big'"),
        ({"kind": "dirichlet", "sites": 181, "alpha": 1}, "181 sites cannot be made from 180 samples"),
        ({"kind": "dirichlet", "sites": 2, "alpha": 1, "min_size": 0}, "min_size must be a whole number of at least 1"),
        ({"kind": "gamma", "sites": 181, "gamma": 0}, "181 sites cannot be made from 180 samples"),
        ({"kind": "gamma", "sites": 2, "gamma": 1}, "gamma must be at least 0 and below 1, not 1"),
        ({"kind": "gamma", "sites": 2, "gamma": -0.1}, "gamma must be at least 0 and below 1, not -0.1"),
        ({"kind": "gamma", "sites": 2, "gamma": 0, "low": 0.6}, "0 < low <= high, not 0.6 and 0.55"),
        ({"kind": "gamma", "sites": 2, "gamma": 0, "low": 0}, "0 < low <= high, not 0 and 0.55"),
        ({"kind": "gamma", "sites": 2, "gamma": 0, "reading": "x"}, "reading must be 'multiply' or 'set', not 'x'"),
        (
            {"kind": "gamma", "sites": 2, "gamma": 0, "samples": 0},
            "samples per site must be a whole number of at least 1",
        ),
        ({"kind": "gamma", "sites": 180, "gamma": 0}, "180 of 180 sites would get no samples; ask for fewer sites"),
        ({"kind": "label-sets", "sites": 2, "labels": 7}, "labels per site must be a whole number from 1 to 6, not 7"),
        ({"kind": "label-sets", "sites": 2, "labels": 2}, "2 sites with 2 labels each cannot cover 6 labels"),
        ({"kind": "label-sets", "sites": 181, "labels": 2}, "181 sites cannot be made from 180 samples"),
        ({"kind": "label-sets", "sites": 9, "labels": 2, "samples": 0}, "samples per site must be a whole number of"),
        ({"kind": "natural", "by": "x"}, "partition 'natural' needs one site id for each sample"),
    ],
)
def test_a_wrong_specification_says_what_is_wrong(spec, message):
    with pytest.raises(PartitionError) as caught:
        split(Y, spec, rng())
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"min_size": 0}, "min_size must be a whole number of at least 1, not 0"),
        ({"small": "keep"}, "small must be 'drop' or 'merge', not 'keep'"),
        ({"most": 0}, "most must be a whole number of at least 1, not 0"),
        ({"min_size": 27}, "no site has 27 samples; the largest has 26"),
    ],
)
def test_a_wrong_natural_partition_says_what_is_wrong(parameters, message):
    with pytest.raises(PartitionError) as caught:
        split(Y, {"kind": "natural", **parameters}, rng(), ids=IDS)
    assert message in str(caught.value)


def test_ids_must_be_there_and_one_for_each_sample():
    with pytest.raises(PartitionError, match="needs one site id for each sample"):
        split(Y, {"kind": "natural"}, rng(), ids=IDS[1:])
    with pytest.raises(PartitionError, match="no sample has a site id"):
        natural([None, ""])


@pytest.mark.parametrize("y", [np.array([0.5, 1.5]), np.array([-1, 0]), np.eye(2, dtype=int), np.array(["a", "b"])])
def test_a_skew_of_classes_needs_class_indices(y):
    with pytest.raises(PartitionError, match=r"one class index \(0, 1, 2, ...\) for each sample"):
        dirichlet(y, 1, 1.0, rng())


@pytest.mark.parametrize(
    "make",
    [
        lambda y: gamma(y, 2, 0.5, rng(), groups=np.array([0, 0])),
        lambda y: iid(y, 2, rng()).histogram(y, 2),
    ],
)
def test_a_class_outside_the_label_space_is_refused(make):
    with pytest.raises(PartitionError, match="a class index does not fit into 2 classes"):
        make(samples(5, 5, 5))


def test_a_site_without_samples_is_refused():
    with pytest.raises(PartitionError, match="1 of 6 sites would get no samples"):
        by_classes(samples(1, 1, 1, 20), 6, 1, rng(2))


def test_no_samples_make_no_sites():
    with pytest.raises(PartitionError, match="1 sites cannot be made from 0 samples"):
        split(np.array([], dtype=int), {"kind": "dirichlet", "sites": 1, "alpha": 1.0}, rng())


def test_the_report_can_be_written_as_json():
    y = np.array([0, 0, 1, 1, 2])
    made = Partition([np.array([0, 1, 2]), np.array([3])], np.array([4]), [[0, 1], [1]], ["a note"], ["x", "y"])
    assert json.loads(json.dumps(made.report(y, ["cat", "dog", "owl"]))) == {
        "sizes": [3, 1],
        "histogram": [{"cat": 2, "dog": 1, "owl": 0}, {"cat": 0, "dog": 1, "owl": 0}],
        "labels": [["cat", "dog"], ["dog"]],
        "names": ["x", "y"],
        "unused": 1,
        "notes": ["a note"],
    }
    report = split(y, {"kind": "classes", "sites": 2, "classes": 2}, rng()).report(y, ["cat", "dog", "owl"])
    assert sum(report["sizes"]) + report["unused"] == 5
    json.dumps(report)
