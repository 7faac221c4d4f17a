"""Candidate sets from an experiment file to the run folder: what is said of the sets, and of what became of them."""

from __future__ import annotations

import json

import numpy as np
import pytest

from command_line import command, write
from fedaccord.runs.checkpoint import read_checkpoint

pytestmark = pytest.mark.usefixtures("one_thread")

SETS = """
name = "sets"

[data]
dataset = "digits"
samples = 300
partition = {{ kind = "dirichlet", sites = 3, alpha = 0.5 }}
view = {{ kind = "candidates", generate = "instance", rho = 0.3 }}
{more}

[model]
hidden = [32]

[method]
name = "{method}"
rounds = 3
steps = 10
lr = 0.1

[run]
workers = 0
checkpoint_every = 1
"""


def run(folder, method="pfedpll", more=""):
    write(folder, SETS.format(method=method, more=more))
    done = command("run", "experiment.toml", "--out", "run", cwd=folder)
    assert (done.code, done.err) == (0, "")
    return folder / "run"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return run(tmp_path_factory.mktemp("sets"), more="[server]\nunlabelled = 50")


def test_the_summary_gives_the_size_of_the_sets(finished):
    summary = json.loads((finished / "summary.json").read_text())
    sites = json.loads((finished / "federation.json").read_text())["sites"]
    assert summary["set_sizes"] == {name: site["set_size"] for name, site in sites.items()}
    assert list(summary["set_sizes"]) == ["site-0", "site-1", "site-2"]
    assert list(summary["set_sizes"].values()) == pytest.approx([4] * 3, abs=0.4)  # 1 + 10 rho
    assert summary["dropped"] == 0


def test_how_often_the_right_candidate_was_found_stands_beside_the_accuracy(finished):
    summary = json.loads((finished / "summary.json").read_text())
    lines = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    found = {
        line["site"]: line["metrics"]["disambiguation"]
        for line in lines
        if line["scope"] == "site" and line["round"] == 3
    }
    each = summary["final"]["sites"]["each"]
    assert {site: figures["disambiguation"] for site, figures in each.items()} == found
    assert all(1 / 4 < share < 1 for share in found.values())
    assert {"disambiguation", "accuracy"} <= summary["final"]["sites"]["mean"].keys()
    assert "True candidate most likely" in (finished / "report.html").read_text()


def test_confidences_stay_in_the_sites_memory(finished):
    state, memories = read_checkpoint(max((finished / "checkpoints").glob("round-*")))
    assert all("confidences" in memory.tensors for memory in memories.values())
    assert not any("confidences" in name for name in state.tensors)
    for path in (finished / "model").rglob("*"):
        assert path.is_dir() or b"confidences" not in path.read_bytes()


def test_a_score_without_inputs_is_told_in_log_and_summary(tmp_path):
    folder = run(tmp_path)
    told = "the server has no unlabelled data, so sites are weighted by sample count; give [server] unlabelled"
    (drop,) = json.loads((folder / "summary.json").read_text())["dropped_replies"]
    assert (drop["round"], drop["task"], drop["reason"]) == (1, "KL score", told)
    assert (folder / "log.txt").read_text().count(told) == 1


def test_a_personal_model_predicts_within_candidates(finished, tmp_path):
    sets = np.zeros((5, 10), np.uint8)
    sets[:, [3, 8]] = 1
    np.savez(tmp_path / "new.npz", x=np.arange(5 * 64, dtype=np.uint8).reshape(5, 8, 8) % 17, maybe=sets)
    out = tmp_path / "out.csv"
    done = command(
        "predict", finished, "new.npz", "--site", "site-1", "--candidates", "maybe", "--out", out, cwd=tmp_path
    )
    assert (done.code, done.err) == (0, "")
    assert {line.split(",")[0] for line in out.read_text().splitlines()[1:]} <= {"3", "8"}
