"""What the server holds: labelled samples taken out of a data set, and files of its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fedaccord import Exact, Federation, Site
from fedaccord.config import check_experiment, to_toml, with_paths_from
from fedaccord.data.dataset import Rows
from fedaccord.data.declarations import PerClass
from fedaccord.data.server_data import per_class
from fedaccord.errors import ConfigError, DataError
from fedaccord.experiment import load_federation
from fedaccord.labels.space import LabelSpace

SPACE = LabelSpace(["a", "b"])


def rows(sizes=(6, 8)):
    y = np.repeat(np.arange(len(sizes)), sizes)
    return Rows(np.arange(len(y), dtype=np.float32)[:, None], y)


def take_per_class(all_rows, *args, **more):
    return [all_rows.take(index) for index in per_class(all_rows.y, *args, **more)]


def split(samples=None, **server):
    data = {"dataset": "digits", "partition": {"kind": "iid", "sites": 2}}
    data |= {} if samples is None else {"samples": samples}
    return load_federation(check_experiment({"seed": 3, "data": data, "server": server}), Path())


class TestPerClass:
    def test_so_many_of_each_class_and_nothing_twice(self):
        taken, rest = take_per_class(rows(), PerClass(per_class=2), SPACE, seed=1)
        assert np.bincount(taken.y).tolist() == [2, 2]
        assert sorted([*taken.x.ravel(), *rest.x.ravel()]) == list(range(14))

    def test_fewer_are_among_more_and_a_reserve_keeps_the_rest_the_same(self):
        few, rest_of_few = take_per_class(rows(), PerClass(per_class=1, reserve=3), SPACE, seed=1)
        more, rest_of_more = take_per_class(rows(), PerClass(per_class=3), SPACE, seed=1)
        assert set(few.x.ravel()) < set(more.x.ravel())
        assert np.array_equal(rest_of_few.x, rest_of_more.x)
        other, _ = take_per_class(rows(), PerClass(per_class=3), SPACE, seed=2)
        assert set(other.x.ravel()) != set(more.x.ravel())

    @pytest.mark.parametrize(
        ("sizes", "wanted", "told"),
        [
            ((6, 1), 2, "asks for 2 samples of 'b', and there are 1"),
            ((2, 2), 2, "no site would have any"),
        ],
    )
    def test_too_few(self, sizes, wanted, told):
        with pytest.raises(ConfigError, match=told):
            take_per_class(rows(sizes), PerClass(per_class=wanted), SPACE, seed=1)

    def test_a_split_keeps_them_from_the_sites_and_from_the_test(self):
        plain, data = split(), split(labelled={"per_class": 4})
        x, classes = data.labelled
        assert torch.bincount(classes).tolist() == [4] * 10
        sites = [part.x for site in data.sites.values() for part in (site.train, site.test)]
        assert sum(map(len, sites)) == sum(len(s.train) + len(s.test) for s in plain.sites.values()) - 40
        seen = {row.numpy().tobytes() for part in (*sites, data.test[0]) for row in part}
        assert not any(row.numpy().tobytes() in seen for row in x)
        assert "the server holds 40 labelled samples, which no site has" in data.notes

    def test_fewer_samples_of_the_sites_are_none_of_the_servers_and_the_same_whatever_it_takes(self):
        few, more = (split(samples=100, labelled={"per_class": taken, "reserve": 6}) for taken in (2, 6))
        for data in (few, more):
            sites = [part.x for site in data.sites.values() for part in (site.train, site.test)]
            assert sum(map(len, sites)) == 100
            seen = {row.numpy().tobytes() for part in sites for row in part}
            assert not any(row.numpy().tobytes() in seen for row in data.labelled[0])
        for name in few.sites:
            assert torch.equal(few.sites[name].train.x, more.sites[name].train.x)

    @pytest.mark.parametrize(
        ("server", "told"),
        [
            ({"labelled": {"per_class": 5, "reserve": 2}}, "reserve is 2, but per_class asks for 5"),
            ({"labelled": {"per_class": 0}}, "labelled.per_class is 0"),
            ({"labelled": {"perclass": 5}}, "perclass"),
        ],
    )
    def test_wrong_settings_are_told(self, server, told):
        with pytest.raises(ConfigError, match=told):
            split(**server)

    def test_sites_with_files_need_a_file(self):
        table = {"sites": [{"name": "a", "data": "a.csv", "label": "y"}], "server": {"labelled": {"per_class": 5}}}
        with pytest.raises(ConfigError, match=r"takes samples out of \[data\]; with \[\[sites\]\] it names a file"):
            check_experiment(table)

    def test_it_is_written_down_and_read_again(self):
        table = {
            "data": {"dataset": "digits", "partition": {"kind": "iid", "sites": 2}},
            "server": {"labelled": {"per_class": 5}},
        }
        assert "labelled = { per_class = 5 }" in to_toml(check_experiment(table))


class TestFiles:
    def sites(self, folder, labelled, **server):
        (folder / "a.csv").write_text("x,kind\n" + "".join(f"{i},{'low' if i < 10 else 'high'}\n" for i in range(20)))
        view = {"kind": "coarse", "correspondence": {"low": ["p", "q"], "high": ["r"]}}
        return {
            "sites": [{"name": "a", "data": "a.csv", "label": "kind", "view": view}],
            "server": {"labelled": labelled, **server},
        }

    def test_a_table(self, tmp_path):
        (tmp_path / "few.csv").write_text("x,class\n1,p\n7,q\n12,r\n3,\n")
        experiment = check_experiment(self.sites(tmp_path, "few.csv", label="class"))
        x, classes = load_federation(experiment, tmp_path).labelled
        assert classes.tolist() == [0, 1, 2]
        assert x[:, 0].tolist() == sorted(x[:, 0].tolist())
        assert with_paths_from(experiment, tmp_path).server.labelled == str(tmp_path / "few.csv")

    def test_the_column_of_classes_is_asked_for(self, tmp_path):
        (tmp_path / "few.csv").write_text("x,class\n1,p\n")
        with pytest.raises(ConfigError, match=r"server.label is needed: .* in server.labelled"):
            load_federation(check_experiment(self.sites(tmp_path, "few.csv")), tmp_path)

    def test_a_wrong_class_is_named(self, tmp_path):
        (tmp_path / "few.csv").write_text("x,class\n1,p\n2,s\n")
        with pytest.raises(DataError, match="'s' is not one of the labels"):
            load_federation(check_experiment(self.sites(tmp_path, "few.csv", label="class")), tmp_path)

    def test_arrays(self, tmp_path):
        x = np.linspace(0, 1, 24, dtype=np.float32).reshape(12, 2)
        np.savez(tmp_path / "a.npz", x=x, y=np.array(["low", "high"] * 6))
        np.savez(tmp_path / "few.npz", x=x[:3], y=np.array(["p", "r", ""]))
        view = {"kind": "coarse", "names": ["low", "high"]}
        table = {
            "labels": {"classes": ["p", "q", "r"]},
            "sites": [{"name": "a", "data": "a.npz", "view": view}],
            "server": {"labelled": "few.npz"},
        }
        data = load_federation(check_experiment(table), tmp_path)
        assert data.labelled[1].tolist() == [0, 2]
        assert len(data.labelled[0]) == 2
        assert data.sites["a"].view.groups is None

    def test_samples_that_the_server_is_judged_on_are_refused(self, tmp_path):
        (tmp_path / "few.csv").write_text("x,class\n1,p\n7,q\n12,r\n3,\n")
        (tmp_path / "test.csv").write_text("x,class\n2,p\n7,r\n3,q\n")
        experiment = check_experiment(self.sites(tmp_path, "few.csv", label="class", test="test.csv"))
        told = "server.labelled, few.csv: 1 of its 3 samples are in the server's test data too"
        assert any(note.startswith(told) and "number 2" in note for note in load_federation(experiment, tmp_path).notes)
        (tmp_path / "test.csv").write_text("x,class\n2,p\n7,r\n12,q\n")
        with pytest.raises(DataError, match=r"server\.labelled, few\.csv: 2 of its 3 samples are in the server's test"):
            load_federation(experiment, tmp_path)
        (tmp_path / "test.csv").write_text("x,class\n2,p\n8,r\n3,q\n")
        assert not any("test data too" in note for note in load_federation(experiment, tmp_path).notes)

    def test_samples_in_memory_that_are_judged_on_are_refused(self):
        sites = [Site("a", [[0.0], [1.0], [4.0]], ["a", "b", "a"], Exact(SPACE))]
        test = ([[2.0], [3.0]], ["a", "b"])
        with pytest.raises(DataError, match="labelled: 2 of its 2 samples are in the server's test data too"):
            Federation(sites, test=test, labelled=test).train("fedmt", model="linear", rounds=1)


class TestNamesAlone:
    def test_a_split_needs_a_correspondence_to_make_annotations(self):
        table = {
            "data": {
                "dataset": "digits",
                "partition": {"kind": "iid", "sites": 2},
                "view": {"kind": "coarse", "names": ["x"]},
            }
        }
        with pytest.raises(ConfigError, match=r"view.names is for sites with their own files"):
            load_federation(check_experiment(table), Path())

    def test_one_of_both_is_needed(self):
        for view, told in (({}, "neither is given"), ({"names": ["x"], "correspondence": "shape"}, "both are given")):
            table = {
                "data": {
                    "dataset": "digits",
                    "partition": {"kind": "iid", "sites": 2},
                    "view": {"kind": "coarse", **view},
                }
            }
            with pytest.raises(ConfigError, match=told):
                check_experiment(table)

    def test_known_correspondences_must_be_declared(self):
        table = {
            "sites": [{"name": "a", "data": "a.csv", "label": "y", "view": {"kind": "coarse", "names": ["x"]}}],
            "method": {"name": "fedmt", "correspondence": "known"},
        }
        with pytest.raises(ConfigError, match="site 'a' declares names without a correspondence, but method"):
            check_experiment(table)
