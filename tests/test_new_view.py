"""The page on a view of one's own: its file, in a folder outside the package, goes through every command."""

from __future__ import annotations

import csv
import html
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from command_line import checkpoint, command, file_on_page, register
from fedaccord.errors import UntrustedError
from fedaccord.extensions import installed
from fedaccord.runs.trained_model import TrainedModel

PAGE = Path(__file__).parents[1] / "docs" / "new-view.md"
TRUST = ("--trust", "interval_view")
KIND, NOISY = "interval_view:Interval", "noisy_view:Noisy"


@pytest.fixture(scope="module")
def folder(nursery, tmp_path_factory):
    """A folder with the page's three files, its tables, and a finished run of two workers and stacked sites."""
    place = tmp_path_factory.mktemp("outside")
    for name in ("interval_view.py", "noisy_view.py", "make_files.py", "grades.toml", "study.toml"):
        (place / name).write_text(file_on_page(PAGE, name))
    subprocess.run([sys.executable, "make_files.py"], cwd=place, check=True, timeout=60)
    done = nursery.live("run", "grades.toml", "--out", "graded", "--set", "run.checkpoint_every=4", *TRUST, cwd=place)
    assert done.code == 0, done.err
    return place


def digest(run):
    return json.loads((run / "summary.json").read_text())["model_sha256"]


def test_the_file_is_short():
    assert len(file_on_page(PAGE, "interval_view.py").splitlines()) <= 90


def test_sites_learn_from_ranges(folder):
    final = json.loads((folder / "graded/summary.json").read_text())["final"]
    assert final["sites"]["each"]["west"]["accuracy"] > 0.6
    assert final["sites"]["each"]["north"]["in_set"] > 0.6


@pytest.fixture(scope="module")
def one_by_one(nursery, folder):
    """A run of the same experiment in which sites train one by one."""
    settings = ("--set", "run.batched=never", "--workers", "0")
    assert nursery.live("run", "grades.toml", "--out", "alone", *settings, *TRUST, cwd=folder).code == 0
    return folder / "alone"


def test_sites_that_train_one_by_one_learn_the_same(folder, one_by_one):
    together, alone = (
        json.loads((run / "summary.json").read_text())["final"] for run in (folder / "graded", one_by_one)
    )
    for site, metrics in together["sites"]["each"].items():
        assert metrics["nll"] == pytest.approx(alone["sites"]["each"][site]["nll"], rel=1e-3)


def test_a_view_that_cannot_be_stacked_trains_one_by_one(nursery, folder, one_by_one):
    text = (folder / "interval_view.py").read_text()
    (folder / "slow_view.py").write_text(re.sub(r"    stacks: .*\n", "", text))
    experiment = (folder / "grades.toml").read_text().replace("interval_view", "slow_view")
    (folder / "slow.toml").write_text(experiment)
    assert (
        nursery.live("run", "slow.toml", "--out", "slow", "--workers", "0", "--trust", "slow_view", cwd=folder).code
        == 0
    )
    assert digest(folder / "slow") == digest(one_by_one)


def test_check_counts_ranges(nursery, folder):
    done = nursery.live("check", "grades.toml", *TRUST, cwd=folder)
    assert done.code == 0, done.err
    assert "ranges that hold it" in done.out
    assert "view Interval; 96 rows for training" in done.out


def test_a_wrong_cell_and_a_wrong_key_are_named(nursery, folder):
    (folder / "bad.csv").write_text("pain,fever,grade\n1,2,severe..mild\n1,2,mild..bad\n" + "1,2,mild\n" * 8)
    text = (folder / "grades.toml").read_text().replace("north.csv", "bad.csv")
    (folder / "bad.toml").write_text(text)
    done = nursery.live("run", "bad.toml", *TRUST, cwd=folder)
    assert done.code == 2
    assert "'severe..mild' ends before it begins" in done.err
    assert "'mild..bad' is not a label or a range" in done.err
    (folder / "bad.toml").write_text(text.replace(f'"{KIND}" }}', f'"{KIND}", raech = 1 }}'))
    done = nursery.live("run", "bad.toml", *TRUST, cwd=folder)
    assert done.code == 2
    assert "unknown key 'raech'; did you mean 'reach'?" in done.err


@pytest.mark.parametrize(
    "arguments",
    [("check", "grades.toml"), ("run", "grades.toml"), ("predict", "graded", "north.csv", "--site", "north")],
    ids=lambda arguments: arguments[0],
)
def test_nothing_is_imported_that_nobody_allowed(nursery, folder, arguments):
    done = nursery.live(*arguments, cwd=folder)
    assert done.code == 2
    assert done.err.count("--trust interval_view") == 1
    assert f"'{KIND}' would run code of the package 'interval_view'" in done.err


def test_a_cut_run_goes_on(nursery, folder):
    cut = folder / "cut"
    shutil.copytree(folder / "graded", cut)
    (cut / "summary.json").unlink()
    checkpoint(cut, 10).unlink()
    done = nursery.live(
        "resume", cut, "--workers", "0", *TRUST, cwd=folder.parent
    )  # the module is beside the original file
    assert done.code == 0, done.err
    assert "resumed after round 8" in done.out
    assert digest(cut) == digest(folder / "graded")


def test_a_site_predicts_and_the_report_names_the_view(nursery, folder):
    done = nursery.live("predict", "graded", "north.csv", "--site", "north", *TRUST, cwd=folder)
    assert done.code == 0, done.err
    rows = list(csv.DictReader((folder / "predictions.csv").read_text().splitlines()))
    assert len(rows) == 120
    assert {row["prediction"] for row in rows} <= {"none", "mild", "moderate", "severe"}
    assert "ranges of labels" in (folder / "graded/report.html").read_text()


def test_a_report_without_trust_says_what_it_leaves_out(nursery, folder):
    done = nursery.live("report", "graded", cwd=folder)  # without trust the view is shown by its kind alone
    assert done.code == 0
    sentence = f"The words of the view '{KIND}' were left out because its package is not trusted; write the report with"
    assert done.err.count(f"note: {sentence} --trust interval_view.") == 1
    page = (folder / "graded/report.html").read_text()
    assert KIND in page
    assert html.unescape(page).count(f"{sentence} --trust interval_view.") == 1
    assert "ranges of labels" not in page
    done = nursery.live("report", "graded", *TRUST, cwd=folder)
    assert (done.code, done.err) == (0, "")
    page = (folder / "graded/report.html").read_text()
    assert "ranges of labels" in page
    assert "left out" not in page


def test_a_report_whose_view_is_not_found_says_so(nursery, folder, tmp_path):
    done = nursery.live("report", folder / "graded", *TRUST, cwd=tmp_path)
    assert done.code == 0
    assert "left out because its class is not available: view.kind: the module 'interval_view' cannot" in done.err


def test_an_installed_view_needs_no_trust_in_the_report(folder, tmp_path, monkeypatch):
    register(tmp_path, "interval-dist", views={"interval": KIND})
    for place in (tmp_path, folder):
        monkeypatch.syspath_prepend(str(place))
    installed.cache_clear()
    done = command("report", "graded", cwd=folder)
    installed.cache_clear()
    sys.modules.pop("interval_view", None)
    assert (done.code, done.err) == (0, "")
    assert "ranges of labels" in (folder / "graded/report.html").read_text()


def test_a_view_that_subclasses_a_built_in_one(nursery, folder):
    text = (folder / "grades.toml").read_text().replace('west.csv"', 'west.csv"\nview = { kind = "noisy_view:Noisy" }')
    (folder / "noisy.toml").write_text(text)
    trust, often = (*TRUST, "--trust", "noisy_view"), ("--set", "run.checkpoint_every=4")
    done = nursery.live("run", "noisy.toml", "--out", "noisy", *often, *trust, cwd=folder)
    assert done.code == 0, done.err
    assert json.loads((folder / "noisy/federation.json").read_text())["sites"]["west"]["view"]["kind"] == NOISY
    assert digest(folder / "noisy") != digest(folder / "graded")  # workers train with the subclass
    shutil.copytree(folder / "noisy", folder / "cut noisy")
    (folder / "cut noisy/summary.json").unlink()
    checkpoint(folder / "cut noisy", 10).unlink()
    done = nursery.live("resume", "cut noisy", "--workers", "0", *trust, cwd=folder)
    assert done.code == 0, done.err
    assert digest(folder / "cut noisy") == digest(folder / "noisy")


def test_a_model_folder_runs_no_code_of_strangers(folder):
    model = TrainedModel.load(folder / "graded")
    with pytest.raises(UntrustedError):
        model.site("north")
    assert model.site("west").view.kind == "exact"


def test_a_study_draws_ranges(nursery, folder):
    short = [part for change in ("method.rounds=1", "data.samples=200", "run.workers=0") for part in ("--set", change)]
    done = nursery.live("run", "study.toml", "--out", "study", *short, *TRUST, cwd=folder)
    assert done.code == 0, done.err


def test_a_deployed_site_agrees_in_its_own_file(nursery, folder):
    done = nursery.live("deploy", "grades.toml", "deployed", *TRUST, cwd=folder)
    assert done.code == 0, done.err
    site, server = folder / "deployed/sites/north", folder / "deployed/server"
    assert (site / "code/interval_view.py").is_file()
    assert "trust" not in json.loads((site / "site.json").read_text())["spec"]
    refused = nursery.live("deploy", "--check", site, cwd=folder.parent)
    assert refused.code == 1
    assert "site 'north' has not agreed to run code of 'interval_view'" in refused.out
    decisions = (site / "site.toml").read_text()
    (site / "site.toml").write_text(decisions.replace("# trust", "trust"))
    for place, trust in ((site, ()), (server, TRUST)):
        agreed = nursery.live("deploy", "--check", place, *trust, cwd=folder.parent)
        assert agreed.code == 1  # nobody serves this deployment
        assert "interval_view" not in agreed.out
