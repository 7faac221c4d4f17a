"""Settings that cannot do anything are warned of, by `check` and by `run`; no method warns of its defaults."""

from __future__ import annotations

import pytest

from command_line import SMALL, command, write
from fedaccord.checks.method import hostile_findings
from fedaccord.methods.registry import METHODS

TAGGED = """
[data]
dataset = "tagged.npz"
partition = { kind = "iid", sites = 2 }
view = { kind = "tags" }
[method]
name = "fedharmony"
rounds = 1
"""


@pytest.mark.parametrize("method", sorted(METHODS))
def test_defaults_have_an_effect(method):
    assert METHODS[method].settings().without_effect() == []


@pytest.mark.parametrize(
    ("method", "settings", "told"),
    [
        ("pfedpll", {"lambda_s": 0.0, "lambda_pc": 0.0, "lambda_nc": 0.0}, "so sites learn nothing"),
        ("pfedpll", {"terms": ["s"], "lambda_s": 0.0}, "method.lambda_s is 0 for every term of the loss"),
        ("pfedpll", {"terms": ["s"], "lambda_nc": 2.0}, "method.lambda_nc has no effect: its term is not in"),
        ("pfedpll", {"calibration": False, "terms": ["s"]}, "method.terms has no effect: the method uses another loss"),
        ("pfedpll", {"score": "samples", "score_inputs": 9}, "method.score_inputs has no effect"),
        ("pfedpll+", {"loss": "cc", "q": 0.5}, 'method.q has no effect with loss = "cc"'),
        ("local", {"lambda_s": 0.0}, "method.lambda_s has no effect: the method uses another loss"),
        ("fedprox", {"mu": 0.0}, "method.mu is 0, so fedprox is fedavg"),
        ("fedcurv", {"curvature": 0.0}, "method.curvature is 0, so fedcurv is fedavg"),
        ("fedcurv", {"loss": "squared"}, "method.loss has no effect: fedcurv always minimises"),
        ("spherefed", {"loss": "squared"}, "method.loss has no effect: spherefed always minimises"),
        ("fedmom", {"beta": 0.0}, "method.beta is 0, so the server has no momentum"),
        ("fedavg", {"optimiser": "adam", "momentum": 0.5}, "method.momentum = 0.5 has no effect"),
        ("fedavg", {"hostile": 2}, 'method.hostile has no effect: aggregation = "mean"'),
        ("fedavg", {"aggregation": "median", "weights": "equal"}, "method.weights has no effect"),
        ("fedavg", {"prior_count": 3.0}, "method.prior_count has no effect"),
        ("fedavg", {"attack": {"kind": "mixup", "ratio": 1.0}}, "method.attack.ratio = 1 keeps every victim"),
        ("private-labels", {"tuning_lr": 0.5}, 'method.tuning_lr has no effect with tuning = "none"'),
        ("private-labels", {"mu": 0.5}, 'method.mu has no effect with local = "fedavg"'),
        ("fedmt", {"lambda2": 0.0, "lambda1": 2.0, "project_on": "all"}, "method.lambda1 has no effect: lambda2 = 0"),
        ("fedharmony", {"blocks": "off", "block_count": 3}, 'method.block_count has no effect with blocks = "off"'),
        ("fedharmony", {"teacher": "none", "strength": 2.0}, 'method.strength has no effect with teacher = "none"'),
        ("fedharmony", {"weights": "samples", "gamma": 2.0}, 'method.gamma has no effect with weights = "samples"'),
    ],
)
def test_a_setting_that_changes_nothing(method, settings, told):
    (found,) = METHODS[method].settings(**settings).without_effect()
    assert told in found


def hostile(number, sites=10, **settings):
    made = METHODS["fedavg"].settings(attack={"kind": "sign-flip", "sites": number}, **settings)
    return [finding.text for finding in hostile_findings(made, sites)]


def test_more_hostile_sites_than_a_rule_withstands():
    assert hostile(2, aggregation="krum") == hostile(5) == hostile(4, aggregation="median") == []
    (told,) = hostile(3, aggregation="krum")
    assert told.startswith('method.attack makes 3 of 10 sites hostile, and aggregation = "krum" withstands 2; raise')
    assert "withstands 4; use fewer" in hostile(0.5, aggregation="median")[0]
    assert hostile(0.5, aggregation="trimmed-mean", hostile=0.4)[0].endswith("or use fewer")
    (told,) = hostile(4, defence={"kind": "probe"})
    assert "the defence excludes 3 at most; raise method.defence.most" in told


def test_check_and_run_warn(tmp_path):
    write(tmp_path, SMALL)
    changes = ["--set", "method.name=fedcurv", "--set", "method.loss=squared", "--set", "stop.patience=3"]
    checked = command("check", "experiment.toml", *changes, cwd=tmp_path)
    ran = command("run", "experiment.toml", *changes, cwd=tmp_path)
    for done in (checked, ran):
        said = " ".join((done.out + done.err).split())
        assert "method.loss has no effect: fedcurv always minimises the likelihood of the view" in said
        assert "stop.patience has no effect without stop.metric" in said
    assert (checked.code, ran.code) == (1, 0)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (["server.unlabelled=20"], "the method 'fedavg' does not use the server's inputs without labels"),
        (["data.view={kind='candidates',generate='uniform',q=1.0}"], "its candidate sets exclude one of 10 labels"),
    ],
)
def test_data_that_change_nothing(tmp_path, changes, told):
    write(tmp_path, SMALL)
    done = command("check", "experiment.toml", *(word for c in changes for word in ("--set", c)), cwd=tmp_path)
    assert told in " ".join(done.out.split())


def test_a_class_that_no_site_has(tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n" + "1,p\n2,q\n" * 5)
    write(tmp_path, 'labels.classes = ["p", "q", "r"]\n[[sites]]\nname = "a"\ndata = "a.csv"\nlabel = "y"\n')
    done = command("check", "experiment.toml", cwd=tmp_path)
    assert "no site has a training sample of 'r'" in " ".join(done.out.split())


def test_more_blocks_than_tags(tmp_path):
    import numpy as np

    rng = np.random.default_rng(0)
    np.savez(tmp_path / "tagged.npz", x=rng.normal(size=(40, 3)), Y=rng.integers(0, 2, size=(40, 4)))
    write(tmp_path, TAGGED)
    for blocks, warned in ((2, False), (4, True), (9, True)):
        done = command("check", "experiment.toml", "--set", f"method.block_count={blocks}", cwd=tmp_path)
        assert (f"method.block_count is {blocks}, and there are 4 tags" in " ".join(done.out.split())) == warned


def test_a_server_that_trains_too_little_for_any_site_to_reply(tmp_path):
    """With fedmt's defaults and few rounds, no pseudo-label is ever confident: `check` says so before, `run` after."""
    view = "{kind='coarse',correspondence={low=['0','1','2','3','4'],high=['5','6','7','8','9']}}"
    write(tmp_path, SMALL)
    changes = ["method={name='fedmt',rounds=4}", f"data.view={view}", "server.labelled={per_class=2}"]
    words = [word for change in changes for word in ("--set", change)]
    told = "the server takes 5 steps on its 20 labelled samples in each of 4 rounds"
    checked = command("check", "experiment.toml", *words, cwd=tmp_path)
    assert told in " ".join(checked.out.split())
    ran = command("run", "experiment.toml", *words, cwd=tmp_path)
    said = " ".join((ran.out + ran.err).split())
    assert told in said
    assert "in all 4 rounds no sample of any site was above the threshold 0.95" in said
    cured = command("check", "experiment.toml", *words, "--set", "method.warmup=300", cwd=tmp_path)
    assert told not in " ".join(cured.out.split())
