"""`fedaccord init`: what it writes runs as it is, and says what it is."""

import json

import pytest

from command_line import command
from fedaccord.config import load_experiment
from test_import_time import SLOW, imported


@pytest.fixture(scope="module")
def clinic(tmp_path_factory):
    folder = tmp_path_factory.mktemp("init")
    done = command("init", "clinic", cwd=folder)
    assert (done.code, done.err) == (0, "")
    return folder / "clinic"


def test_it_writes_a_commented_file_and_small_tables(clinic):
    names = sorted(path.name for path in clinic.iterdir())
    assert names == ["federation.toml", "hospital.csv", "hotline.csv", "school.csv", "test.csv"]
    assert sum(path.stat().st_size for path in clinic.iterdir()) < 20_000
    text = (clinic / "federation.toml").read_text()
    for section in ("[labels]", "[features]", "[[sites]]", "[server]"):  # each is explained by the line above it
        above = text[: text.index(f"\n{section}\n")].splitlines()[-1]
        assert above.startswith("#"), section
    experiment, _ = load_experiment(clinic / "federation.toml")
    assert [site.view.kind for site in experiment.sites] == ["exact", "coarse", "candidates"]
    assert "cold|flu" in (clinic / "hotline.csv").read_text()


def test_it_is_sound_and_learns(clinic):
    checked = command("check", "federation.toml", cwd=clinic)
    assert (checked.code, checked.err) == (0, "")
    assert checked.out.rstrip().endswith("sound")
    done = command("run", "federation.toml", "--workers", "0", "--set", "method.rounds=15", cwd=clinic)
    assert (done.code, done.err) == (0, "")
    summary = json.loads((clinic / "runs" / "clinic" / "summary.json").read_text())
    assert summary["final"]["global"]["accuracy"] > 0.8  # chance is a third
    each = summary["final"]["sites"]["each"]
    assert each["hospital"]["accuracy"] > 0.7
    assert each["school"]["accuracy"] > 0.8  # of two answers
    account = json.loads((clinic / "runs" / "clinic" / "federation.json").read_text())
    assert set(account["missing"]["school"]) == {"temperature"}
    assert "temperature is missing" in account["features"]


def test_it_is_quick(tmp_path):
    code, packages = imported("-m", "fedaccord", "init", "clinic", cwd=tmp_path)
    assert code == 0
    assert not packages & SLOW


def test_it_always_writes_the_same(clinic, tmp_path):
    assert command("init", tmp_path / "again", cwd=tmp_path).code == 0
    for path in (tmp_path / "again").iterdir():
        assert path.read_bytes() == (clinic / path.name).read_bytes()


def test_it_refuses_a_folder_with_something_in_it(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "federation.toml").write_text("mine")
    done = command("init", "full", cwd=tmp_path)
    assert done.code == 2
    assert "the folder 'full' is not empty; name a new one" in done.err
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["federation.toml"]
    assert (tmp_path / "full" / "federation.toml").read_text() == "mine"
    done = command("init", "full/federation.toml", cwd=tmp_path)
    assert done.code == 2
    assert "cannot be written" in done.err
    (tmp_path / "empty").mkdir()
    assert command("init", "empty", cwd=tmp_path).code == 0
