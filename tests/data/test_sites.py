"""From one data set, or from the sites' own files, to a federation: what was asked is what is used."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from command_line import blobs
from fedaccord.clean_classifier import clean_predictions
from fedaccord.data.dataset import Dataset, Rows, load_dataset
from fedaccord.data.declarations import Features, SiteFiles, SiteSection, Split
from fedaccord.data.own_files import read_array_sites
from fedaccord.data.scaling import apply_moments, fit_moments
from fedaccord.data.sites import pool_sites
from fedaccord.data.study import split_dataset
from fedaccord.errors import ConfigError, DataError, PartitionError
from fedaccord.labels.views import CandidatesView, CoarseView, ExactView, TagsView, UnlabelledView

EXACT = ExactView(kind="exact")
COARSE = CoarseView(kind="coarse", correspondence={"low": ["ant", "bee"], "high": ["cat"]})
CANDIDATES = CandidatesView(kind="candidates")
UNLABELLED = UnlabelledView(kind="unlabelled")
NAMES = np.array(["ant", "bee", "cat"])
IID = {"kind": "iid", "sites": 3}


@pytest.fixture(scope="module")
def digits():
    return load_dataset("digits", Path())


def numbered(n=60, classes=3, test=None, **columns):
    """A data set whose samples can be told apart: the first feature is the row's number."""
    x, y = blobs(n, classes)
    x[:, 0] = np.arange(n)
    return Dataset("numbered", Rows(x, y, columns=columns), test, tuple(NAMES[:classes]), False)


def split(dataset, partition=IID, view=EXACT, views=(), names=None, classes=None, seed=0, **options):
    return split_dataset(dataset, Split(partition, view, dict(views), names, classes, seed, **options))


def read_sites(files, classes, test_file, seed, **features):
    sections = [SiteSection(name=n, data=str(path), view=view, test=test) for n, (path, view, test) in files.items()]
    return read_array_sites(SiteFiles(sections, Features(**features), classes=classes, test_file=test_file, seed=seed))


def rows_of(part):
    return part.x[:, 0].int().tolist()


class TestSplit:
    def test_every_sample_is_in_one_part_of_one_site(self):
        made = split(numbered(), standardise="none", test=0.3)
        train, test = [[rows_of(getattr(s, part)) for s in made.sites.values()] for part in ("train", "test")]
        assert [len(rows) for rows in train] == [14, 14, 14]
        assert [len(rows) for rows in test] == [6, 6, 6]
        assert sorted(row for rows in train + test for row in rows) == list(range(60))

    def test_labels_stay_with_their_samples(self):
        dataset = numbered()
        for site in split(dataset, standardise="none").sites.values():
            for part in (site.train, site.test):
                assert part.target.tolist() == part.truth.tolist() == dataset.train.y[rows_of(part)].tolist()

    def test_the_same_seed_makes_the_same_federation(self):
        def all_rows(seed):
            made = split(numbered(), seed=seed, standardise="none", samples=40)
            return {name: (rows_of(site.train), rows_of(site.test)) for name, site in made.sites.items()}

        assert all_rows(0) == all_rows(0)
        assert all_rows(0) != all_rows(1)

    def test_sites_have_the_names_given_to_them(self):
        made = split(numbered(), names=["x", "y", "z"], views={"y": UNLABELLED})
        assert list(made.sites) == ["x", "y", "z"]
        assert [site.view.kind for site in made.sites.values()] == ["exact", "unlabelled", "exact"]

    def test_sites_without_names_are_numbered_so_that_they_sort(self):
        assert list(split(numbered(), {"kind": "iid", "sites": 11}).sites)[:3] == ["site-00", "site-01", "site-02"]

    def test_a_column_names_its_sites(self):
        ward = np.repeat(np.array(["north", "south"]), [20, 40])
        made = split(numbered(ward=ward), {"kind": "natural", "by": "ward"}, standardise="none", test=0)
        assert {name: len(site.train) for name, site in made.sites.items()} == {"north": 20, "south": 40}
        assert rows_of(made.sites["north"].train) == list(range(20))

    def test_few_samples_are_all_trained_on_and_that_is_noted(self):
        made = split(numbered(), {"kind": "quantity", "sizes": [4, 5]}, names=["tiny", "small"], test=0.5)
        assert [(len(s.train), len(s.test)) for s in made.sites.values()] == [(4, 0), (3, 2)]
        assert made.notes == ["site 'tiny' has 4 samples only and keeps them all for training"]

    def test_no_test_share_is_no_test(self):
        made = split(numbered(), test=0)
        assert all(len(site.test) == 0 and len(site.train) == 20 for site in made.sites.values())
        assert made.test is None
        assert made.notes == []

    def test_only_some_of_the_samples(self):
        made = split(numbered(), samples=30, standardise="none")
        assert sum(len(s.train) + len(s.test) for s in made.sites.values()) == 30
        assert made.notes == []

    def test_more_samples_than_there_are_is_noted(self):
        made = split(numbered(), samples=61)
        assert sum(len(s.train) + len(s.test) for s in made.sites.values()) == 60
        assert made.notes == ["data.samples asks for 61, but there are 60; all are used"]

    def test_the_account_says_what_was_asked_and_what_is_used(self):
        asked = {"kind": "quantity", "sizes": [30, 12]}
        made = split(numbered(), asked)
        assert made.partition["asked"] == asked
        used = made.partition["used"]
        assert (used["sizes"], used["unused"]) == ([30, 12], 18)
        assert used["histogram"] == [{"ant": 10, "bee": 10, "cat": 10}, {"ant": 4, "bee": 4, "cat": 4}]
        assert made.histogram == {
            name: {label: int((site.train.truth == c).sum()) for c, label in enumerate(NAMES)}
            for name, site in made.sites.items()
        }

    def test_what_a_partition_could_not_do_is_noted(self):
        made = split(numbered(), {"kind": "dirichlet", "sites": 8, "alpha": 1.0, "min_size": 10})
        assert made.notes[0] == "60 samples cannot give 8 sites 10 each, so the smallest may have 1"
        assert made.partition["used"]["notes"] == made.notes[:1]


class TestViews:
    def test_own_labels_are_those_dealt_to_the_site(self, digits):
        made = split(digits, {"kind": "label-sets", "sites": 4, "labels": 3}, ExactView(kind="exact", known="own"))
        dealt = made.partition["used"]["labels"]
        assert [list(site.view.known) for site in made.sites.values()] == dealt
        assert {label for labels in dealt for label in labels} == set("0123456789")
        for site in made.sites.values():
            assert set(site.train.target.tolist()) <= {int(label) for label in site.view.known}
            assert site.view.informs().sum() == 3
        assert made.notes == []

    def test_own_labels_of_another_partition_are_those_that_occur(self):
        made = split(numbered(12), {"kind": "quantity", "sizes": [2, 9]}, ExactView(kind="exact", known="own"))
        first = made.sites["site-0"]
        assert sorted(first.view.known) == sorted(NAMES[first.train.target.unique()])
        assert len(first.view.known) == 2

    def test_known_labels_leave_out_the_rest_and_say_so(self):
        made = split(numbered(), views={"site-1": ExactView(kind="exact", known=["cat", "ant"])})
        site = made.sites["site-1"]
        left = 20 - len(site.train) - len(site.test)
        assert made.notes == [f"site 'site-1' leaves out {left} samples of classes it does not know"]
        assert left > 0
        assert set(site.train.target.tolist()) == {0, 2}
        assert made.partition["used"]["sizes"] == [20, 20, 20]

    def test_a_grouping_of_the_data_set(self, digits):
        made = split(digits, views={"site-0": CoarseView(kind="coarse", correspondence="parity")}, samples=300)
        site = made.sites["site-0"]
        assert site.view.answers == ("even", "odd")
        assert torch.equal(site.train.target, site.train.truth % 2)

    def test_a_grouping_speaks_in_the_federation_s_names(self, digits):
        names = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
        view = CoarseView(kind="coarse", correspondence="parity")
        made = split(digits, view=view, classes=names, samples=300)
        assert made.space.names == tuple(names)
        assert made.sites["site-0"].view.groups["odd"] == ["one", "three", "five", "seven", "nine"]
        assert torch.equal(made.sites["site-1"].train.target, made.sites["site-1"].train.truth % 2)

    def test_classes_of_a_data_set_that_names_its_labels(self):
        assert split(numbered(), classes=["cat", "ant", "bee"]).space.names == ("ant", "bee", "cat")

    def test_instance_candidates_follow_the_samples_to_their_sites(self, digits, one_thread):
        seen = {}

        def clean(dataset):
            seen["rows"] = len(dataset.train)
            chances = np.full((len(dataset.train), 10), 1e-9)
            chances[np.arange(len(dataset.train)), (dataset.train.y + 3) % 10] = 1  # confused with the third next class
            return chances

        view = CandidatesView(kind="candidates", generate="instance", rho=0.4, temperature=1.0)
        made = split(digits, view=view, samples=300, clean=clean)
        assert seen["rows"] == 300
        for site in made.sites.values():
            one_hot = torch.nn.functional.one_hot(site.train.truth, 10).bool()
            assert torch.equal(site.train.target, one_hot | one_hot.roll(3, 1))

    def test_real_instance_candidates(self, digits, one_thread):
        view = CandidatesView(kind="candidates", generate="instance", rho=0.1)
        made = split(digits, view=view, clean=lambda dataset: clean_predictions(dataset, 0))
        sizes = torch.cat([site.train.target.sum(1) for site in made.sites.values()]).float()
        assert sizes.mean() == pytest.approx(2, abs=0.1)  # 1 + 10 rho

    def test_data_of_tags_is_split_without_true_classes(self):
        tags = np.tile(np.array([[1, 0, -1]], np.int8), (30, 1))
        dataset = Dataset("tagged", Rows(np.ones((30, 2), np.float32), tags=tags), None, tuple(NAMES), False)
        made = split(dataset, view=TagsView(kind="tags"))
        assert [len(site.train) for site in made.sites.values()] == [8, 8, 8]
        assert made.sites["site-0"].train.target.tolist() == [[1, 0, -1]] * 8
        assert made.histogram is None
        assert made.test[1].tolist() == [[1, 0, -1]] * 6  # the sites' own test parts, judged by their tags


class TestScaling:
    def test_it_is_fitted_on_the_training_part_alone(self):
        plain, dataset = split(numbered(), standardise="none"), numbered()
        test_rows = [row for site in plain.sites.values() for row in rows_of(site.test)]
        dataset.train.x[test_rows] *= 1000
        before, after = split(numbered()), split(dataset)
        for name in plain.sites:
            assert torch.equal(before.sites[name].train.x, after.sites[name].train.x)
            assert not torch.equal(before.sites[name].test.x, after.sites[name].test.x)

    def test_every_site_may_have_its_own(self):
        for site in split(numbered(), standardise="site").sites.values():
            assert site.train.x.mean(0).abs().max() < 1e-5
            assert site.train.x.std(0, correction=0) == pytest.approx(torch.ones(4), abs=1e-5)

    def test_by_default_all_sites_have_those_of_their_training_rows_together(self):
        dataset = numbered()
        dataset.train.x[::7, 2] = np.nan
        raw, made = split(dataset, standardise="none", unlabelled=5), split(dataset, unlabelled=5)
        moments = fit_moments(dataset.train.x[[row for s in raw.sites.values() for row in rows_of(s.train)]])
        for name, site in made.sites.items():
            for part in ("train", "test"):
                rows = rows_of(getattr(raw.sites[name], part))
                expected = apply_moments(dataset.train.x[rows], moments)
                assert np.allclose(getattr(site, part).x.numpy(), expected, atol=1e-5)
        expected = apply_moments(dataset.train.x[raw.unlabelled[:, 0].int().numpy()], moments)
        assert np.allclose(made.unlabelled.numpy(), expected, atol=1e-5)
        assert not any(np.allclose(s.train.x.numpy().mean(0), 0, atol=1e-3) for s in made.sites.values())

    @pytest.mark.parametrize("way", ["federation", "site", "none"])
    def test_images_are_left_as_they_are(self, digits, way):
        assert split(digits, samples=60, standardise=way).sites["site-0"].train.x.min() == -1

    def test_missing_values_become_the_mean(self):
        dataset = numbered()
        dataset.train.x[::2, 1] = np.nan
        for site in split(dataset).sites.values():
            assert torch.isfinite(site.train.x).all()
            assert torch.isfinite(site.test.x).all()
            assert (site.train.x[:, 1] == 0).sum() >= 5


class TestServerTest:
    def published(self):
        x, y = blobs(20, seed=5)
        return numbered(test=Rows(x, y))

    def test_it_is_the_pool_of_the_sites_parts_in_a_study(self):
        made = split(numbered())
        x, truth = made.test
        assert torch.equal(x, torch.cat([site.test.x for site in made.sites.values()]))
        assert torch.equal(truth, torch.cat([site.test.truth for site in made.sites.values()]))
        assert made.test_source.startswith("the pool of the sites' own test parts")

    def test_it_is_the_published_part_where_there_is_one(self):
        dataset = self.published()
        made = split(dataset)
        rows = [row for s in split(dataset, standardise="none").sites.values() for row in rows_of(s.train)]
        x, truth = made.test
        assert truth.tolist() == dataset.test.y.tolist()
        assert made.test_source == "the published test part of numbered"
        # Scaled by all sites' training rows, which the server knows by their moments alone.
        expected = apply_moments(dataset.test.x, fit_moments(dataset.train.x[rows]))
        assert np.allclose(x.numpy(), expected, atol=1e-5)

    def test_a_file_that_marks_its_published_part(self, tmp_path):
        x, y = blobs(50)
        x[:, 0] = np.arange(50)
        np.savez(tmp_path / "f.npz", x=x, y=y, is_test=np.arange(50) >= 40, label_names=NAMES)
        made = split(load_dataset("f.npz", tmp_path), standardise="none", test=0.25)
        assert made.test[0][:, 0].tolist() == list(range(40, 50))
        assert made.test[1].tolist() == y[40:].tolist()
        seen = [row for site in made.sites.values() for row in rows_of(site.train) + rows_of(site.test)]
        assert sorted(seen) == list(range(40))  # nobody else sees it
        assert made.space.names == tuple(NAMES)

    def test_only_some_of_the_published_part(self):
        assert len(split(self.published(), test_samples=7).test[1]) == 7
        assert len(split(self.published(), test_samples=700).test[1]) == 20

    def test_asking_for_some_of_what_is_not_there_is_noted(self):
        note = "data.test_samples is not used: the test is not the published part of the data set"
        assert split(numbered(), test_samples=7).notes == [note]
        assert split(self.published(), test_samples=7).notes == []

    def test_the_server_s_own_file_comes_first(self, tmp_path):
        x, y = blobs(8, seed=9)
        np.savez(tmp_path / "held.npz", x=x, y=y, label_names=NAMES)
        made = split(self.published(), test_file=tmp_path / "held.npz", standardise="none")
        assert made.test[1].tolist() == y.tolist()
        assert np.array_equal(made.test[0].numpy(), x)
        assert made.test_source == "the server's own test file, held.npz"


class TestRefusals:
    @pytest.mark.parametrize(
        ("options", "told"),
        [
            ({"partition": {"kind": "iid", "sites": 61}}, "data.partition: 61 sites cannot be made from 60 samples"),
            ({"partition": {"kind": "natural", "by": "ward"}}, "data.partition.by: 'numbered' has no column 'ward'"),
            ({"names": ["a"]}, "data.names has 1 names, but the partition makes 3 sites"),
            ({"views": {"site-9": EXACT}}, "data.views: there is no site 'site-9'; did you mean 'site-"),
            ({"classes": ["ant", "bee"]}, "labels.classes has 2 names, but 'numbered' has 3 labels: ant, bee, cat"),
            ({"classes": ["ant", "bee", "cats"]}, "labels.classes: 'numbered' has no label 'cats'; did you mean 'cat'"),
        ],
    )
    def test_they_name_the_key(self, options, told):
        with pytest.raises((ConfigError, PartitionError)) as caught:
            split(numbered(), **options)
        assert str(caught.value).startswith(told)

    def test_a_site_without_samples_of_what_it_knows(self):
        dataset = numbered(ward=np.repeat(np.array(["a", "b"]), 30))
        dataset.train.y[:30] = 0
        known = {"a": ExactView(kind="exact", known=["bee", "cat"])}
        with pytest.raises(DataError) as caught:
            split(dataset, {"kind": "natural", "by": "ward"}, views=known)
        told = "site 'a' has no samples: all 30 are of classes that it does not know (it knows bee, cat)"
        assert str(caught.value) == told

    def test_a_wrong_view_is_told_before_what_follows_from_it(self):
        dataset = numbered(ward=np.repeat(np.array(["a", "b"]), 30))
        dataset.train.y[:30] = 0
        wrong = {"a": CoarseView(kind="coarse", correspondence={"low": ["bee", "catt"]})}
        with pytest.raises(ConfigError, match=r"site 'a': correspondence, .*'catt' is not a label .* mean 'cat'\?$"):
            split(dataset, {"kind": "natural", "by": "ward"}, views=wrong)

    def test_a_data_set_without_labels(self):
        with pytest.raises(DataError, match=r"'bare' has no labels: none of the arrays 'y', 'Y', 'candidates'"):
            split(Dataset("bare", Rows(np.ones((9, 2), np.float32)), None, (), False))

    def test_a_data_set_with_samples_without_a_class(self):
        dataset = numbered()
        dataset.train.y[7] = -1
        with pytest.raises(DataError, match=r"'numbered': 'y' holds numbers below 0"):
            split(dataset)


class TestOwnFiles:
    @pytest.fixture
    def files(self, tmp_path):
        """Three sites that label the same animals each in their own way."""
        x, y = blobs(90)
        sets = np.eye(3, dtype=bool)[y] | (np.random.default_rng(0).random((90, 3)) < 0.3)
        np.savez(tmp_path / "exact.npz", x=x, y=y, label_names=NAMES)
        np.savez(tmp_path / "coarse.npz", x=x + 100, y=(y < 2).astype(int), label_names=np.array(["high", "low"]))
        np.savez(tmp_path / "sets.npz", x=x, y=y, candidates=sets, label_names=NAMES)
        return {
            "zoo": (tmp_path / "exact.npz", EXACT, 0.2),
            "farm": (tmp_path / "coarse.npz", COARSE, 0.1),
            "crowd": (tmp_path / "sets.npz", CANDIDATES, 0.0),
        }

    def test_sites_of_different_views(self, files):
        made = read_sites(files, None, None, seed=0)
        assert made.space.names == ("ant", "bee", "cat")
        sizes = {name: (site.view.kind, len(site.train), len(site.test)) for name, site in made.sites.items()}
        assert sizes == {"zoo": ("exact", 72, 18), "farm": ("coarse", 81, 9), "crowd": ("candidates", 90, 0)}
        assert (made.input_shape, made.test) == ((4,), None)
        assert made.test_source == "the server has no test data, so there are no global figures"
        assert set(made.sites["farm"].train.target.tolist()) == {0, 1}
        assert made.sites["farm"].train.truth is None

    def test_they_are_standardised_by_the_moments_of_all_unless_the_file_says_otherwise(self, files):
        common, own, raw = (read_sites(files, None, None, 0, standardise=w) for w in ("federation", "site", "none"))
        assert torch.equal(read_sites(files, None, None, 0).sites["zoo"].test.x, common.sites["zoo"].test.x)
        moments = fit_moments(torch.cat([site.train.x for site in raw.sites.values()]).numpy())
        for name, site in raw.sites.items():
            for part in ("train", "test"):
                x = getattr(site, part).x.numpy()
                expected = apply_moments(x, moments)
                assert np.allclose(getattr(common.sites[name], part).x.numpy(), expected, atol=1e-4)
                expected = apply_moments(x, fit_moments(site.train.x.numpy()))
                assert np.allclose(getattr(own.sites[name], part).x.numpy(), expected, atol=1e-4)

    def test_names_in_place_of_numbers(self, files, tmp_path):
        numbered = read_sites(files, None, None, seed=0)
        for name in ("exact", "coarse"):
            arrays = dict(np.load(tmp_path / f"{name}.npz"))
            np.savez(tmp_path / f"{name}.npz", x=arrays["x"], y=arrays["label_names"][arrays["y"]])
        named = read_sites(files, None, None, seed=0)
        assert named.space == numbered.space
        for name, site in named.sites.items():
            assert torch.equal(site.train.target, numbered.sites[name].train.target)

    def test_the_order_in_the_file_changes_nothing(self, files, tmp_path):
        np.savez(tmp_path / "other.npz", x=blobs(30)[0], y=blobs(30)[1], label_names=np.array(["cat", "yak", "ant"]))
        files["other"] = (tmp_path / "other.npz", EXACT, 0.2)
        one, other = (read_sites(dict(order), None, None, 0) for order in (files.items(), reversed(files.items())))
        assert one.space == other.space
        assert list(one.sites) == list(reversed(other.sites)) == list(files)
        for name in files:
            assert torch.equal(one.sites[name].train.x, other.sites[name].train.x)
            assert torch.equal(one.sites[name].train.target, other.sites[name].train.target)
        pools = [pool_sites("pool", made.sites, made.space, "views") for made in (one, other)]
        assert torch.equal(pools[0].train.x, pools[1].train.x)
        assert torch.equal(pools[0].train.target, pools[1].train.target)

    def test_classes_named_in_the_experiment_file_come_first(self, files):
        assert read_sites(files, ["cat", "ant", "bee", "yak"], None, 0).space.names == ("cat", "ant", "bee", "yak")

    def test_a_test_part_that_the_file_marks_is_the_site_s(self, tmp_path):
        x, y = blobs(30)
        x[:, 0] = np.arange(30)
        marks = np.arange(30) % 3 == 0
        np.savez(tmp_path / "a.npz", x=x, y=y, label_names=NAMES, is_test=marks)
        site = read_sites({"a": (tmp_path / "a.npz", EXACT, 0.2)}, None, None, 0).sites["a"]
        assert (len(site.train), len(site.test)) == (20, 10)
        assert site.test.target.tolist() == y[marks].tolist()
        assert np.allclose(site.test.x.numpy(), apply_moments(x[marks], fit_moments(x[~marks])), atol=1e-5)

    def test_the_server_s_test_is_scaled_by_all_sites_moments(self, files, tmp_path):
        x, y = blobs(12, seed=3)
        np.savez(tmp_path / "test.npz", x=x, y=2 - y, label_names=NAMES[::-1])
        made = read_sites(files, None, tmp_path / "test.npz", 0)
        assert made.test[1].tolist() == y.tolist()  # by name, in whatever order the file has them
        assert made.test[0].mean() < -0.5  # the farm's samples are 100 away, and they count
        assert made.test_source == "the server's own test file, test.npz"

    def test_a_server_test_with_marks_gives_its_marked_rows(self, files, tmp_path):
        x, y = blobs(12, seed=3)
        np.savez(tmp_path / "test.npz", x=x, y=y, label_names=NAMES, is_test=np.arange(12) < 5)
        assert len(read_sites(files, None, tmp_path / "test.npz", 0).test[1]) == 5

    def refusal(self, files, classes=None, test=None):
        with pytest.raises((ConfigError, DataError)) as caught:
            read_sites(files, classes, test, 0).without_flaws()
        return str(caught.value)

    def test_shapes_that_differ(self, files, tmp_path):
        np.savez(tmp_path / "wide.npz", x=np.ones((9, 5)), y=np.zeros(9, int), label_names=NAMES)
        files["wide"] = (tmp_path / "wide.npz", EXACT, 0.2)
        told = "the sites' samples differ in shape (crowd: (4,), farm: (4,), wide: (5,), zoo: (4,))"
        assert self.refusal(files) == told

    def test_a_server_test_of_another_shape(self, files, tmp_path):
        np.savez(tmp_path / "wide.npz", x=np.ones((9, 5)), y=np.zeros(9, int), label_names=NAMES)
        told = f"server.test: the samples of '{tmp_path}/wide.npz' have shape (5,), the sites' have (4,)"
        assert self.refusal(files, test=tmp_path / "wide.npz") == told

    def test_files_that_are_not_there(self, files, tmp_path):
        gone = tmp_path / "no.npz"
        assert self.refusal(files, test=gone) == f"server.test: the file '{gone}' is not there"
        files["zoo"] = (gone, EXACT, 0.2)
        assert self.refusal(files) == f"site 'zoo': the file '{gone}' is not there"

    def test_a_site_may_know_the_labels_of_its_own_file(self, tmp_path):
        x, y = blobs(30)
        sets = np.zeros((30, 3), dtype=bool)
        sets[:, 1:] = True
        marks = np.arange(30) >= 20
        np.savez(tmp_path / "a.npz", x=x, y=np.where(y == 1, -1, y), label_names=NAMES, is_test=marks)
        np.savez(tmp_path / "b.npz", x=x, candidates=sets, label_names=NAMES)
        exact, several = ExactView(known="own"), CandidatesView(kind="candidates", known="own")
        files = {"a": (tmp_path / "a.npz", exact, 0.2), "b": (tmp_path / "b.npz", several, 0.2)}
        made = read_sites(files, None, None, 0)
        assert made.space.names == tuple(NAMES)
        assert made.sites["a"].view.known == (NAMES[0], NAMES[2])
        assert made.sites["b"].view.known == (NAMES[1], NAMES[2])

    def test_no_site_with_the_federation_s_own_classes(self, files):
        del files["zoo"], files["crowd"]
        assert self.refusal(files) == "labels.classes is needed: no site's file names the classes of the federation"
        assert read_sites(files, ["ant", "bee", "cat"], None, 0).space.names == ("ant", "bee", "cat")


class TestPool:
    def test_true_classes(self):
        made = split(numbered(), views={"site-1": UNLABELLED})
        pool = pool_sites("pool", made.sites, made.space, "truth")
        assert (pool.view.kind, len(pool.train), len(pool.test)) == ("exact", 48, 0)
        assert pool.train.target.tolist() == torch.cat([s.train.truth for s in made.sites.values()]).tolist()

    def test_each_through_its_own_view(self):
        made = split(numbered(), views={"site-1": COARSE, "site-2": ExactView(kind="exact", known=["ant", "cat"])})
        pool = pool_sites("pool", made.sites, made.space, "views")
        logits = torch.randn(len(pool.train), 3)
        expected = torch.cat(
            [
                site.view.nll(part, site.train.target)
                for site, part in zip(
                    made.sites.values(), logits.split([len(s.train) for s in made.sites.values()]), strict=True
                )
            ]
        )
        assert pool.view.nll(logits, pool.train.target) == pytest.approx(expected, rel=1e-5, abs=1e-6)

    def test_what_cannot_be_pooled(self, tmp_path):
        np.savez(tmp_path / "a.npz", x=blobs(9)[0], y=blobs(9)[1] % 2, label_names=np.array(["low", "high"]))
        own = read_sites({"a": (tmp_path / "a.npz", COARSE, 0)}, list(NAMES), None, 0)
        with pytest.raises(ConfigError, match=r'method.labels = "truth" needs every site\'s true classes'):
            pool_sites("pool", own.sites, own.space, "truth")
