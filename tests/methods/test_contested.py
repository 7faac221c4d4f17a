"""Any recipe that shares a model can be attacked and defended, through every kind of annotation it takes."""

import numpy as np
import pytest
import torch

import fedaccord
from fedaccord.adversary.settings import AttackSettings
from fedaccord.data.declarations import Fairness
from fedaccord.errors import ConfigError, DataError
from fedaccord.federation.state import model_digest
from fedaccord.hosting import host_spec, site_spec
from fedaccord.labels.space import LabelSpace
from fedaccord.labels.views import Candidates, Exact
from fedaccord.methods.shared_settings import ClassicSettings
from people import GROUPS, LABELS, played, table, write_people
from small_federation import SPACE, site

pytestmark = pytest.mark.usefixtures("one_thread")
DEFENCE = {"kind": "group-update"}
ATTACK = {"kind": "plfa", "sites": 2}


@pytest.mark.parametrize(
    "method", ["accord", "fedavg", "fedprox", "scaffold", "private-labels", "fed-cc", "pfedpll+", "fednag", "pfedmo"]
)
@pytest.mark.parametrize("kind", ["plfa", "mixup"])
def test_methods_are_attacked_and_defended(tmp_path, method, kind):
    told = table(tmp_path, name=method, attack={"kind": kind, "sites": 2}, defence=DEFENCE, rounds=2)
    if method in ("fed-cc", "pfedpll+"):
        told["method"]["steps"] = 3
    if method == "private-labels":
        told["data"]["view"] = {"kind": "exact"}
    if method == "pfedmo":
        told["server"] = {"labelled": {"per_class": 10}}
    server, records = played(told)
    assert not server.dropped
    assert all("hostile_excluded" in record.figures for record in records)
    _, calm = played({**told, "method": {k: v for k, v in told["method"].items() if k not in ("attack", "defence")}})
    assert records[-1].evaluation.global_["nll"] != calm[-1].evaluation.global_["nll"]


def test_a_defence_works_beside_a_robust_rule(tmp_path):
    server, records = played(table(tmp_path, attack=ATTACK, defence=DEFENCE, aggregation="median", rounds=2))
    assert not server.dropped
    assert "excluded" in records[-1].figures


def test_who_the_defence_leaves_out_does_not_make_a_rule_want_for_sites(tmp_path):
    told = table(tmp_path, sites=9, attack=ATTACK, defence=DEFENCE, aggregation="krum", hostile=3, rounds=3)
    server, records = played(told)
    assert all(record.replied == 7 for record in records)
    assert not server.dropped


def test_a_local_method_has_neither_slot(tmp_path):
    with pytest.raises(ConfigError, match=r"unknown key 'method\.attack'"):
        played(table(tmp_path, name="local", attack=ATTACK))


@pytest.mark.slow
def test_workers_do_not_change_the_model(tmp_path):
    told = table(tmp_path, attack=ATTACK, defence={"kind": "inversion", "reconstruct": True}, rounds=3)
    here, first = played(told)
    there, second = played({**told, "run": {"workers": 2, "evaluate_every": 3}})
    assert model_digest(here.state.model) == model_digest(there.state.model)
    assert here.state.method.numbers == there.state.method.numbers
    assert first[-1].evaluation.sites == second[-1].evaluation.sites


def test_a_site_that_knows_some_labels_only_can_be_hostile(tmp_path):
    told = table(tmp_path, name="accord", attack={"kind": "plfa", "sites": ["site-0"]}, rounds=2)
    told["data"]["views"] = {"site-0": {"kind": "exact", "known": ["low", "high"]}}
    server, _ = played(told)
    assert not server.dropped


@pytest.mark.parametrize("kind", ["plfa", "mixup"])
def test_a_site_that_does_not_know_the_label_is_not_drawn_and_cannot_be_named(tmp_path, kind):
    told = table(tmp_path, name="accord", attack={"kind": kind, "sites": ["site-0"]}, rounds=1)
    told["data"]["views"] = {f"site-{n}": {"kind": "exact", "known": ["low", "medium"]} for n in (0, 1, 3)}
    with pytest.raises(ConfigError, match=rf"site 'site-0' does not know the label .* '{kind}' would not change"):
        played(told)
    told["method"]["attack"]["sites"] = 3
    assert played(told)[0].hostile == ("site-2", "site-4", "site-5")
    told["method"]["attack"]["kind"] = "pafa"  # changes groups, which every site has
    assert {played(told | {"seed": seed})[0].hostile for seed in range(3)} != {("site-2", "site-4", "site-5")}


@pytest.mark.parametrize("kind", ["plfa", "mixup"])
def test_a_site_that_knows_no_other_label_is_not_drawn_and_cannot_be_named(tmp_path, kind):
    """plfa would empty its candidate sets, and a hostile site without labels trains nothing."""
    told = table(tmp_path, name="fedavg", attack={"kind": kind, "sites": ["site-0"]}, rounds=1)
    told["data"]["view"] = {"kind": "exact"}
    told["data"]["views"] = {f"site-{n}": {"kind": "exact", "known": ["high"]} for n in (0, 1, 3)}
    with pytest.raises(ConfigError, match=rf"site 'site-0' knows no label but that of \[fairness\], so '{kind}'"):
        played(told)
    told["method"]["attack"]["sites"] = 3
    server, records = played(told)
    assert server.hostile == ("site-2", "site-4", "site-5")
    assert records[-1].replied == 6
    told["method"]["attack"]["sites"] = 4
    with pytest.raises(ConfigError, match="4 hostile sites, but only 3 of 6 know the target label of the attack"):
        played(told)


def test_alie_among_few_hostile_sites_asks_for_a_strength(tmp_path):
    told = table(tmp_path, sites=6, attack={"kind": "alie", "sites": 1}, rounds=1)
    with pytest.raises(ConfigError, match=r"method\.attack: 'alie' would have no effect: .*; set strength"):
        played(told)
    told["method"]["attack"]["strength"] = 1.0
    assert not played(told)[0].warnings


def test_a_round_of_hostile_sites_alone_is_warned_of_once(tmp_path):
    told = table(tmp_path, sites=3, attack={"kind": "ipm", "sites": 2}, participation=1, rounds=8)
    server, _ = played(told)
    (told,) = server.warnings
    assert told.startswith("the attack 'ipm' has no effect in some rounds: it is computed from honest updates")


class TestExactSites:
    """Under an attack on labels an exact site trains on sets, but is still the site that it declared to be."""

    def exact(self, folder, sites=6, **method):
        told = table(folder, sites=sites, name="fedavg", rounds=2, **method)
        told["data"]["view"] = {"kind": "exact"}
        return told

    @pytest.mark.parametrize("kind", ["plfa", "pafa", "mixup"])
    def test_hostile_ones_take_part_where_exact_sites_train(self, tmp_path, kind):
        told = self.exact(tmp_path, attack={"kind": kind, "sites": 2}, sites=6)
        server, records = played(told | {"method": told["method"] | {"sites": "exact"}})
        assert len(server.trainers()) == 6
        assert records[-1].replied == 6
        assert not server.dropped

    def test_the_refusal_of_sets_names_the_attack(self, tmp_path):
        named = r"method\.attack 'plfa' turns the labels of site 'site-\d' into candidate sets"
        with pytest.raises(ConfigError, match=named):
            played(self.exact(tmp_path, attack=ATTACK, loss="squared"))

    def test_hostile_sites_that_join_later_are_refused_before_the_first_round(self, tmp_path):
        told = self.exact(tmp_path, attack={"kind": "plfa", "sites": ["site-5"]}, loss="squared")
        told["data"]["joins"] = {"site-5": 2}
        with pytest.raises(ConfigError, match=r"'plfa' turns the labels of site 'site-5' into candidate sets"):
            played(told, rounds=1)

    @pytest.mark.parametrize("kind", ["plfa", "pafa"])
    def test_what_a_hostile_site_has_not_is_told_before_any_worker_starts(self, tmp_path, monkeypatch, kind):
        told = self.exact(tmp_path, attack={"kind": kind, "sites": ["site-5"]}) | {"run": {"workers": 2}}
        told["data"]["joins"] = {"site-5": 2}
        told["fairness"]["input"] = False
        if kind == "plfa":
            del told["fairness"]

        def started(*args):
            raise AssertionError("a worker was started")

        monkeypatch.setattr("fedaccord.session.EmbeddedEngine", started)
        with pytest.raises(ConfigError, match=r"site 'site-5' lacks at least one of them|are not model inputs"):
            played(told, rounds=1)

    @pytest.mark.parametrize("prior", ["off", "all"])
    @pytest.mark.parametrize("kind", ["plfa", "mixup"])
    @pytest.mark.parametrize(
        "view", [{"kind": "exact"}, {"kind": "coarse", "correspondence": {"ok": ["low"], "risky": ["medium", "high"]}}]
    )
    def test_hostile_ones_are_judged_in_the_task_that_they_declare(self, tmp_path, view, kind, prior):
        """Steps are too small to move the model, so that all judgements are those of a calm run."""
        told = table(tmp_path, name="accord", rounds=1, lr=1e-12, prior=prior) | {"run": {"workers": 0}}
        told["data"]["views"] = {"site-0": view}
        _, calm = played(told)
        told["method"]["attack"] = {"kind": kind, "sites": ["site-0"]}
        server, hit = played(told)
        assert not server.dropped
        first, second = (records[-1].evaluation for records in (calm, hit))
        assert first.site_confusions["site-0"].shape == second.site_confusions["site-0"].shape
        assert first.sites["site-0"].keys() == second.sites["site-0"].keys()
        if prior == "off":
            assert first.site_confusions["site-0"].equal(second.site_confusions["site-0"])
            assert first.sites["site-0"] == pytest.approx(second.sites["site-0"])

    def test_an_attack_on_groups_leaves_exact_labels_exact(self, tmp_path):
        server, _ = played(self.exact(tmp_path, attack={"kind": "pafa", "sites": 2}, loss="squared"))
        assert not server.dropped

    def test_only_sites_that_train_are_drawn(self, tmp_path):
        for seed in range(4):
            told = table(tmp_path, seed=seed, name="fedavg", rounds=1, attack={"kind": "plfa", "sites": 3})
            told["data"]["views"] = {f"site-{n}": {"kind": "exact"} for n in (1, 3, 5)}
            told["method"]["sites"] = "exact"
            server, _ = played(told)
            assert server.hostile == ("site-1", "site-3", "site-5")
            told["method"] |= {"sites": ["site-0", "site-2"], "attack": {"kind": "plfa", "sites": 0.5}}
            assert set(played(told)[0].hostile) < {"site-0", "site-2"}

    def test_a_site_that_does_not_train_cannot_attack(self, tmp_path):
        told = self.exact(tmp_path, attack={"kind": "plfa", "sites": ["site-0"]})
        told["data"]["views"] = {"site-0": {"kind": "unlabelled"}}
        with pytest.raises(ConfigError, match="site 'site-0' does not train, so it cannot attack"):
            played(told)
        told["method"]["attack"]["sites"] = 6
        with pytest.raises(ConfigError, match="asks for 6 hostile sites, but only 5 may train"):
            played(told)


class TestPython:
    def sites(self, folder, groups=True):
        arrays = np.load(write_people(folder, rows=400))
        names = [LABELS[c] for c in arrays["y"]]
        for part in range(4):
            rows = slice(100 * part, 100 * part + 100)
            listed = [*arrays["region"][rows]]
            listed[0] = "north|south"
            yield fedaccord.Site(
                f"s{part}", arrays["x"][rows], names[rows], Exact(LabelSpace(LABELS)), groups=listed if groups else None
            )

    def test_groups_in_memory(self, tmp_path):
        result = fedaccord.Federation(list(self.sites(tmp_path))).train(
            "fedavg",
            rounds=3,
            fairness={"group": "north", "label": "high"},
            attack={"kind": "pafa", "sites": 1},
            defence={"kind": "probe"},
        )
        figures = result.summary["final"]["sites"]["mean"]
        assert {"eod", "spd", "eod_candidate", "members"} <= set(figures)
        assert result.model.encoder[1].in_features == 4 + len(GROUPS)
        assert len(result.summary["hostile"]) == 1
        page = (result.folder / "report.html").read_text()
        assert page.index("Honest sites were left out of") < page.index("How a group is treated")

    def test_groups_in_memory_may_share_one(self, tmp_path):
        federation = fedaccord.Federation(list(self.sites(tmp_path)))
        rows = federation._array_data(0, Fairness(group="north", label="high", normalise=True)).sites["s0"].train
        assert torch.allclose(rows.x[:, 4:], rows.group / rows.group.sum(1, keepdim=True))
        asked = {"group": "north", "label": "high", "normalise": True}
        result = federation.train("fedavg", rounds=1, fairness=asked, defence={"kind": "probe"})
        assert result.summary["fairness"]["normalise"] is True

    def test_groups_are_needed_to_be_inputs(self, tmp_path):
        plain = fedaccord.Federation(list(self.sites(tmp_path, groups=False)))
        with pytest.raises(ConfigError, match=r"site 's0' has no groups|needs a sensitive attribute"):
            plain.train("fedavg", rounds=1, fairness={"group": "north", "label": "high"})
        short = next(iter(self.sites(tmp_path)))
        wrong = fedaccord.Site("s", short.x, short.labels, short.view, groups=["north"])
        with pytest.raises(DataError, match="100 samples but 1 groups"):
            fedaccord.Federation([wrong]).train("fedavg", rounds=1)

    def test_candidates_may_be_attacked_too(self, tmp_path):
        first = next(iter(self.sites(tmp_path)))
        labels = [f"{name}|low" for name in first.labels]
        sites = [
            fedaccord.Site(f"s{n}", first.x, labels, Candidates(first.view.space), groups=list(first.groups))
            for n in range(4)
        ]
        result = fedaccord.Federation(sites).train(
            "accord", rounds=2, fairness={"group": "north", "label": "high"}, attack={"kind": "mixup", "sites": 1}
        )
        assert result.summary["dropped"] == 0


def test_an_attack_is_told_to_the_sites_that_carry_it_out_alone():
    sites = {name: site(name) for name in "ab"}
    settings = ClassicSettings(attack=AttackSettings(kind="sign-flip", sites=1))
    model = {"name": "mlp", "settings": {}, "input_shape": [4]}
    whole = host_spec(sites, SPACE, model, "fedavg", settings, seed=0, hostile=["b"])
    told = {name: site_spec(whole, data).spec for name, data in sites.items()}
    assert "attack" not in told["a"]["settings"]
    assert told["b"]["settings"]["attack"]["kind"] == "sign-flip"
    assert (told["a"]["hostile"], told["b"]["hostile"]) == ([], ["b"])
