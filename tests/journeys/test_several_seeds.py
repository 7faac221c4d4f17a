"""One command for several seeds: their folders, what is printed of them, and what a repeated command does."""

import json
import statistics

import pytest

from command_line import SMALL, command, write


def summary(run):
    return json.loads((run / "summary.json").read_text(encoding="utf-8"))


def rows(text):
    lines = [line.split("│")[1:-1] for line in text.splitlines() if line.startswith("│")]
    return {cells[1].strip(): [cell.strip() for cell in cells[2:]] for cells in lines}


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    folder = tmp_path_factory.mktemp("seeds")
    write(folder, SMALL)
    return folder, command("run", "experiment.toml", "--seeds", "0-2", cwd=folder)


def test_every_seed_has_its_run_and_the_figures_are_those_of_all(three):
    folder, done = three
    assert (done.code, done.err) == (0, "")
    runs = [folder / "runs" / "small" / f"seed-{seed}" for seed in range(3)]
    assert [summary(run)["seed"] for run in runs] == [0, 1, 2]
    values = [100 * summary(run)["final"]["global"]["accuracy"] for run in runs]
    half = 4.302653 * statistics.stdev(values) / 3**0.5
    mean = statistics.fmean(values)
    interval = f"{mean - half:.1f} to {mean + half:.1f}".replace("-", "−")
    assert rows(done.out)["Global model, accuracy"] == [
        "3",
        f"{mean:.1f}%",
        f"{statistics.stdev(values):.1f}",
        interval,
    ]
    assert done.out.endswith("comparison: runs/small/comparison.html\n")
    single = command("run", "experiment.toml", "--seed", "1", "--out", "single", cwd=folder)
    assert single.code == 0
    assert summary(folder / "single")["model_sha256"] == summary(runs[1])["model_sha256"]


def test_a_repeated_command_runs_what_is_missing_and_resumes_what_was_cut(three):
    folder, _ = three
    cut = folder / "runs" / "small" / "seed-1"
    before = summary(cut)
    (cut / "summary.json").unlink()
    again = command("run", "experiment.toml", "--seeds", "0,1,5", "--set", "run.checkpoint_every=7", cwd=folder)
    assert again.code == 0
    assert again.out.startswith("seed 0 is finished: runs/small/seed-0\n")
    assert "resumed after round 2" in again.out
    assert summary(cut)["model_sha256"] == before["model_sha256"]
    assert rows(again.out)["Global model, accuracy"][0] == "3"
    assert sorted(path.name for path in (folder / "runs" / "small").glob("seed-*")) == [
        "seed-0",
        "seed-1",
        "seed-2",
        "seed-5",
    ]


def test_other_settings_and_single_runs_get_folders_of_their_own(three):
    folder, _ = three
    other = ["run", "experiment.toml", "--seeds", "2-2", "--set", "method.rounds=1"]
    assert command(*other, cwd=folder).code == 0
    assert command(*other, cwd=folder).out.startswith("seed 2 is finished: runs/small-2/seed-2\n")
    for out, reason in (
        ("runs/small", r"holds runs with other settings (seed-0)"),
        ("runs/small/seed-0", "single run"),
    ):
        refused = command(*other, "--out", out, cwd=folder)
        assert (refused.code, refused.out, refused.err.count("\n")) == (3, "", 1)
        assert reason in refused.err


def test_a_seed_that_fails_does_not_lose_the_others(tmp_path):
    write(tmp_path, SMALL)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "seed-0").mkdir()
    (tmp_path / "out" / "seed-0" / "in-the-way").touch()
    done = command("run", "experiment.toml", "--seeds", "2", "--out", "out", cwd=tmp_path)
    assert done.code == 1
    assert "error: seed 0: the folder 'out/seed-0' is not empty" in done.err
    assert done.err.endswith("1 of 2 seeds failed: 0\n")
    assert rows(done.out)["Global model, accuracy"][0] == "1"


def test_alone_compares_every_seed_with_training_alone(tmp_path):
    write(tmp_path, SMALL)
    arguments = ["run", "experiment.toml", "--seeds", "2", "--alone"]
    killed = tmp_path / "runs" / "small" / "seed-1"
    killed.mkdir(parents=True)
    (killed / ".lock").touch()
    done = command(*arguments, cwd=tmp_path)
    assert (done.code, done.err) == (0, "")
    for seed in range(2):
        run, alone = (tmp_path / "runs" / name / f"seed-{seed}" for name in ("small", "small-alone"))
        assert (summary(run)["seed"], summary(alone)["method"]) == (seed, "local")
        assert summary(run)["verdict"]["alone"] is not None
    assert done.out.count("What federation brought each site") == 2
    assert "small better than small-alone?" in done.out
    assert done.out.endswith("comparison: runs/small/comparison.html\n")
    again = command(*arguments, cwd=tmp_path)
    assert [line for line in again.out.splitlines() if line.startswith("seed ")] == [
        f"seed {seed} is finished: runs/{name}/seed-{seed}" for seed in range(2) for name in ("small-alone", "small")
    ]


def test_mistakes_are_one_sentence(tmp_path):
    write(tmp_path, SMALL)
    for options, message in ((["--seeds", "0-2", "--seed", "1"], "give one of them"), (["--seeds", "x"], "not 'x'")):
        done = command("run", "experiment.toml", *options, cwd=tmp_path)
        assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
        assert message in done.err
    assert not (tmp_path / "runs").exists()
