"""Groups of a sensitive attribute: drawn as candidates, put at the end of the inputs, carried to sites and server."""

import numpy as np
import pytest
import torch

from fedaccord.config import check_experiment
from fedaccord.data.dataset import load_dataset
from fedaccord.data.declarations import Sensitive
from fedaccord.data.sensitive import Target, find_target, with_groups
from fedaccord.deployment.known import read_known, write_known
from fedaccord.errors import ConfigError
from fedaccord.experiment import load_federation, read_federation
from people import GROUPS, played, table, write_people


@pytest.fixture
def people(tmp_path):
    return load_dataset(str(write_people(tmp_path)), tmp_path)


def test_candidates_hold_the_true_group_and_wrong_ones_by_chance(people):
    made = with_groups(people, Sensitive(column="region", q=0.25), seed=3, as_input=True)
    truth, sets = made.train.group, made.train.groups
    assert made.groups == GROUPS
    assert [GROUPS[g] for g in truth[:5]] == people.train.columns["region"][:5].tolist()
    assert sets[np.arange(len(truth)), truth].all()
    wrong = sets.sum(1) - 1
    assert wrong.mean() == pytest.approx(2 * 0.25, abs=0.05)
    assert np.array_equal(made.train.x[:, 4:], sets.astype(np.float32))
    assert made.group_features == 4
    again = with_groups(people, Sensitive(column="region", q=0.25), seed=3, as_input=True)
    assert np.array_equal(again.train.groups, sets)
    other = with_groups(people, Sensitive(column="region", q=0.25), seed=4, as_input=False)
    assert not np.array_equal(other.train.groups, sets)
    assert other.train.x.shape[1] == 4
    assert other.group_features is None


def test_cyclic_flips_confuse_a_group_with_the_next(people):
    asked = Sensitive(column="region", flips="cyclic", following=1.0, other=0.0)
    made = with_groups(people, asked, seed=0, as_input=False)
    expected = np.zeros_like(made.train.groups)
    rows = np.arange(len(expected))
    expected[rows, made.train.group] = expected[rows, (made.train.group + 1) % 3] = True
    assert np.array_equal(made.train.groups, expected)


def test_candidates_may_share_one_between_them(people, tmp_path):
    made = with_groups(people, Sensitive(column="region", q=0.4), seed=3, as_input=True, normalise=True)
    sets = made.train.groups
    assert np.allclose(made.train.x[:, 4:], sets / sets.sum(1, keepdims=True))
    assert {1, 2, 3} == set(sets.sum(1))
    told = table(tmp_path)
    told["fairness"]["normalise"] = True
    data = load_federation(check_experiment(told), tmp_path)
    for x in (data.test[0], *(site.train.x for site in data.sites.values())):
        assert torch.allclose(x[:, 4:].sum(1), torch.ones(len(x)))
        assert 0.5 in x[:, 4:]


def test_to_share_one_groups_must_be_inputs(tmp_path):
    told = table(tmp_path)
    told["fairness"] |= {"normalise": True, "input": False}
    with pytest.raises(ConfigError, match="normalise has no effect unless input = true"):
        check_experiment(told)


def test_certain_groups_are_sets_of_one(people):
    made = with_groups(people, Sensitive(column="region"), seed=0, as_input=True)
    assert (made.train.groups.sum(1) == 1).all()


def test_the_block_is_not_scaled_and_reaches_sites_and_server(tmp_path):
    data = load_federation(check_experiment(table(tmp_path)), tmp_path)
    assert data.groups == list(GROUPS)
    assert (data.input_shape, data.group_features) == ((7,), 4)
    for site in data.sites.values():
        for part in (site.train, site.test):
            assert torch.equal(part.x[:, 4:], part.group.float())
            assert bool(part.group.gather(1, part.group_truth[:, None]).all())
    sets, true = data.test_groups
    assert torch.equal(data.test[0][:, 4:], sets.float())
    assert len(true) == len(data.test[1])
    assert float(data.test[0][:, :4].std()) == pytest.approx(1.0, abs=0.15)


def test_samples_that_the_server_holds_have_the_block_too(tmp_path):
    told = table(tmp_path) | {"server": {"unlabelled": 50, "labelled": {"per_class": 3}}}
    data = load_federation(check_experiment(told), tmp_path)
    for x in (data.unlabelled, data.labelled[0]):
        assert set(x[:, 4:].unique().tolist()) <= {0.0, 1.0}
        assert x.shape[1] == 7


def test_a_servers_folder_knows_groups_and_block_but_no_row(tmp_path):
    data = load_federation(check_experiment(table(tmp_path)), tmp_path)
    write_known(tmp_path, data)
    known = read_known(tmp_path)
    assert (known.groups, known.group_features) == (data.groups, data.group_features)
    assert known.test_groups is None


def test_targets_are_found_by_name():
    target = find_target(GROUPS, ("low", "high"), "south", "high", 4)
    assert target == Target(GROUPS, 1, 1, 4)
    assert target.inputs == slice(4, 7)
    assert Target.read(target.describe()) == target
    shared = find_target(GROUPS, ("low", "high"), "south", "high", 4, normalised=True)
    assert Target.read(shared.describe()) == shared != target
    assert Target.read(None) is None
    with pytest.raises(ConfigError, match="needs a sensitive attribute"):
        find_target((), ("low",), "a", "low", None)


def test_figures_of_groups_are_measured_everywhere(tmp_path):
    _, records = played(table(tmp_path, rounds=2) | {"run": {"workers": 0, "evaluate_every": 2}})
    figures = records[-1].evaluation
    assert {"eod", "spd", "eod_candidate", "accuracy.north", "members"} <= set(figures.global_)
    assert figures.global_["members"] == sum(m["members"] for m in figures.sites.values())
    plain = table(tmp_path, rounds=1)
    del plain["fairness"]
    _, records = played(plain | {"run": {"workers": 0, "evaluate_every": 1}})
    assert "eod" not in records[-1].evaluation.global_


class TestTables:
    def experiment(self, tmp_path, second="region", inside=True, third_region="south|west", **fairness):
        rng = np.random.default_rng(0)
        for name, column in (("a", "region"), ("b", second)):
            lines = [f"age,{column},risk"]
            for row in range(40):
                region = third_region if row == 3 else "" if row == 4 else GROUPS[row % 3]
                lines.append(f"{rng.integers(20, 60)},{region},{('low', 'high')[row % 2]}")
            (tmp_path / f"{name}.csv").write_text("\n".join(lines) + "\n")
        sites = [
            {"name": "a", "data": "a.csv", "label": "risk", "sensitive": "region"},
            {"name": "b", "data": "b.csv", "label": "risk", "sensitive": second},
        ]
        fairness = {"group": "north", "label": "high", "input": inside, **fairness}
        method = {"name": "fedavg", "rounds": 1}
        return check_experiment({"sites": sites, "fairness": fairness, "method": method, "run": {"workers": 0}})

    def test_the_sensitive_column_becomes_the_last_features(self, tmp_path):
        data = load_federation(self.experiment(tmp_path), tmp_path)
        assert data.features.names == ["age", "region = north", "region = south", "region = west"]
        assert data.group_features == 1
        for site in data.sites.values():
            every = torch.cat([site.train.x, site.test.x])
            groups = torch.cat([site.train.group, site.test.group])
            assert torch.equal(every[:, 1:], groups.float())
            assert sorted(groups.sum(1).tolist())[-2:] == [2, 3]  # `south|west`, and a cell without a value

    def test_candidates_of_a_cell_may_share_one_between_them(self, tmp_path):
        data = load_federation(self.experiment(tmp_path, normalise=True), tmp_path)
        for site in data.sites.values():
            every = torch.cat([site.train.x, site.test.x])[:, 1:]
            groups = torch.cat([site.train.group, site.test.group]).float()
            assert torch.allclose(every, groups / groups.sum(1, keepdim=True))
            assert 0.5 in every

    def test_groups_stay_out_of_the_model_if_asked(self, tmp_path):
        data = load_federation(self.experiment(tmp_path, inside=False), tmp_path)
        assert data.features.names == ["age"]
        assert data.group_features is None

    def test_every_site_needs_the_same_column(self, tmp_path):
        with pytest.raises(
            ConfigError, match="every site needs the same sensitive column, and site 'b' calls it 'area'"
        ):
            read_federation(self.experiment(tmp_path, second="area"), tmp_path)


@pytest.mark.realdata
@pytest.mark.parametrize(
    ("name", "rows", "counts", "column", "groups"),
    [
        ("compas", 6172, [3421, 1607, 1144], "race", {"African-American": 3175, "Asian": 31, "Caucasian": 2103}),
        ("compas_binary", 6172, [3421, 2751], "sex", {}),
        ("student", 2392, [107, 269, 391, 414, 1211], "Ethnicity", {"Asian": 470, "Caucasian": 1207}),
        ("adult", 32561, [24720, 7841], "sex", {"Female": 10771, "Male": 21790}),
    ],
)
def test_the_published_tables_have_the_published_counts(name, rows, counts, column, groups, tmp_path):
    data = load_dataset(name, tmp_path)
    assert len(data.train) == rows
    assert np.bincount(data.train.y).tolist() == counts
    found = dict(zip(*np.unique(data.train.columns[column], return_counts=True), strict=True))
    assert {group: int(found[group]) for group in groups} == groups
    assert np.isfinite(data.train.x).all()
    assert len(data.sources) == data.shape[0]
    inside = with_groups(data, Sensitive(column=column), 0, as_input=True)
    assert inside.shape[0] == sum(source != column for source in data.sources) + len(inside.groups)


@pytest.mark.realdata
def test_gpa_is_a_feature_only_where_asked_for(tmp_path):
    assert "GPA" not in load_dataset("student", tmp_path).sources
    assert "GPA" in load_dataset("student_gpa", tmp_path).sources
