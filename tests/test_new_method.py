"""The page on a method of one's own: its file, in a folder outside the package, goes through every command."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

import fedaccord
from command_line import checkpoint, file_on_page, process, register
from fedaccord import Exact, Federation, LabelSpace, Site

PAGE = Path(__file__).parents[1] / "docs" / "new-method.md"
TRUST = ("--trust", "fedlc")


@pytest.fixture(scope="module")
def folder(nursery, tmp_path_factory):
    """A folder with the page's files, and a finished run of two workers whose sites train as one program."""
    place = tmp_path_factory.mktemp("outside")
    for name in ("fedlc.py", "skewed.toml", "test_fedlc.py", "balanced.py", "test_balanced.py"):
        (place / name).write_text(file_on_page(PAGE, name))
    done = nursery.live("run", "skewed.toml", "--out", "skewed", "--workers", "2", *TRUST, cwd=place)
    assert done.code == 0, done.err
    return place


def summary(run):
    return json.loads((run / "summary.json").read_text())


def test_the_file_is_short():
    assert len(file_on_page(PAGE, "fedlc.py").splitlines()) <= 60


def test_the_sites_learn_and_the_run_names_the_method(folder):
    found = summary(folder / "skewed")
    assert found["method"] == "fedlc:fedlc"
    assert found["settings"]["tau"] == 1.0
    assert found["dropped"] == 0
    assert found["final"]["sites"]["mean"]["accuracy"] > 0.5


def test_sites_that_train_one_by_one_learn_the_same(nursery, folder):
    settings = ("--set", "run.batched=never", "--workers", "0")
    assert nursery.live("run", "skewed.toml", "--out", "alone", *settings, *TRUST, cwd=folder).code == 0
    together, alone = (summary(folder / run)["final"]["sites"]["each"] for run in ("skewed", "alone"))
    for site, metrics in together.items():
        assert metrics["nll"] == pytest.approx(alone[site]["nll"], rel=1e-3)


def test_a_cut_run_goes_on(nursery, folder):
    cut = folder / "cut"
    shutil.copytree(folder / "skewed", cut)
    (cut / "summary.json").unlink()
    checkpoint(cut, 6).unlink()
    refused = nursery.live("resume", cut, cwd=folder.parent)
    assert refused.code == 2
    assert refused.err.count("--trust fedlc") == 1
    done = nursery.live(
        "resume", cut, "--workers", "0", *TRUST, cwd=folder.parent
    )  # the module is beside the original file
    assert done.code == 0, done.err
    assert "resumed after round 4" in done.out
    assert summary(cut)["model_sha256"] == summary(folder / "skewed")["model_sha256"]


def test_predictions_need_no_code_of_the_method(nursery, folder):
    np.savez(folder / "rows.npz", x=np.full((3, 8, 8), 16, np.uint8))
    done = nursery.live("predict", "skewed", "rows.npz", cwd=folder)
    assert done.code == 0, done.err
    assert len(list(csv.DictReader((folder / "predictions.csv").read_text().splitlines()))) == 3
    assert nursery.live("report", "skewed", cwd=folder).code == 0


def test_tags_are_refused_before_the_first_round(folder, monkeypatch):
    monkeypatch.syspath_prepend(str(folder))
    from fedlc import fedlc

    site = Site("s", np.zeros((10, 2)), [["a"]] * 10, fedaccord.Tags(LabelSpace(["a", "b"])))
    with pytest.raises(
        fedaccord.ConfigError, match="the method needs one label for each sample, but site 's' has tags"
    ):
        Federation([site]).train(fedlc, rounds=1)


def test_the_other_objective_of_the_page(folder, monkeypatch):
    monkeypatch.syspath_prepend(str(folder))
    from balanced import Balanced

    def recipe(settings: fedaccord.SharedModelSettings) -> fedaccord.Recipe:
        return fedaccord.shared_model_recipe(settings, Balanced())

    rng, space = np.random.default_rng(0), LabelSpace(["a", "b"])
    labels = [(rng.random(30) < share).astype(int) for share in (0.2, 0.9, 0.5)]
    sites = [
        Site(f"s{i}", rng.normal(size=(30, 3)) + y[:, None], [space.names[k] for k in y], Exact(space))
        for i, y in enumerate(labels)
    ]
    batched = {how: Federation(sites).train(recipe, rounds=2, run={"batched": how}) for how in ("always", "never")}
    together, apart = (result.summary["final"]["sites"]["mean"]["nll"] for result in batched.values())
    assert together == pytest.approx(apart, rel=1e-4)


@pytest.mark.slow
def test_an_installed_package_is_listed_and_runs_by_its_short_name(folder, tmp_path):
    assert tomllib.loads(file_on_page(PAGE, "pyproject.toml"))["project"]["name"] == "fedlc"
    entry = re.search(
        r'\[project.entry-points."fedaccord\.(\w+)"\]\n(\w+) = "(\S+)"', file_on_page(PAGE, "pyproject.toml")
    )
    register(tmp_path, "fedlc-package", **{entry[1]: {entry[2]: entry[3]}})
    shutil.copy(folder / "fedlc.py", tmp_path)
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    listed = process("methods", cwd=tmp_path, PYTHONPATH=path)
    assert re.search(r"^fedlc +from the package fedlc-package *$", listed.out, re.MULTILINE)
    change = ("--set", "method.name=fedlc", "--set", "method.rounds=1")
    done = process("run", folder / "skewed.toml", *change, "--workers", "2", cwd=tmp_path, PYTHONPATH=path)
    assert done.code == 0, done.err


@pytest.mark.slow
def test_the_page_s_own_tests_pass(folder):
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_fedlc.py", "test_balanced.py"]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout
