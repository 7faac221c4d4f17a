"""The mixture of views is accord's test: it must beat training alone at every site, and FedAvg over the exact sites."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path

import pytest

from command_line import command
from fedaccord.config import check_experiment
from fedaccord.experiment import load_federation
from fedaccord.federation.round import evaluate
from fedaccord.recording import conclude, play
from fedaccord.runs.records import scopes
from fedaccord.session import open_server

SEEDS = range(3)
VIEWS = {
    "site-0": {"kind": "exact"},
    "site-1": {"kind": "exact", "known": ["1", "3", "5", "8", "9"]},
    "site-2": {"kind": "coarse", "correspondence": "shape"},
    "site-3": {"kind": "candidates", "generate": "uniform", "q": 0.3},
}


def last_round(seed, method, **settings):
    experiment = check_experiment(
        {
            "seed": seed,
            "data": {
                "dataset": "digits",
                "partition": {"kind": "iid", "sites": 4},
                "views": VIEWS,
                "samples": 500,
                "test": 0.5,
            },
            "model": {"name": "mlp", "hidden": [32]},
            "method": {"name": method, "rounds": 40, "steps": 10, "lr": 0.1, **settings},
            "run": {"workers": 0, "evaluate_every": 40},
        }
    )
    with open_server(experiment, load_federation(experiment, Path())) as server:
        shared = list(play(experiment, server))[-1].evaluation
        conclude(server, scopes(shared))
        return evaluate(server)


@pytest.fixture(scope="module")
def paired():
    """Figures of what the sites end with by method, one for each seed."""
    return {
        "accord": [last_round(seed, "accord") for seed in SEEDS],
        "local": [last_round(seed, "local") for seed in SEEDS],
        "fedavg": [last_round(seed, "fedavg", sites="exact") for seed in SEEDS],
    }


@pytest.mark.parametrize("site", VIEWS)
def test_every_site_does_better_than_alone(paired, site):
    gains = [
        together.sites[site]["accuracy"] - alone.sites[site]["accuracy"]
        for together, alone in zip(paired["accord"], paired["local"], strict=True)
    ]
    assert statistics.fmean(gains) > 0


def test_the_model_is_better_than_one_of_the_exactly_labelled_sites_alone(paired):
    gains = [
        together.global_["accuracy"] - exact.global_["accuracy"]
        for together, exact in zip(paired["accord"], paired["fedavg"], strict=True)
    ]
    assert statistics.fmean(gains) > 0.02


def test_the_demo_ends_with_what_federation_brought_each_site(tmp_path):
    done = command("demo", "--workers", "0", "--out", "shown", cwd=tmp_path)
    assert done.code == 0, done.err
    summary = json.loads((tmp_path / "shown" / "summary.json").read_text())
    assert set(summary["gains"]) == {"central-lab", "night-clinic", "archive", "crowd", "village"}
    told = {line.split()[0]: line for line in done.out.splitlines() if line.strip()}
    for site, gain in summary["gains"].items():
        shared = summary["final"]["shared"]["each"][site]["accuracy"]
        figures = [f"{100 * share:.1f}%" for share in (gain["alone"], shared, gain["together"])]
        assert told[site].split()[1:4] == figures
        assert f"{100 * gain['difference']['value']:+.1f} (" in told[site]
        assert gain["standing"] != "worse"
    assert "no site is worse" in done.out or "at all 5 sites" in done.out
    assert_like_the_readme(done.out)
    assert str(Path("shown") / "report.html") in done.out
    assert "What each site ends with" in (tmp_path / "shown" / "report.html").read_text()


def assert_like_the_readme(printed):
    """Words are those of README.md, and figures are near its figures: other machines may round in another way."""
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    shown = re.search(r"It ends with:\n\n```text\n(.*?)```", readme, re.DOTALL)[1].split()
    ending = printed[printed.index("Better than guessing") : printed.index("report: ")].split()
    figure = re.compile(r"[(]?([+-]?\d+\.\d)[%)]?")
    assert [figure.sub("0", word) for word in ending] == [figure.sub("0", word) for word in shown]
    figures = [[float(match[1]) for word in words if (match := figure.fullmatch(word))] for words in (ending, shown)]
    assert figures[0] == pytest.approx(figures[1], abs=6)
