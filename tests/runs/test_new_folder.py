"""Where a new run goes: what is refused, what is replaced, and what is never deleted."""

import json
import shutil

import pytest

from command_line import SMALL, command, write
from fedaccord.errors import FolderTakenError, RunFolderError
from fedaccord.runs.folder import FolderLock
from fedaccord.runs.new_folder import new_run_folder


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    assert command("run", write(folder, SMALL), cwd=folder).code == 0
    return folder


@pytest.fixture
def here(finished, tmp_path):
    """A copy of a folder with an experiment and its finished run; returns the folder of the run."""
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    run, moved = tmp_path / "runs" / "small", str(tmp_path)
    for name in ("run.json", "config.toml"):
        write(run, (run / name).read_text().replace(str(finished), moved), name)
    return run


def cut(run):
    """Make a finished run look as if it had been killed after its first round."""
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(line for line in lines if json.loads(line)["round"] == 1))
    (run / "summary.json").unlink()


def repeat(here, *options):
    return command("run", "experiment.toml", *options, cwd=here.parent.parent)


class TestRepeating:
    def test_a_finished_run_is_repeated_in_a_folder_of_its_own(self, here):
        assert repeat(here).out.endswith("report: runs/small-2/report.html\n")

    def test_a_cut_run_is_not_repeated_but_its_way_on_is_told(self, here):
        cut(here)
        done = repeat(here)
        assert done.code == 2
        told = "the run in 'runs/small' was cut off after round 1 of 2; continue it with: fedaccord resume runs/small"
        assert done.err == f"error: {told}, or start anew with: --out runs/small --overwrite\n"
        assert [path.name for path in here.parent.iterdir()] == ["small"]

    def test_the_two_commands_that_it_tells_work(self, here):
        cut(here)
        assert command("resume", "runs/small", cwd=here.parent.parent).code == 0
        cut(here)
        assert repeat(here, "--out", "runs/small", "--overwrite").code == 0
        assert json.loads((here / "summary.json").read_text())["rounds"] == 2

    def test_a_cut_run_with_other_settings_is_told_and_left_alone(self, here):
        cut(here)
        done = repeat(here, "--set", "method.lr=0.2")
        assert done.code == 0
        told = "note: runs/small was cut off and has other settings; fedaccord resume runs/small continues it\n"
        assert done.err == told
        assert done.out.endswith("report: runs/small-2/report.html\n")
        assert not (here / "summary.json").exists()

    def test_a_running_one_does_not_stand_in_the_way(self, here):
        cut(here)
        lock = FolderLock(here)
        done = repeat(here)
        lock.release()
        assert (done.code, done.err) == (0, "")

    def test_a_demo_that_was_cut_may_be_repeated(self, here, monkeypatch):
        cut(here)
        monkeypatch.chdir(here.parent.parent)
        new_run_folder(None, "small", None).close()
        assert (here.parent / "small-2").is_dir()


class TestOut:
    def test_a_folder_with_a_run_names_both_ways_out(self, here):
        done = repeat(here, "--out", "runs/small")
        assert done.code == 2
        assert "holds a run (round 2 of 2, finished); give another one with --out, or replace it with" in done.err
        cut(here)
        assert "continue it with: fedaccord resume runs/small" in repeat(here, "--out", "runs/small").err


class TestOverwriting:
    def test_it_replaces_the_run_of_that_name(self, here):
        before = json.loads((here / "run.json").read_text())["run"]
        done = repeat(here, "--overwrite", "--seed", "3")
        assert (done.code, done.err) == (0, "")
        assert [path.name for path in here.parent.iterdir()] == ["small"]
        assert json.loads((here / "run.json").read_text())["run"] != before
        assert json.loads((here / "summary.json").read_text())["seed"] == 3
        assert {json.loads(line)["round"] for line in (here / "metrics.jsonl").read_text().splitlines()} == {1, 2}

    def test_it_also_starts_where_nothing_is(self, tmp_path):
        assert command("run", write(tmp_path, SMALL), "--overwrite", "--out", "new", cwd=tmp_path).code == 0

    def test_it_never_deletes_what_no_run_wrote(self, here):
        own = here.parent / "own"
        own.mkdir()
        (own / "thesis.tex").write_text("years of work")
        for path, told in ((own, "is not a run folder"), (here, "also holds 'thesis.tex'")):
            shutil.copy(own / "thesis.tex", here / "thesis.tex")
            before = sorted(str(file) for file in path.rglob("*"))
            with pytest.raises(FolderTakenError, match=f"{told}, so --overwrite does not replace it"):
                new_run_folder(path, "small", None, overwrite=True)
            assert sorted(str(file) for file in path.rglob("*")) == before

    def test_it_refuses_a_run_that_is_being_written(self, here):
        lock = FolderLock(here)
        with pytest.raises(RunFolderError, match="is being written by another process"):
            new_run_folder(here, "small", None, overwrite=True)
        lock.release()
        assert (here / "summary.json").exists()

    def test_it_does_not_follow_links(self, here, tmp_path):
        kept = tmp_path / "kept"
        kept.mkdir()
        (kept / "file").touch()
        shutil.rmtree(here / "checkpoints")
        (here / "checkpoints").symlink_to(kept)
        new_run_folder(here, "small", None, overwrite=True).close()
        assert (kept / "file").exists()

    def test_it_is_not_for_several_seeds(self, here):
        done = repeat(here, "--overwrite", "--seeds", "2")
        assert done.code == 2
        assert "--overwrite is for one run" in done.err

    @pytest.mark.parametrize("overwrite", [False, True])
    def test_a_run_that_was_killed_at_its_start_needs_no_permission(self, tmp_path, overwrite):
        """`resume` sends the user back to `run`, so `run` must take the folder."""
        here = tmp_path / "run"
        for name in ("checkpoints", "model"):
            (here / name).mkdir(parents=True)
        for name in (".lock", "log.txt", "run.json", ".config.toml.tmp"):
            (here / name).touch()
        (here / "model" / "own").touch()
        if not overwrite:
            with pytest.raises(FolderTakenError, match="is not empty"):
                new_run_folder(here, "small", None)
            (here / "model" / "own").unlink()
        new_run_folder(here, "small", None, overwrite=overwrite).close()
        assert sorted(path.name for path in here.iterdir()) == [".lock", "checkpoints", "model"]
