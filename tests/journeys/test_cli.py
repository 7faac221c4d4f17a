"""What a user does with the command line, and what is there afterwards."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from unittest import mock

import numpy as np
import pytest
import torch
from rich.console import Console

from command_line import SMALL, blobs, checkpoint, children, command, process, wait_for, write
from fedaccord import __version__, cli_options, cli_run
from fedaccord.data.registry import DATASETS
from fedaccord.federation.state import RunState, model_digest
from fedaccord.messages.message import from_bytes
from fedaccord.methods.registry import METHODS
from fedaccord.models.registry import MODELS
from fedaccord.runs.checkpoint import read_checkpoint


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


class TestTelling:
    """Commands that only tell something."""

    @pytest.mark.parametrize(("name", "known"), [("methods", METHODS), ("models", MODELS), ("datasets", DATASETS)])
    def test_lists(self, tmp_path, name, known):
        done = command(name, cwd=tmp_path)
        assert (done.code, done.err) == (0, "")
        text = " ".join(done.out.split())
        for entry in known.values():
            assert re.search(rf"^{entry.name} ", done.out, re.MULTILINE)
            assert entry.summary[:30] in text

    def test_data_sets_say_where_they_are_read_from(self, tmp_path):
        assert "FEDACCORD_DATA" in command("datasets", cwd=tmp_path).out

    def test_version(self, tmp_path):
        assert command("--version", cwd=tmp_path).out == f"fedaccord {__version__}\n"

    @pytest.mark.parametrize("arguments", [["--help"], []])
    def test_help(self, tmp_path, arguments):
        done = command(*arguments, cwd=tmp_path)
        for name in ("run", "demo", "methods", "models", "datasets"):
            assert re.search(rf"^\W*{name} ", done.out + done.err, re.MULTILINE)

    def test_help_of_run(self, tmp_path):
        done = command("run", "--help", cwd=tmp_path)
        assert done.code == 0
        for option in ("--set", "--out", "--workers", "--seed"):
            assert option in done.out
        assert "The experiment file (TOML)." in done.out  # of the argument, which some versions of click leave out


MIXED = """
name = "mixed"
seed = 4

[data]
dataset = "digits"
samples = 400
partition = { kind = "quantity", sizes = [120, 100, 90] }
names = ["exact", "groups", "crowd"]
test = 0.25

[data.views]
exact = { known = ["0", "1", "2", "3", "4", "5", "6"] }
groups = { kind = "coarse", correspondence = "shape" }
crowd = { kind = "candidates", generate = "uniform", q = 0.2 }

[model]
hidden = [16]

[method]
rounds = 3
steps = 4

[run]
checkpoint_every = 1
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of three views with two workers, as a user would start it."""
    folder = tmp_path_factory.mktemp("finished")
    write(folder, MIXED)
    return folder, process("run", "experiment.toml", "--workers", "2", cwd=folder)


@pytest.fixture(scope="module")
def run(finished):
    return finished[0] / "runs" / "mixed"


class TestRun:
    def test_it_tells_how_it_goes_in_plain_lines(self, finished):
        _, done = finished
        assert (done.code, done.err) == (0, "")
        assert not set(done.out) & {"\x1b", "\r"}
        told = done.out.splitlines()
        assert told[0] == "mixed (accord): preparing"
        assert re.fullmatch(r"mixed \(accord\): 3 sites, \d+ training samples, 10 labels, 3 rounds", told[1])
        verdict = next(at for at, line in enumerate(told) if line.startswith("Better than guessing at "))
        last = r"mixed \(accord\): round 3/3  global \d+\.\d%, sites \d+\.\d% ± \d+\.\d"
        assert re.fullmatch(last, told[verdict - 2])
        assert told[verdict - 1] == "mixed (accord): fitting the sites' own models, round 9/9"
        assert "training alone at " in told[verdict]
        assert told[verdict + 2] == "What federation brought each site, on its own task (accuracy)"
        assert [line.split()[0] for line in told if re.match(r" \w+ +\d+\.\d%", line)] == ["crowd", "exact", "groups"]
        assert told[-1] == "report: runs/mixed/report.html"

    def test_everything_is_in_the_run_folder(self, run):
        files = {str(path.relative_to(run)) for path in run.rglob("*") if path.is_file()}
        checkpoints = {str(checkpoint(run, number).relative_to(run)) for number in (2, 3)}
        assert {name for name in files if name.startswith("checkpoints")} == checkpoints
        assert files - checkpoints >= {
            "config.toml",
            "federation.json",
            "log.txt",
            "metrics.jsonl",
            "model/model.json",
            "model/model.safetensors",
            "report.html",
            "summary.json",
        }

    def test_the_summary_has_the_shape_that_scripts_rely_on(self, run):
        summary = read(run / "summary.json")
        assert {key: summary[key] for key in ("name", "method", "engine", "seed", "rounds", "dropped")} == {
            "name": "mixed",
            "method": "accord",
            "engine": "embedded",
            "seed": 4,
            "rounds": 3,
            "dropped": 0,
        }
        assert summary["seconds"] > 0
        assert re.fullmatch("[0-9a-f]{64}", summary["model_sha256"])
        for part in ("final", "best"):
            assert 0 <= summary[part]["global"]["accuracy"] <= 1
            assert list(summary[part]["sites"]["each"]) == ["crowd", "exact", "groups"]
            each = [figures["accuracy"] for figures in summary[part]["sites"]["each"].values()]
            assert summary[part]["sites"]["mean"]["accuracy"] == pytest.approx(sum(each) / 3)
        assert summary["best"]["metric"] == "sites.mean.accuracy"
        assert summary["best"]["round"] in (1, 2, 3)
        shared = summary["final"]["shared"]
        assert summary["best"]["sites"]["mean"]["accuracy"] >= shared["mean"]["accuracy"]
        assert list(shared["each"]) == ["crowd", "exact", "groups"]
        for experts in summary["experts"].values():
            assert list(experts["weights"]) == ["shared", "own head", "alone"]
            assert sum(experts["weights"].values()) == pytest.approx(1, abs=1e-3)

    def test_every_round_has_its_lines(self, run):
        written = lines(run / "metrics.jsonl")
        for number in (1, 2, 3):
            of_round = [line for line in written if line["round"] == number]
            mine = [line for line in of_round if line["scope"] not in ("confusion", "quality", "ends with")]
            assert [line["scope"] for line in mine] == ["round", "global", "classes", "sites", "site", "site", "site"]
            assert mine[0]["asked"] == ["crowd", "exact", "groups"]
            assert mine[0]["replied"] == 3
        confusions = {line["site"]: line["names"] for line in written if line["scope"] == "confusion"}
        assert confusions["groups"] == ["round", "straight", "open"]
        assert set(confusions) == {None, "exact", "groups", "crowd"}

    def test_the_federation_is_accounted_for(self, run):
        account = read(run / "federation.json")
        assert account["labels"] == list("0123456789")
        assert account["joined"] == ["crowd", "exact", "groups"]
        assert account["partition"]["asked"] == {"kind": "quantity", "sizes": [120, 100, 90]}
        assert account["partition"]["used"]["sizes"] == [120, 100, 90]
        assert account["partition"]["used"]["unused"] == 90
        site = account["sites"]["exact"]
        left = 120 - site["train"] - site["test"]
        assert account["notes"] == [f"site 'exact' leaves out {left} samples of classes it does not know"]
        assert site["view"] == {"kind": "exact", "known": list("0123456")}
        assert site["informs"] == list("0123456")
        assert account["sites"]["groups"]["train"] == 75

    def test_the_log_tells_the_notes_and_the_end(self, run):
        log = (run / "log.txt").read_text()
        assert f"fedaccord {__version__}, method accord, seed 4" in log
        assert "note: site 'exact' leaves out" in log
        assert f"finished: model {read(run / 'summary.json')['model_sha256']}" in log

    def test_the_report_is_about_this_run(self, run):
        page = (run / "report.html").read_text(encoding="utf-8")
        assert page.lstrip().lower().startswith("<!doctype html>")
        for word in ("mixed", "groups", "crowd"):
            assert word in page

    def test_the_model_is_the_one_of_the_digest(self, run):
        tensors = from_bytes((run / "model" / "model.safetensors").read_bytes()).tensors
        described = read(run / "model" / "model.json")
        assert described["model"]["settings"] == {"hidden": [16]}
        assert described["labels"] == list("0123456789")
        parts = ["encoder.1.weight", "encoder.1.bias", "head.weight", "head.bias"]
        flat = torch.cat([tensors[name].flatten() for name in parts])
        assert model_digest(flat) == read(run / "summary.json")["model_sha256"]

    def test_a_checkpoint_holds_the_model_the_round_and_what_sites_keep(self, run):
        for number in (2, 3):
            state, memories = read_checkpoint(checkpoint(run, number))
            assert RunState.from_message(state).round == number
            assert sorted(memories) == ["crowd"]  # its confidences and prior
        assert model_digest(RunState.from_message(state).model) == read(run / "summary.json")["model_sha256"]

    def test_the_config_that_was_written_runs_again_to_the_same_model(self, finished, run):
        folder, _ = finished
        config = tomllib.loads((run / "config.toml").read_text())
        assert config["method"]["lr"] == METHODS["accord"].settings.model_fields["lr"].default
        assert config["run"]["workers"] == 2
        done = command("run", run / "config.toml", "--workers", "0", cwd=folder)
        assert (done.code, done.err) == (0, "")
        again = folder / "runs" / "mixed-2"
        assert done.out.splitlines()[-1] == "report: runs/mixed-2/report.html"
        assert read(again / "summary.json")["model_sha256"] == read(run / "summary.json")["model_sha256"]
        assert read(again / "federation.json") == read(run / "federation.json")
        changed = command("run", run / "config.toml", "--workers", "0", "--seed", "5", "--out", "other", cwd=folder)
        assert changed.code == 0
        assert read(folder / "other" / "summary.json")["model_sha256"] != read(run / "summary.json")["model_sha256"]
        assert (folder / "other" / "config.toml").read_text() != (again / "config.toml").read_text()


ANIMALS = """
name = "animals"
[[sites]]
name = "zoo"
data = "data/exact.npz"
[[sites]]
name = "farm"
data = "data/coarse.npz"
view = { kind = "coarse", correspondence = { small = ["ant", "bee"], large = ["cat"] } }
[[sites]]
name = "crowd"
data = "data/sets.npz"
view = { kind = "candidates" }
test = 0.5
[server]
test = "data/test.npz"
[model]
hidden = [16]
[method]
rounds = 8
lr = 0.1
[run]
workers = 0
"""


@pytest.fixture(scope="module")
def animals(tmp_path_factory):
    """Three sites with their own files: exact, coarse and candidate labels, and a test file of the server."""
    folder = tmp_path_factory.mktemp("sites")
    names = np.array(["ant", "bee", "cat"])
    (folder / "data").mkdir()
    x, y = blobs(90, seed=1)
    np.savez(folder / "data" / "exact.npz", x=x, y=y, label_names=names)
    x, y = blobs(120, seed=2)
    np.savez(folder / "data" / "coarse.npz", X=x, y=(y == 2).astype(int), label_names=np.array(["small", "large"]))
    x, y = blobs(60, seed=3)
    sets = np.eye(3, dtype=int)[y] | (np.random.default_rng(0).random((60, 3)) < 0.3)
    np.savez(folder / "data" / "sets.npz", x=x, candidates=sets, label_names=names)
    x, y = blobs(60, seed=4)
    np.savez(folder / "data" / "test.npz", x=x, y=y, label_names=names)
    write(folder, ANIMALS)
    return folder


class TestOwnFiles:
    def test_they_train_one_model(self, animals):
        done = command("run", "experiment.toml", cwd=animals)
        assert (done.code, done.err) == (0, "")
        summary, account = (read(animals / "runs" / "animals" / f"{name}.json") for name in ("summary", "federation"))
        assert summary["final"]["global"]["accuracy"] > 0.9
        assert summary["final"]["sites"]["each"]["farm"]["accuracy"] > 0.9
        assert summary["final"]["sites"]["each"]["crowd"]["in_set"] > 0.9
        assert {name: (site["train"], site["test"]) for name, site in account["sites"].items()} == {
            "zoo": (72, 18),
            "farm": (96, 24),
            "crowd": (30, 30),
        }
        assert account["test"] == "the server's own test file, test.npz"
        assert account["labels"] == ["ant", "bee", "cat"]

    def test_the_written_config_runs_from_anywhere(self, animals, tmp_path):
        done = command("run", "experiment.toml", "--out", "one", cwd=animals)
        assert done.code == 0
        moved = shutil.copy(animals / "one" / "config.toml", tmp_path / "moved.toml")
        again = command("run", moved, "--out", "two", cwd=tmp_path)
        assert (again.code, again.err) == (0, "")
        digests = [read(out / "summary.json")["model_sha256"] for out in (animals / "one", tmp_path / "two")]
        assert digests[0] == digests[1]


class TestWarnings:
    """A run prints the warnings of `fedaccord check` before it trains."""

    def test_they_come_before_the_first_round_and_are_those_of_check(self, tmp_path):
        changes = ["--set", 'data.views={site-0={known=["0","1"]},site-1={known=["2","3"]}}']
        path = write(tmp_path, SMALL)
        checked = command("check", path, *changes, cwd=tmp_path)
        warned = [line for line in checked.out.splitlines() if line.startswith("warning: ")]
        assert len(warned) == 3
        done = command("run", path, *changes, cwd=tmp_path)
        assert (done.code, done.err) == (0, "")
        told = done.out.splitlines()
        assert told[0] == "small (fedavg): preparing"
        assert sorted(told[1:4]) == sorted(warned)
        assert told[4].startswith("small (fedavg): 2 sites, ")

    def test_a_long_list_is_cut_and_names_the_command_that_prints_it(self, tmp_path):
        many = ["--set", "data.partition.sites=15", "--set", "data.samples=30"]
        known = ["--set", 'data.view={kind="coarse",correspondence={a=["0"],b=["1","2","3","4","5","6","7","8","9"]}}']
        done = command("run", write(tmp_path, SMALL), *many, *known, cwd=tmp_path)
        warned = [line for line in done.out.splitlines() if line.startswith("warning: ")]
        assert len(warned) == 11
        assert re.fullmatch(r"warning: \d+ more warnings are printed by `fedaccord check`", warned[-1])

    def test_an_error_of_check_stops_it(self, tmp_path):
        x, y = blobs(30)
        np.savez(tmp_path / "a.npz", x=x, y=y)
        sites = (
            '[[sites]]\nname = "a"\ndata = "a.npz"\nview = { kind = "unlabelled" }\n[labels]\nclasses = ["p", "q"]\n'
        )
        done = command("run", write(tmp_path, sites), cwd=tmp_path)
        assert done.code == 2
        assert done.err == "error: no site has annotations, so there is nothing to learn from\n"
        assert not list((tmp_path / "runs").iterdir())


class TestLocal:
    def test_every_site_keeps_its_own_model(self, tmp_path):
        path = write(tmp_path, SMALL)
        assert command("run", path, "--set", "method.name=local", "--out", "out", cwd=tmp_path).code == 0
        state, memories = read_checkpoint(checkpoint(tmp_path / "out", 2))
        assert state.numbers["round"] == 2
        assert sorted(memories) == ["site-0", "site-1"]
        own = [memories[site].select("personal") for site in sorted(memories)]
        assert list(own[0]) == list(own[1])
        assert own[0]["head.weight"].shape == (10, 16)
        assert not torch.equal(own[0]["head.weight"], own[1]["head.weight"])
        assert read(tmp_path / "out" / "summary.json")["final"]["global"] == {}


class TestUnusualRuns:
    def test_nothing_is_judged(self, tmp_path):
        done = command("run", write(tmp_path, SMALL), "--set", "run.evaluate_every=0", "--out", "out", cwd=tmp_path)
        assert (done.code, done.err) == (0, "")
        summary = read(tmp_path / "out" / "summary.json")
        assert summary["final"] == {"global": {}, "sites": {"mean": {}, "std": {}, "each": {}}}
        assert {line["scope"] for line in lines(tmp_path / "out" / "metrics.jsonl")} == {"round"}
        assert (tmp_path / "out" / "report.html").exists()

    def test_some_rounds_are_judged_and_the_last_always(self, tmp_path):
        options = ["--set", "run.evaluate_every=2", "--set", "method.rounds=3", "--set", "run.checkpoint_every=0"]
        assert command("run", write(tmp_path, SMALL), *options, "--out", "out", cwd=tmp_path).code == 0
        written = lines(tmp_path / "out" / "metrics.jsonl")
        assert [line["round"] for line in written if line["scope"] == "global"] == [2, 3]
        assert list((tmp_path / "out" / "checkpoints").iterdir()) == [checkpoint(tmp_path / "out", 3)]

    def test_a_run_without_a_valid_reply_fails_and_leaves_a_whole_folder(self, tmp_path):
        far = ["--set", "method.lr=1000", "--set", "method.weight_decay=1e37"]
        done = command("run", write(tmp_path, SMALL), *far, "--out", "out", cwd=tmp_path)
        assert done.code == 1
        first, second = (line.removeprefix("problem: ") for line in done.err.splitlines())
        assert first.startswith("no reply was admitted in the last round, 2, because every site was dropped")
        assert second.startswith("dropped in more than half of the rounds: 'site-0', 'site-1' (it holds NaN")
        problems = read(tmp_path / "out" / "summary.json")["problems"]
        assert [(p["kind"], p["text"], p["fatal"]) for p in problems] == [
            ("not updated", first, True),
            ("not finite", second, False),
        ]
        page = (tmp_path / "out" / "report.html").read_text()
        assert page.index("no reply was admitted in the last round") < page.index('<div class="cards">')
        assert f"problem: {first}" in (tmp_path / "out" / "log.txt").read_text()
        summary = read(tmp_path / "out" / "summary.json")  # as JSON without NaN
        assert (summary["rounds"], summary["dropped"]) == (2, 4)
        (warning,) = summary["warnings"]
        assert warning.startswith("no reply of a site was valid")
        assert warning in done.out
        assert "no reply of a site was valid" in (tmp_path / "out" / "report.html").read_text()

    def test_a_run_that_diverges_says_so_also_in_a_report_written_later(self, tmp_path):
        done = command("run", write(tmp_path, SMALL), "--set", "method.lr=1000", "--out", "out", cwd=tmp_path)
        assert done.code == 1  # although its replies are finite and were admitted
        told = "training diverged: the test loss of the global model is "
        assert done.err.startswith(f"problem: {told}")
        summary = read(tmp_path / "out" / "summary.json")
        assert [problem["kind"] for problem in summary.pop("problems")] == ["diverged"]
        write(tmp_path / "out", json.dumps(summary), "summary.json")  # as an earlier version wrote it
        assert command("report", "out", cwd=tmp_path).code == 0
        assert told in (tmp_path / "out" / "report.html").read_text()

    def test_a_terminal_shows_a_bar(self, tmp_path):
        screen = io.StringIO()
        terminal = Console(file=screen, force_terminal=True, width=100, markup=False)
        with mock.patch.object(cli_run, "console", terminal), mock.patch.object(cli_options, "console", terminal):
            assert command("run", write(tmp_path, SMALL), cwd=tmp_path).code == 0
        shown = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", screen.getvalue())
        assert re.search(r"small \(fedavg\) ━+ round 2 of 2 0:00:00 left global \d+\.\d%, sites", shown)
        assert "small (fedavg): 2 sites, 160 training samples, 10 labels, 2 rounds" in shown
        assert shown.endswith("report: runs/small/report.html\n")

    def test_names_that_look_like_markup(self, tmp_path):
        names = 'data.names=["[red]", "a:smile:b"]'
        path = write(tmp_path, SMALL)
        done = command("run", path, "--set", names, "--out", "[bold]out", "--seed", "1", cwd=tmp_path)
        assert (done.code, done.err) == (0, "")
        assert done.out.splitlines()[-1] == "report: [bold]out/report.html"
        each = read(tmp_path / "[bold]out" / "summary.json")["final"]["sites"]["each"]
        assert list(each) == ["[red]", "a:smile:b"]


MODELS_OF_A_USER = """
import torch
from torch import nn


class Marked(nn.Module):
    '''Refuses samples that carry a mark, as code with a real bug would refuse some input.'''

    def __init__(self, input_shape, classes, width):
        super().__init__()
        self.encoder = nn.Sequential(Guard(), nn.Flatten(), nn.Linear(16, width), nn.Tanh())
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        return self.head(self.encoder(x))


class Guard(nn.Module):
    def forward(self, x):
        if (x == 99).any():
            raise ZeroDivisionError("a marked sample")
        return x
"""


@pytest.fixture(scope="module")
def marked(tmp_path_factory):
    """Three sites with a user's model and two workers; at one of the sites the model raises."""
    folder = tmp_path_factory.mktemp("marked")
    write(folder, MODELS_OF_A_USER, "users_models.py")
    for name in ("a", "b", "c"):
        x, y = blobs(30, features=16, seed=ord(name))
        images = x.reshape(30, 1, 4, 4)
        if name == "b":
            images[:, 0, 0, 0] = 99
        np.savez(folder / f"{name}.npz", x=images, y=y)
    sites = "".join(f'[[sites]]\nname = "{name}"\ndata = "{name}.npz"\n' for name in "abc")
    write(
        folder,
        f'name = "marked"\n{sites}\n[model]\nname = "users_models:Marked"\nwidth = 5\n'
        '[method]\nname = "fedavg"\nrounds = 2\nsteps = 2\n',
    )
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    # In a terminal that knows few letters.
    variables = {"PYTHONPATH": path, "PYTHONIOENCODING": "ascii"}
    return folder, process(
        "run", "experiment.toml", "--workers", "2", "--trust", "users_models", cwd=folder, **variables
    )


class TestASiteThatFails:
    def test_the_run_goes_on_without_it(self, marked):
        folder, done = marked
        assert done.code == 0, done.err
        summary = read(folder / "runs" / "marked" / "summary.json")
        assert (summary["rounds"], summary["workers"]) == (2, 2)
        rounds = [line for line in lines(folder / "runs" / "marked" / "metrics.jsonl") if line["scope"] == "round"]
        assert [(line["asked"], line["replied"]) for line in rounds] == [(["a", "b", "c"], 2)] * 2
        assert sorted(summary["final"]["sites"]["each"]) == ["a", "c"]
        (problem,) = summary["problems"]
        assert problem["text"].startswith("dropped in more than half of the rounds: 'b' (ZeroDivisionError: a marked")
        assert done.err == f"problem: {problem['text']}\n"

    def test_the_summary_tells_site_task_and_reason(self, marked):
        summary = read(marked[0] / "runs" / "marked" / "summary.json")
        assert summary["dropped"] == 5
        line = MODELS_OF_A_USER[: MODELS_OF_A_USER.index("raise ZeroDivisionError")].count("\n") + 1
        reason = f"ZeroDivisionError: a marked sample (users_models.py:{line})"
        assert summary["dropped_replies"] == [
            {"round": number, "site": "b", "task": task, "tensor": "", "reason": reason}
            for number in (1, 2)
            for task in (("train", "evaluate", "examine") if number == 2 else ("train", "evaluate"))
        ]

    def test_the_screen_and_the_log_tell_it_too(self, marked):
        folder, done = marked
        told = "site 'b' dropped from train: ZeroDivisionError: a marked sample"
        assert re.search(rf"^  round 1: {told} \(users_models\.py:\d+\)$", done.out, re.MULTILINE)
        assert "% ? " in done.out  # the spread's sign, in a terminal that cannot show it
        log = (folder / "runs" / "marked" / "log.txt").read_text()
        assert f"round 1: {told}" in log
        assert 'users_models.py", line' in log  # the traceback, for whoever has to repair it

    def test_the_model_is_the_user_s(self, marked):
        described = read(marked[0] / "runs" / "marked" / "model" / "model.json")
        assert described["model"] == {"name": "users_models:Marked", "settings": {"width": 5}, "input_shape": [1, 4, 4]}
        tensors = from_bytes((marked[0] / "runs" / "marked" / "model" / "model.safetensors").read_bytes()).tensors
        assert tensors["head.weight"].shape == (3, 5)


class TestInterrupting:
    def test_ctrl_c_ends_a_run_at_once_and_leaves_no_process(self, tmp_path):
        write(tmp_path, SMALL)
        arguments = ["run", "experiment.toml", "--workers", "2", "--set", "method.rounds=1000000"]
        running = subprocess.Popen(
            [sys.executable, "-m", "fedaccord", *arguments],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            metrics = tmp_path / "runs" / "small" / "metrics.jsonl"
            wait_for(lambda: metrics.exists() and running.poll() is None, seconds=100)
            workers = children(running.pid)
            assert len(workers) == 2
            running.send_signal(signal.SIGINT)
            out, err = running.communicate(timeout=20)
        finally:
            running.kill()
            running.wait()
        assert running.returncode == 130
        assert err == "stopped by SIGINT; go on with: fedaccord resume runs/small\n"
        assert " stopped by SIGINT after round " in (tmp_path / "runs" / "small" / "log.txt").read_text()
        wait_for(lambda: not any(alive(worker) for worker in workers), seconds=5)
        assert all(json.loads(line) for line in metrics.read_text().splitlines())


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] != "Z"
