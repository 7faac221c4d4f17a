"""A whole run whose sites keep their memories, cut and gone on with, on a grid without a network."""

from __future__ import annotations

import dataclasses
import json
import signal

import pytest
from fake_grid import FakeGrid
from replay import embedded

from fedaccord.config import parse_experiment
from fedaccord.engines.flower import engine as flower_engine
from fedaccord.engines.flower import nodes as flower_nodes
from fedaccord.engines.flower.engine import FlowerEngine
from fedaccord.engines.flower.nodes import Roster
from fedaccord.engines.flower.site_folder import write_site_folder
from fedaccord.experiment import RemoteSites, load_federation, resume_experiment, run_experiment
from fedaccord.hosting import site_spec
from fedaccord.recording import Watcher
from fedaccord.runs.folder import RunFolder
from fedaccord.session import describe_host
from fedaccord.stopping import Stopped

# Candidate sites keep their priors, so a lost memory would change the model.
RUN = """
seed = 5

[data]
dataset = "digits"
samples = 150
partition = { kind = "quantity", sizes = [50, 45] }
names = ["a", "b"]

[data.views]
b = { kind = "candidates", generate = "uniform" }

[model]
hidden = [8]

[method]
name = "accord"
rounds = 5
steps = 2

[run]
checkpoint_every = 2
"""
PRIVATE = (
    RUN[: RUN.index("[data.views]")]
    + """
[data.views]
a = { known = ["0", "1", "2", "3", "4", "5"] }
b = { known = ["4", "5", "6", "7", "8", "9"] }

[model]
hidden = [8]

[method]
name = "private-labels"
rounds = 1
steps = 2
"""
)


class Cut(Exception):
    """The server's process ends."""


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(flower_nodes, "_LOOK", 0.0)
    monkeypatch.setattr(flower_nodes, "_POLL", 0.01)
    monkeypatch.setattr(flower_engine, "_POLL", 0.01)


class Deployed:
    """An experiment whose sites are behind a grid."""

    def __init__(self, folder, text=RUN):
        self.experiment = parse_experiment(text, ["run.workers=0"])
        self.folder, self.data = folder, load_federation(self.experiment, folder)
        whole = describe_host(self.experiment, self.data)
        self.specs = {name: site_spec(whole, site) for name, site in self.data.sites.items()}
        self.grid = FakeGrid(folder / "sites", sorted(self.specs), specs=self.specs)

    def elsewhere(self):
        engine = FlowerEngine(self.grid, Roster(("a", "b"), {}, "d"), carries_memories=False, patience=0.2)
        return RemoteSites(self.data, engine)

    def begin(self, watcher=None):
        folder = RunFolder(self.folder / "run")
        try:
            return run_experiment(self.experiment, self.folder, folder, watcher, remote=self.elsewhere())
        finally:
            folder.close()

    def cut_while_the_fourth_is_evaluated(self, end):
        ask = FlowerEngine.ask

        def ask_and_end(engine, task, briefs, deadline=None):
            replies = ask(engine, task, briefs, deadline)
            if task == "evaluate" and any(brief.numbers["round"] == 4 for brief in briefs.values()):
                raise end(signal.SIGTERM)
            return replies

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(FlowerEngine, "ask", ask_and_end)
            with pytest.raises(end):
                self.begin()

    def put_samples(self, site, rows):
        """Write a site's folder with the first rows of its training samples."""
        spec = self.specs[site]
        tensors = {name: t[:rows] if "/train/" in name else t for name, t in spec.tensors.items()}
        changed = dataclasses.replace(spec, tensors=tensors)
        write_site_folder(self.grid.folders[site], site, changed, "d", "", ["."])

    def go_on(self, watcher=None):
        folder = RunFolder(self.folder / "run", reopen=True)
        try:
            return resume_experiment(folder, watcher, remote=self.elsewhere())
        finally:
            folder.close()


def lines(folder):
    told = map(json.loads, (folder / "run/metrics.jsonl").read_text().splitlines())
    return [line for line in told if line["scope"] == "round"]


def test_a_site_that_is_not_there_at_the_start_joins_when_it_comes(tmp_path):
    deployed = Deployed(tmp_path)
    deployed.grid.leave("b")

    def come(record):
        if record.round == 2:
            deployed.grid.join("b", 77)

    done = deployed.begin(Watcher(round=come))
    assert [line["asked"] for line in lines(tmp_path)] == [["a"], ["a"], *[["a", "b"]] * 3]
    reasons = [(drop["round"], drop["task"], drop["reason"]) for drop in done["dropped_replies"]]
    assert reasons == [(at, "join", "its node is not connected") for at in (1, 2)]
    assert "round 3: site 'b' joins the federation" in (tmp_path / "run/log.txt").read_text()


@pytest.mark.parametrize(("end", "after"), [(Cut, 2), (Stopped, 3)])
def test_the_sites_still_have_the_memories_that_the_newest_checkpoint_names(tmp_path, end, after):
    """Killed, or stopped by a signal; the last checkpoint in its turn was that of round 2."""
    deployed = Deployed(tmp_path)
    deployed.cut_while_the_fourth_is_evaluated(end)
    done = deployed.go_on()
    assert f"resumed after round {after}" in (tmp_path / "run/log.txt").read_text()
    assert done["dropped_replies"] == []
    assert done["model_sha256"] == embedded(tmp_path / "whole", RUN)["model_sha256"]


def test_a_site_that_says_every_label_is_its_own_is_not_believed(tmp_path):
    """The server of a deployment knows the views, and so which labels are whose."""
    deployed = Deployed(tmp_path, PRIVATE)
    described = tmp_path / "sites/b/site.json"
    told = json.loads(described.read_text())
    told["spec"]["views"]["b"] = {"kind": "exact"}
    told["spec"]["labels"] = list(deployed.data.space.names)
    described.write_text(json.dumps(told))
    done = deployed.begin()
    reasons = {(drop["site"], drop["task"]): drop["reason"] for drop in done["dropped_replies"]}
    assert reasons == {("b", "join"): "contains labels that the site does not own"}
    assert [line["asked"] for line in lines(tmp_path)] == [["a"]]


def test_a_site_with_other_data_than_before_the_cut_is_left_out_until_it_has_its_own_again(tmp_path):
    deployed = Deployed(tmp_path)
    deployed.cut_while_the_fourth_is_evaluated(Cut)
    deployed.put_samples("b", 20)

    def put_back(record):
        if record.round == 4:
            deployed.put_samples("b", None)

    done = deployed.go_on(Watcher(round=put_back))
    assert [line["asked"] for line in lines(tmp_path)] == [["a", "b"]] * 2 + [["a"]] * 2 + [["a", "b"]]
    reason = "its data have changed since it joined the run; restore them, or start a new run"
    dropped = [(drop["round"], drop["site"], drop["task"], drop["reason"]) for drop in done["dropped_replies"]]
    assert dropped == [(at, "b", "join", reason) for at in (3, 4)]
