"""How a partition and the views of its sites go together."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fedaccord.config import check_experiment
from fedaccord.data.study import tag_groups
from fedaccord.errors import ConfigError
from fedaccord.experiment import load_federation


def federation(partition, base=Path(), dataset="digits", **data):
    table = {"data": {"dataset": dataset, "partition": partition, **data}}
    return load_federation(check_experiment(table), base)


def test_a_site_that_is_dealt_a_set_of_labels_knows_that_set():
    found = federation({"kind": "label-sets", "sites": 4, "labels": 3})
    for site in found.sites.values():
        assert site.view.informs().sum() == 3
        assert set(site.train.target.tolist()) <= set(site.view.informs().nonzero().flatten().tolist())


def test_unless_it_says_what_it_knows():
    digits = [str(d) for d in range(10)]
    found = federation({"kind": "label-sets", "sites": 4, "labels": 3}, view={"kind": "exact", "known": digits})
    assert all(site.view.informs().all() for site in found.sites.values())


def test_candidate_sets_are_of_the_labels_that_were_dealt():
    view = {"kind": "candidates", "generate": "uniform", "q": 0.5}
    found = federation({"kind": "label-sets", "sites": 4, "labels": 3}, view=view)
    dealt = found.partition["used"]["labels"]
    assert [list(site.view.known) for site in found.sites.values()] == dealt
    assert all(not site.train.target[:, ~site.view.informs()].any() for site in found.sites.values())


def test_own_candidates_are_those_that_occur(tmp_path):
    sets = np.zeros((40, 4), bool)
    sets[:20, :2] = sets[20:, 1:3] = True  # the first site's are p and q, the second's q and r; nobody has s
    x = np.random.default_rng(0).normal(size=(40, 3))
    where = np.repeat(["west", "east"], 20)
    np.savez(tmp_path / "sets.npz", X=x, candidates=sets, label_names=["p", "q", "r", "s"], where=where)
    view = {"kind": "candidates", "known": "own"}
    found = federation({"kind": "natural", "by": "where"}, tmp_path, "sets.npz", view=view)
    assert {name: site.view.known for name, site in found.sites.items()} == {"west": ("p", "q"), "east": ("q", "r")}


class TestTags:
    @pytest.fixture
    def tagged(self, tmp_path):
        rng = np.random.default_rng(0)
        tags = rng.integers(0, 2, (60, 3))
        np.savez(tmp_path / "tags.npz", X=rng.normal(size=(60, 4)), Y=tags, label_names=["p", "q", "r"])
        return tmp_path

    def test_they_are_dealt_without_an_invented_histogram(self, tagged):
        found = federation({"kind": "iid", "sites": 3}, tagged, "tags.npz", view={"kind": "tags"})
        assert found.partition["used"]["histogram"] is None

    def test_no_classes_no_partition_by_class(self, tagged):
        with pytest.raises(ConfigError, match=r"has no true classes.* use iid, quantity, dirichlet or natural"):
            federation({"kind": "label-sets", "sites": 2, "labels": 1}, tagged, "tags.npz", view={"kind": "tags"})

    def test_a_skewed_split_deals_rows_by_their_rarest_tag(self, tagged):
        even, skewed = (
            federation(
                {"kind": "dirichlet", "sites": 3, "alpha": alpha, "min_size": 5},
                tagged,
                "tags.npz",
                view={"kind": "tags"},
                test=0.0,
            )
            for alpha in (1e6, 0.05)
        )

        def spread(found):
            shares = torch.stack([(s.train.target == 1).float().mean(0) for s in found.sites.values()])
            return float(shares.std(0).mean())

        assert spread(skewed) > 3 * spread(even)
        assert sum(len(site.train) for site in skewed.sites.values()) == 60


def test_the_group_of_a_row_is_its_rarest_tag_and_with_many_tags_a_cluster():
    tags = np.array([[1, 1, 0], [0, 1, 0], [0, 0, 0], [1, 0, -1], [0, 1, 1]], dtype=np.int8)
    assert tag_groups(tags, 0).tolist() == [0, 1, 3, 0, 2]
    many = np.zeros((40, 30), dtype=np.int8)
    many[:20, :5] = 1
    many[20:39, 20:] = 1
    found = tag_groups(many, 0)
    assert len(set(found[:20])) == len(set(found[20:39])) == 1
    assert len({found[0], found[20], found[39]}) == 3


def test_unseen_sites_do_not_train_and_are_what_the_server_is_judged_on(tmp_path):
    rng = np.random.default_rng(0)
    np.savez(
        tmp_path / "users.npz", X=rng.normal(size=(60, 4)), Y=rng.integers(-1, 2, (60, 3)), user=np.arange(60) // 10
    )
    table = {
        "data": {
            "dataset": "users.npz",
            "partition": {"kind": "natural", "by": "user"},
            "view": {"kind": "tags"},
            "standardise": "none",
        },
        "server": {"unseen": 2},
    }
    found = load_federation(check_experiment(table), tmp_path)
    assert len(found.sites) == 4
    assert len(found.test[0]) == 20
    assert found.test_source == "2 sites that do not train"
    held = {tuple(row) for row in found.test[0].tolist()}
    ours = {tuple(row) for s in found.sites.values() for part in (s.train, s.test) for row in part.x.tolist()}
    assert not held & ours
    assert len(held | ours) == 60
    again = load_federation(check_experiment(table | {"seed": 1}), tmp_path)
    assert set(again.sites) != set(found.sites)
    with pytest.raises(ConfigError, match="6 of 6 sites"):
        load_federation(check_experiment(table | {"server": {"unseen": 6}}), tmp_path)
    with pytest.raises(ConfigError, match="does not go with server"):
        check_experiment(table | {"server": {"unseen": 2, "test": "t.npz"}})


class TestUnseenSitesAndWhatTheServerHolds:
    """Rows are numbered, and twelve of each of five people."""

    @pytest.fixture
    def people(self, tmp_path):
        x = np.arange(60, dtype=np.float32)[:, None]
        np.savez(tmp_path / "people.npz", X=x, y=np.arange(60) % 2, person=np.arange(60) // 12)

        def load(server, **data):
            table = {
                "dataset": "people.npz",
                "partition": {"kind": "natural", "by": "person"},
                "standardise": "none",
                "test": 0.0,
                **data,
            }
            return load_federation(check_experiment({"data": table, "server": server}), tmp_path)

        return load

    def test_unseen_sites_can_be_named(self, people):
        found = people({"unseen": ["1", "4"]})
        assert list(found.sites) == ["0", "2", "3"]
        assert sorted(found.test[0].ravel().tolist()) == [*range(12, 24), *range(48, 60)]
        assert found.test_source == "2 sites that do not train"
        with pytest.raises(ConfigError, match=r"server\.unseen: there is no site '7'"):
            people({"unseen": ["7"]})
        with pytest.raises(ConfigError, match=r"server\.unseen"):
            people({"unseen": []})

    @pytest.mark.parametrize("unseen", [3, ["0", "1", "2"]])
    def test_what_the_server_holds_is_of_sites_that_train(self, people, unseen):
        found = people({"unseen": unseen, "labelled": {"per_class": 5, "reserve": 6}, "unlabelled": 4})
        theirs = {row // 12 for row in found.test[0].ravel().tolist()}
        held = [*found.labelled[0].ravel().tolist(), *found.unlabelled.ravel().tolist()]
        trained = [row for site in found.sites.values() for row in site.train.x.ravel().tolist()]
        assert len(found.test[0]) == 36  # nothing was taken out of them
        assert len(held) == 14
        assert not {row // 12 for row in held} & theirs
        assert len({*trained, *held}) == len(trained) + len(held) == 24 - 2  # two more are the reserve


def test_gamma_skews_the_coarse_classes_or_the_fine_ones(tmp_path):
    fine = np.repeat(np.arange(8), 50)
    np.savez(
        tmp_path / "groups.npz",
        x=np.random.default_rng(0).normal(size=(400, 3)),
        fine=fine,
        coarse=fine // 2,
        fine_names=[f"f{i}" for i in range(8)],
        coarse_names=[f"c{i}" for i in range(4)],
        fine_to_coarse=np.arange(8) // 2,
    )

    def largest_share(level):
        asked = {"kind": "gamma", "sites": 2, "gamma": 0.9, "samples": 60, "level": level}
        used = federation(asked, tmp_path, "groups.npz").partition
        assert used["asked"]["level"] == level
        counts = np.array(list(used["used"]["histogram"][0].values()))
        return np.sort(counts)[::-1][:2].sum() / counts.sum()

    assert largest_share("fine") > 0.8  # two majority classes
    assert largest_share("coarse") < 0.7  # two majority groups, so four classes


@pytest.mark.parametrize(
    ("key", "given"),
    [("sites", "exact"), ("participation", 0.5), ("softmax", "full"), ("prior", "all"), ("bn", "local")],
)
def test_pooled_data_refuses_settings_of_sites(key, given):
    table = {
        "data": {"dataset": "digits", "partition": {"kind": "iid", "sites": 2}},
        "method": {"name": "pooled", key: given},
    }
    with pytest.raises(ConfigError, match=f"{key} has no effect on pooled data"):
        check_experiment(table)


def test_no_site_can_take_the_pools_name():
    with pytest.raises(ConfigError, match=r"no site can be named '\(pool\)'"):
        federation({"kind": "iid", "sites": 2}, names=["a", "(pool)"])


def test_the_models_defaults_are_written_down():
    found = check_experiment({"data": {"dataset": "digits", "partition": {"kind": "iid", "sites": 2}}})
    assert found.model.settings == {"hidden": [128]}
