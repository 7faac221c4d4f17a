"""Attack and defence in real rounds: who is left out, what is kept, what is told, and what is refused."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from fedaccord.adversary.many_models import Models
from fedaccord.adversary.scores import label_direction
from fedaccord.adversary.settings import DefenceSettings
from fedaccord.aggregation.replies import Replies
from fedaccord.config import check_experiment
from fedaccord.errors import ConfigError
from fedaccord.experiment import load_federation, run_experiment
from fedaccord.extensions import trusting
from fedaccord.federation.defence import CONFIDENCE, EXCLUDED, RUNNING, SHARED, SIZE, Defence
from fedaccord.federation.state import RunState, model_digest
from fedaccord.federation.update_norms import USUAL
from fedaccord.messages.message import from_bytes, to_bytes
from fedaccord.recording import play
from fedaccord.runs.folder import RunFolder
from fedaccord.session import open_server
from people import played, table, write_people

pytestmark = pytest.mark.usefixtures("one_thread")
PLFA = {"kind": "plfa", "sites": 2}
KINDS = {
    "inversion": {"reconstruct": True},
    "inversion+": {"reconstruct": True},
    "group-update": {},
    "group-update+": {},
    "probe": {},
}


@pytest.fixture
def folder(tmp_path):
    return tmp_path


def defence(kind, **more):
    return {"kind": kind, **KINDS[kind], **more}


def gap(records):
    return records[-1].evaluation.global_["spd"]


def test_the_attack_moves_the_group_and_only_hostile_sites_attack(folder):
    _, calm = played(table(folder))
    server, hit = played(table(folder, attack=PLFA))
    assert len(server.hostile) == 2
    assert gap(hit) < gap(calm) - 0.1
    assert not hit[-1].figures  # without a defence nobody is judged


@pytest.mark.parametrize("kind", ["group-update", "group-update+", "probe"])
def test_hostile_sites_are_left_out_and_honest_ones_are_not(folder, kind):
    _, calm = played(table(folder))
    _, hit = played(table(folder, attack=PLFA))
    server, records = played(table(folder, attack=PLFA, defence=defence(kind)))
    last = records[-1].figures
    assert last["hostile_excluded"] == 1.0
    assert last["false_exclusions"] == 0.0
    assert last["excluded"] == pytest.approx(2 / 6)
    out = {name for name in server.cards if last[f"{EXCLUDED}/{name}"]}
    assert out == set(server.hostile)
    assert records[-1].replied == 4
    assert abs(gap(records) - gap(calm)) < abs(gap(hit) - gap(calm))


def test_a_method_that_counts_steps_is_defended_all_the_same(folder):
    told = table(folder, attack=PLFA, defence=defence("group-update"))
    server, records = played(told | {"method": told["method"] | {"name": "fednova"}})
    assert records[-1].figures["hostile_excluded"] == 1.0


def test_reconstructed_labels_tell_hostile_sites(folder):
    _, records = played(table(folder, attack={"kind": "pafa", "sites": 2}, defence=defence("inversion+")))
    assert records[-1].figures["hostile_excluded"] == 1.0
    assert records[-1].figures["false_exclusions"] == 0.0


def test_an_excluded_site_has_no_say(folder):
    """With the hostile sites left out from the first round on, the model is that of a run without them."""
    server, records = played(table(folder, attack=PLFA, defence=defence("group-update"), rounds=3))
    assert all(record.figures["hostile_excluded"] == 1.0 for record in records)
    honest = sorted(set(server.cards) - set(server.hostile))
    alone, _ = played(
        table(folder, sites=6, rounds=3) | {"method": {**table(folder)["method"], "rounds": 3, "sites": honest}}
    )
    assert all(record.figures["false_exclusions"] == 0.0 for record in records)
    assert model_digest(server.state.model) == model_digest(alone.state.model)


def test_confidences_and_running_scores_are_in_the_state(folder):
    server, records = played(table(folder, attack=PLFA, defence=defence("inversion")))
    kept = {name: value for name, value in server.state.method.numbers.items() if name.startswith(f"{CONFIDENCE}/")}
    assert set(kept) == {f"{CONFIDENCE}/{name}" for name in server.cards}
    assert all(0 < value < 1 and value != 0.5 for value in kept.values())
    assert kept == {name: records[-1].figures[name] for name in kept}
    again = RunState.from_message(from_bytes(to_bytes(server.state.to_message())))
    assert again.method.numbers == server.state.method.numbers
    plain, _ = played(table(folder, defence=defence("probe")), rounds=2)
    kept = {name for name in plain.state.method.numbers if not name.startswith(USUAL)}
    assert kept == {f"{RUNNING}/{name}" for name in plain.cards}
    freed, _ = played(table(folder, defence=defence("group-update+")), rounds=2)
    kept = {f"{kind}/{name}" for kind in (RUNNING, SHARED, SIZE) for name in freed.cards}
    assert {name for name in freed.state.method.numbers if not name.startswith(USUAL)} == kept


@pytest.mark.parametrize("kind", ["inversion", "inversion+"])
def test_nothing_of_a_reconstruction_is_kept_or_told(folder, kind, monkeypatch):
    """A whole run reconstructs rows that hold a number like no other: no file that it leaves holds it in any form."""
    mark, made = 0.7312849, []
    reconstruct = Defence.reconstruct

    def recognisable(self, *given):
        dummies = reconstruct(self, *given)
        dummies.x[:, ::2, 0] = mark
        made.append(dummies)
        return dummies

    monkeypatch.setattr(Defence, "reconstruct", recognisable)
    told = table(folder, attack=PLFA, defence=defence(kind), rounds=3)
    told["run"] = {"workers": 0, "evaluate_every": 1, "checkpoint_every": 1}
    run_experiment(check_experiment(told), folder, RunFolder(folder / "run"))
    assert len(made) == 3
    left = {path.name: path.read_bytes() for path in (folder / "run").rglob("*") if path.is_file()}
    assert {"metrics.jsonl", "summary.json", "report.html", "log.txt"} <= set(left)
    assert any(name.endswith(".checkpoint") for name in left)
    numbers = [b"0.73128", np.float32(mark).tobytes(), np.float64(mark).tobytes()]
    rows = [row.numpy().tobytes() for dummies in made for site in dummies.x[:, :4] for row in site]
    for name, content in left.items():
        assert not [number for number in (*numbers, *rows) if number in content], name


@pytest.mark.parametrize("kind", KINDS)
def test_state_and_figures_hold_numbers_of_sites_alone(folder, kind):
    server, records = played(table(folder, defence=defence(kind)), rounds=2)
    assert server.state.method.tensors == {}
    kinds = {name.partition("/")[0] for record in records for name in record.figures}
    assert kinds <= {"score", EXCLUDED, CONFIDENCE}
    assert all(len(record.figures) <= 3 * len(server.cards) + 1 for record in records)


def test_without_confidence_a_rounds_verdict_decides(folder):
    told = table(folder, attack=PLFA, defence=defence("inversion", confidence=False))
    server, records = played(told, rounds=2)
    assert server.state.method.numbers == {}
    assert all(f"{CONFIDENCE}/{name}" not in record.figures for record in records for name in server.cards)
    trusting, _ = played(table(folder, attack=PLFA, defence=defence("probe", confidence=True)), rounds=2)
    assert {name.partition("/")[0] for name in trusting.state.method.numbers} == {CONFIDENCE, RUNNING}


def judged(server, matrix, told, started=None):
    """Let a defence look at replies that a test makes up."""
    sites = tuple(f"s{n}" for n in range(len(matrix)))
    replies = Replies(
        sites,
        tuple([None] * len(sites)),
        matrix,
        torch.ones(len(sites), dtype=torch.float64),
        torch.ones(len(sites), 3, dtype=torch.bool),
        server.state.model,
        server.layout,
        started=started,
    )
    return Defence(DefenceSettings(**told))(server, replies)


@pytest.mark.parametrize("kind", KINDS)
def test_a_site_that_has_not_moved_has_no_score(folder, kind):
    server, _ = played(table(folder), rounds=1)
    noise = 0.01 * torch.randn(5, server.layout.size, generator=torch.Generator().manual_seed(0))
    noise[2] = 0.0
    kept = judged(server, server.state.model + noise, defence(kind))
    assert math.isnan(server.figures["score/s2"])
    assert "s2" in kept.sites
    assert sum(math.isfinite(server.figures[f"score/s{n}"]) for n in (0, 1, 3, 4)) > 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_site_with_a_model_of_its_own_moves_from_there(folder, kind):
    server, _ = played(table(folder), rounds=1)
    generator = torch.Generator().manual_seed(0)
    own, noise = (0.01 * torch.randn(5, server.layout.size, generator=generator) for _ in range(2))
    noise[2] = 0.0
    started = server.state.model + own
    judged(server, started + noise, defence(kind), started)
    assert math.isnan(server.figures["score/s2"])
    if kind == "group-update":  # looks at nothing but updates, and the common model's direction
        found = [server.figures[f"score/s{n}"] for n in (0, 1, 3, 4)]
        judged(server, server.state.model + noise, defence(kind))
        assert found == pytest.approx([server.figures[f"score/s{n}"] for n in (0, 1, 3, 4)], rel=1e-3)


@pytest.mark.parametrize("confidence", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_model_too_large_to_compute_with_is_hostile_however_it_is_trusted(folder, kind, confidence):
    server, _ = played(table(folder), rounds=1)
    noise = 0.01 * torch.randn(6, server.layout.size, generator=torch.Generator().manual_seed(0))
    noise[3] *= 1e30
    server.state.method.numbers |= {f"{name}/s3": 0.9 for name in (CONFIDENCE, RUNNING)}
    kept = judged(server, server.state.model + noise, defence(kind, confidence=confidence))
    assert "s3" not in kept.sites
    assert server.figures["score/s3"] == math.inf
    assert all(math.isfinite(server.figures[f"score/s{n}"]) for n in (0, 1, 2, 4, 5)) or kind == "inversion"
    assert len(kept) >= 3
    assert server.state.method.numbers[f"{RUNNING}/s3"] == 0.9  # says nothing of other rounds
    if confidence:
        assert server.state.method.numbers[f"{CONFIDENCE}/s3"] == pytest.approx(0.81)


@pytest.mark.parametrize("kind", KINDS)
def test_sites_that_send_huge_updates_do_not_carry_the_model_away(folder, kind):
    attack = {"kind": "scaling", "sites": 2, "strength": 1e30}
    server, records = played(table(folder, attack=attack, defence=defence(kind)), rounds=2)
    assert all(record.figures["hostile_excluded"] == 1.0 for record in records)
    assert float(server.state.model.abs().max()) < 100


def test_when_nobody_is_trusted_the_model_stays(folder):
    server, _ = played(table(folder), rounds=1)
    noise = 0.01 * torch.randn(5, server.layout.size, generator=torch.Generator().manual_seed(0))
    kept = judged(server, server.state.model + noise, defence("probe", confidence=True, trust=0.8))
    assert len(kept) == 0
    before = server.state.model.clone()
    server.combine(kept)
    assert torch.equal(server.state.model, before)
    assert server.warnings == ["the defence 'probe' excluded every site of a round, so the model did not change"]


def test_a_site_without_a_reply_keeps_its_confidence(folder):
    server, _ = played(table(folder), rounds=1)
    noise = 0.01 * torch.randn(6, server.layout.size, generator=torch.Generator().manual_seed(0))
    told = defence("inversion")
    judged(server, server.state.model + noise, told)
    first = server.state.method.numbers[f"{CONFIDENCE}/s5"]
    judged(server, server.state.model + noise[:5], told)
    assert server.state.method.numbers[f"{CONFIDENCE}/s5"] == first
    assert server.state.method.numbers[f"{CONFIDENCE}/s0"] != first


def test_common_dummies_make_equal_updates_score_equally(folder):
    server, _ = played(table(folder), rounds=1)
    one = 0.01 * torch.randn(1, server.layout.size, generator=torch.Generator().manual_seed(0))
    matrix = server.state.model + one.expand(4, -1)
    found = {}
    for start in ("common", "own"):
        judged(server, matrix, defence("inversion+", start=start))
        found[start] = [server.figures[f"score/s{n}"] for n in range(4)]
    assert max(found["common"]) - min(found["common"]) < 1e-6
    assert max(found["own"]) - min(found["own"]) > 1e-4


def test_the_sign_has_a_default_for_each_score(folder):
    server, _ = played(table(folder), rounds=1)
    noise = 0.01 * torch.randn(4, server.layout.size, generator=torch.Generator().manual_seed(0))

    def scores(kind, **more):
        judged(server, server.state.model + noise, defence(kind, **more))
        return [server.figures[f"score/s{n}"] for n in range(4)]

    assert scores("inversion") == pytest.approx(scores("inversion", sign="printed"), nan_ok=True)
    assert scores("inversion+") == pytest.approx(scores("inversion+", sign="corrected"))
    assert scores("inversion+") != pytest.approx(scores("inversion+", sign="printed"), abs=1e-3)
    assert scores("inversion+") != pytest.approx(scores("inversion+", at="local"), abs=1e-6)
    assert scores("inversion+") != pytest.approx(scores("inversion+", variation=0.5), abs=1e-6)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            {"defence": {"kind": "inversion"}},
            "reconstructs rows of the sites' data at the server, which is an inversion attack",
        ),
        ({"defence": {"kind": "inversion+", "sign": "both"}}, "method.defence.sign"),
        ({"attack": {"kind": "plfa", "sites": 0}}, "a share between 0 and 1, a whole number of sites, or names, not 0"),
        ({"attack": {"kind": "plfa", "sites": []}}, "remove `attack` for no attack"),
        ({"attack": {"kind": "rumour"}}, "method.attack.kind"),
        ({"attack": {"kind": "plfa", "strength": 2.0}}, "strength has no effect unless kind is one of 'sign-flip'"),
        ({"attack": {"kind": "alie", "ratio": 0.2}}, "ratio has no effect unless kind is 'mixup'"),
        ({"defence": {"kind": "probe", "dummies": 30}}, r"dummies has no effect unless kind is 'inversion' or"),
        ({"defence": {"kind": "group-update", "sign": "printed"}}, r"sign has no effect unless kind is 'inversion' or"),
        ({"defence": defence("inversion", probes=9)}, "probes has no effect unless kind is 'probe'"),
        ({"defence": defence("inversion", gate=3.0)}, 'gate has no effect unless rule = "minority" or "peeling"'),
        ({"defence": defence("group-update+", rule="two-means", most=0.2)}, "most has no effect unless rule = "),
        ({"defence": defence("probe", trust=0.4)}, "trust has no effect unless confidence = true"),
        ({"defence": defence("inversion", low=0.9)}, "low is 0.9 and high, .* is 0.9: low must be below high"),
        ({"defence": defence("inversion", trust=0.95)}, "trust is 0.95 and high, .* is 0.9: trust must be below high"),
        (
            {"defence": defence("inversion", trust=0.05)},
            "trust is 0.05 and low, .* is 0.1: trust must not be below low",
        ),
        ({"defence": defence("inversion", freeze="absolute", low=0.5, trust=0.6)}, "would never change: low must be"),
        ({"defence": defence("inversion", freeze="absolute", high=0.5, trust=0.3)}, "not 0.1 and 0.5"),
        ({"defence": defence("inversion", device="gpu")}, '"cpu" or "cuda" is needed, not "gpu"'),
    ],
)
def test_wrong_settings_are_refused_with_a_sentence(folder, change, told):
    with pytest.raises(ConfigError, match=told):
        check_experiment(table(folder, **change))


@pytest.mark.parametrize(
    "told",
    [
        defence("inversion+", confidence=True, trust=0.6, gate=3.0),
        defence("inversion", rule="minority", gate=3.0, dummies=30, device="cuda:1"),
        defence("probe", probes=32, memory=0.5, reconstruct=True),
        defence("probe", rule="peeling", gate=3.0),
        defence("group-update+", rule="two-means", memory=0.5),
    ],
)
def test_settings_of_the_chosen_kind_are_taken_and_read_back(told):
    made = DefenceSettings(**told)
    assert DefenceSettings(**made.model_dump()) == made


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            {"fairness": None, "defence": {"kind": "probe"}},
            r"'probe' scores the treatment of a group; name it in \[fairness",
        ),
        ({"fairness": None, "attack": PLFA}, r"'plfa' needs groups, candidate or exact labels"),
        ({"input": False, "defence": {"kind": "probe"}}, r"set fairness\.input"),
        ({"input": False, "attack": {"kind": "pafa"}}, r"'pafa' changes groups, which are not model inputs"),
        ({"group": "nroth"}, r"fairness\.group: there is no group 'nroth'; did you mean 'north'"),
        ({"label": "highest"}, r"fairness\.label: there is no label 'highest'"),
        ({"column": "county"}, r"data\.sensitive\.column: 'people.npz' has no column 'county'|has no column 'county'"),
        ({"attack": {"kind": "plfa", "sites": ["nobody"]}}, "there is no site 'nobody'"),
        ({"hidden": [1], "defence": {"kind": "group-update+"}}, "needs one with a bias and two units or more"),
    ],
)
def test_what_cannot_work_is_refused_before_the_first_round(folder, change, told):
    method = {key: change[key] for key in ("defence", "attack") if key in change}
    experiment = table(folder, **method)
    if change.get("fairness", "") is None:
        del experiment["fairness"]
    else:
        experiment["fairness"] |= {key: change[key] for key in ("group", "label", "input") if key in change}
    if "column" in change:
        experiment["data"]["sensitive"]["column"] = change["column"]
    if "hidden" in change:
        experiment["model"]["hidden"] = change["hidden"]
    with pytest.raises(ConfigError, match=told):
        played(experiment, rounds=1)


@pytest.mark.parametrize(
    ("kind", "change", "told"),
    [
        ("inversion", {"sites": 3}, "fewer than 4 sites in a round cannot be compared, and there are 3;"),
        ("probe", {"participation": 3}, "sites in a round cannot be compared, and there are 3;"),
        ("probe", {"participation": 0.5}, "sites in a round cannot be compared, and there are 3;"),
        ("probe", {"most": 0.15}, r"method\.defence\.most: a share of 0\.15 of 6 sites in a round is no site"),
    ],
)
def test_a_defence_that_could_leave_out_nobody_is_refused(folder, kind, change, told):
    more = {key: change[key] for key in ("most",) if key in change}
    drawn = {key: change[key] for key in ("participation",) if key in change}
    with pytest.raises(ConfigError, match=told):
        played(table(folder, sites=change.get("sites", 6), defence=defence(kind, **more), **drawn), rounds=1)


@pytest.fixture
def trust():
    with trusting(["federation.test_defence"]):
        yield


@pytest.mark.usefixtures("trust")
def test_the_group_update_needs_linear_layers(folder):
    told = table(folder, defence=defence("group-update")) | {"model": {"name": "federation.test_defence:smooth"}}
    with pytest.raises(ConfigError, match="use 'probe'"):
        played(told, rounds=1)
    for kind in ("inversion", "inversion+", "probe"):
        _, records = played(told | {"method": {**told["method"], "defence": defence(kind)}}, rounds=1)
        assert any(name.startswith("score/") for name in records[0].figures)


@pytest.mark.usefixtures("trust")
@pytest.mark.parametrize("name", ["linear", "federation.test_defence:smooth"])
def test_the_freed_update_needs_a_hidden_layer(folder, name):
    told = table(folder, defence=defence("group-update+")) | {"model": {"name": name}}
    with pytest.raises(ConfigError, match=r"'group-update\+' .*use 'group-update' or 'probe'|use 'probe'"):
        played(told, rounds=1)


def test_a_site_that_leaves_its_biases_alone_does_not_hide(folder):
    server, _ = played(table(folder), rounds=1)
    noise = 0.01 * torch.randn(7, server.layout.size, generator=torch.Generator().manual_seed(0))
    parts = server.layout.named(noise[3])
    parts["encoder.1.bias"][:] = 0.0
    towards = label_direction(Models(server.network, server.state.model).layers, server.target.label).float()
    parts["encoder.1.weight"][:, server.target.inputs.start + server.target.group] += towards
    kept = judged(server, server.state.model + noise, defence("group-update+", most=0.15))
    assert set(kept.sites) == {f"s{n}" for n in (0, 1, 2, 4, 5, 6)}


def test_what_is_known_of_a_site_comes_in_slowly(folder):
    """A round in which nothing moved changes nothing of it, and the next one is weighed by `memory`."""
    server, _ = played(table(folder), rounds=1)
    noise = 0.01 * torch.randn(5, server.layout.size, generator=torch.Generator().manual_seed(0))
    known = []
    for factor in (1.0, 0.0, 3.0):
        judged(server, server.state.model + factor * noise, defence("group-update+", memory=0.75))
        known.append([server.state.method.numbers[f"{SIZE}/s{n}"] for n in range(5)])
    assert known[1] == known[0]
    assert known[2] == pytest.approx([0.75 * size + 0.25 * 9 * size for size in known[0]], rel=1e-3)


def smooth(input_shape, classes):
    """A network that is no chain of ReLU layers."""
    inner = torch.nn.Sequential(torch.nn.Linear(input_shape[0], 6), torch.nn.Tanh())
    module = torch.nn.Module()
    module.encoder, module.head = inner, torch.nn.Linear(6, classes)
    module.forward = lambda x: module.head(module.encoder(x))
    return module


@pytest.mark.parametrize(
    "attack",
    [
        {"kind": "sign-flip", "strength": 4.0},
        {"kind": "scaling", "strength": 100.0},
        {"kind": "ipm", "strength": 5.0},
        {"kind": "alie", "strength": 40.0},
        {"kind": "label-flip"},
    ],
    ids=lambda attack: attack["kind"],
)
def test_general_attacks_hurt_the_mean_and_a_robust_rule_much_less(folder, attack):
    def nll(**method):
        _, records = played(table(folder, sites=7, rounds=4, **method) | {"run": {"workers": 0, "evaluate_every": 4}})
        return records[-1].evaluation.global_["nll"]

    attack = attack | {"sites": 2}
    calm = nll()
    harm = nll(attack=attack) - calm
    assert harm > 0.08
    for rule in ("krum", "multi-krum", "trimmed-mean", "median"):
        assert nll(attack=attack, aggregation=rule, hostile=2) - calm < 0.6 * harm, rule


@pytest.mark.parametrize(("kind", "remembered"), [("inversion", CONFIDENCE), ("group-update+", SIZE)])
def test_a_cut_run_goes_on_with_what_it_knew_of_sites(folder, kind, remembered):
    told = check_experiment(table(folder, attack=PLFA, defence=defence(kind), rounds=6))
    data = load_federation(told, Path())
    with open_server(told, data) as whole:
        for record in play(told, whole):
            if record.round == 3:
                kept = from_bytes(to_bytes(whole.state.to_message()))
                memories = whole.engine.memories()
    with open_server(told, data, state=kept) as again:
        assert again.state.round == 3
        again.engine.restore(memories)
        for _ in play(told, again):
            pass
    assert model_digest(again.state.model) == model_digest(whole.state.model)
    assert again.state.method.numbers == whole.state.method.numbers
    forgetful = from_bytes(to_bytes(kept))
    for name in [name for name in forgetful.numbers if name.startswith(f"method/{remembered}/")]:
        del forgetful.numbers[name]
    with open_server(told, data, state=forgetful) as other:
        other.engine.restore(memories)
        for _ in play(told, other):
            pass
    assert other.state.method.numbers != whole.state.method.numbers


def test_one_group_cannot_be_compared(folder):
    with np.load(write_people(folder)) as arrays:
        held = dict(arrays)
    np.savez(folder / "people.npz", **(held | {"region": np.full(900, "north")}))
    with pytest.raises(ConfigError, match="'probe' compares a group with others, but the data have one only"):
        played(table(folder, defence=defence("probe")), rounds=1)


def test_a_round_in_which_nobody_could_be_judged_is_told(folder):
    told = table(folder, defence=defence("probe"))
    told["method"]["lr"] = 1e-30  # no update survives rounding
    server, _ = played(told, rounds=1)
    assert [warning for warning in server.warnings if "'probe' could score no site in some rounds" in warning]


def test_forged_values_that_no_server_would_admit_are_left_out(folder):
    told = table(folder, attack={"kind": "scaling", "sites": 1, "strength": 1e39})
    server, records = played(told, rounds=2)
    assert {(drop.site, drop.task) for drop in server.dropped} == {(server.hostile[0], "train")}
    assert "NaN or infinite" in str(server.dropped[0])
    assert all(torch.isfinite(server.state.model))
    _, first = played(table(folder), rounds=1)
    assert records[0].loss == pytest.approx(first[0].loss, rel=0.2)  # the others trained on


def test_a_robust_rule_counts_those_whose_values_were_left_out(folder):
    attack = {"kind": "scaling", "sites": 3, "strength": 1e39}
    told = table(folder, sites=10, attack=attack, aggregation="krum", hostile=3)
    server, records = played(told, rounds=1)
    assert {drop.task for drop in server.dropped} == {"train"}
    assert records[0].loss is not None


def test_a_round_of_hostile_sites_alone_leaves_the_model(folder):
    told = table(
        folder, attack={"kind": "scaling", "sites": 5, "strength": 1e39}, defence=defence("probe"), participation=4
    )
    server, records = played(told, rounds=6)
    assert len(records) == 6
    assert bool(torch.isfinite(server.state.model).all())
    assert not [warning for warning in server.warnings if "could score no site" in warning]
