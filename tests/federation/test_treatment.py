"""How a group is treated, as rounds measure it: which figures there are, and what they rest on."""

import numpy as np
import pytest
import torch

from fedaccord.config import check_experiment
from fedaccord.deployment.known import read_known, write_known
from fedaccord.errors import ConfigError
from fedaccord.experiment import load_federation
from people import GROUPS, played, table, write_people

pytestmark = pytest.mark.usefixtures("one_thread")


def test_tags_are_given_no_rates_and_break_no_round(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 4)).astype(np.float32)
    np.savez(
        tmp_path / "people.npz",
        x=x,
        Y=(x[:, :3] > 0).astype(np.int8),
        label_names=["low", "medium", "high"],
        region=rng.choice(GROUPS, 120),
    )
    told = table(tmp_path, sites=2, name="fedavg", rounds=1)
    told["data"]["view"] = {"kind": "tags"}
    _, records = played(told | {"run": {"workers": 0, "evaluate_every": 1}})
    figures = records[-1].evaluation
    assert "map" in figures.global_
    for measured in (figures.global_, *figures.sites.values()):
        assert not {"eod", "members", "members_candidate"} & set(measured)


def test_every_evaluation_has_each_groups_accuracy_and_its_rows(tmp_path):
    _, records = played(table(tmp_path, rounds=1) | {"run": {"workers": 0, "evaluate_every": 1}})
    figures = records[-1].evaluation
    for name in GROUPS:
        rows = [site[f"rows.{name}"] for site in figures.sites.values()]
        right = [site[f"rows.{name}"] * site[f"accuracy.{name}"] for site in figures.sites.values()]
        assert figures.global_[f"rows.{name}"] == sum(rows) > 0
        assert figures.pooled()[f"rows.{name}"] == sum(rows)
        assert figures.pooled()[f"accuracy.{name}"] == pytest.approx(sum(right) / sum(rows))
    people = figures.global_["members"] + figures.global_["others"]
    assert sum(figures.global_[f"rows.{name}"] for name in GROUPS) == people


class TestServersFile:
    """A test file of the server's own is measured by groups too, where it has the sensitive column."""

    def told(self, folder, inside=True, **columns):
        told = table(folder, sites=3, rounds=1) | {"run": {"workers": 0, "evaluate_every": 1}}
        path = write_people(folder, seed=5)
        arrays = dict(np.load(path))
        own = {name: arrays[name][:200] for name in ("x", "y", "region")} | columns
        there = {name: values for name, values in own.items() if values is not None}
        np.savez(folder / "own.npz", label_names=arrays["label_names"], **there)
        told["fairness"]["input"] = inside
        return told | {"server": {"test": str(folder / "own.npz")}}

    @pytest.mark.parametrize("inside", [True, False])
    def test_arrays(self, tmp_path, inside):
        told = self.told(tmp_path, inside)
        _, records = played(told)
        figures = records[-1].evaluation.global_
        assert figures["members"] + figures["others"] == 200
        assert figures["true_groups"] == 1.0
        assert {"eod", "eod_candidate", "accuracy.west"} <= set(figures)
        data = load_federation(check_experiment(told), tmp_path)
        assert data.test_source == "the server's own test file, own.npz"
        if inside:
            assert torch.equal(data.test[0][:, 4:], data.test_groups[0].float())

    def test_arrays_without_the_column(self, tmp_path):
        _, records = played(self.told(tmp_path, inside=False, region=None))
        assert "eod" not in records[-1].evaluation.global_
        with pytest.raises(ConfigError, match=r"data\.sensitive\.column: server\.test has no 'region'"):
            played(self.told(tmp_path, region=None))

    @pytest.mark.parametrize("inside", [True, False])
    def test_tables(self, tmp_path, inside):
        for name in ("a", "b", "own"):
            lines = [
                f"{row % 7},{'east' if name == 'own' and not row else GROUPS[row % 3]},{('low', 'high')[row % 2]}"
                for row in range(60)
            ]
            (tmp_path / f"{name}.csv").write_text("\n".join(["age,region,risk", *lines]) + "\n")
        sites = [{"name": n, "data": str(tmp_path / f"{n}.csv"), "label": "risk", "sensitive": "region"} for n in "ab"]
        told = {
            "sites": sites,
            "fairness": {"group": "north", "label": "high", "input": inside},
            "server": {"test": str(tmp_path / "own.csv")},
            "method": {"name": "fedavg", "rounds": 1},
            "run": {"workers": 0},
        }
        _, records = played(told)
        figures = records[-1].evaluation.global_
        assert figures["true_groups"] == 0.0
        assert (figures["members"], figures["others"]) == (19, 40)  # nobody else has 'east': it may be any
        assert figures["members_candidate"] == 20
        data = load_federation(check_experiment(told), tmp_path)
        write_known(tmp_path, data)
        known = read_known(tmp_path)
        assert torch.equal(known.test_groups[0], data.test_groups[0])
        assert known.test_groups[1] is None
