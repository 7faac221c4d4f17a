"""A run that is killed at any moment, and resumed, ends bit for bit like the run that was never stopped."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import time
from pathlib import Path

import pytest
import torch

from command_line import checkpoint, write
from fedaccord.messages.message import Message
from fedaccord.runs.checkpoint import pack, read_checkpoint, seal
from fedaccord.runs.folder import RunFolder
from pace import mostly_slow

TINY = """
name = "tiny"
seed = 3

[data]
dataset = "digits"
samples = 240
partition = {{ kind = "dirichlet", sites = 4, alpha = 0.5 }}
view = {view}

[model]
{model}

[method]
name = "{method}"
rounds = 7
steps = 2
participation = {drawn}
schedule = "cosine"
{more}

[run]
workers = 0
checkpoint_every = {keep}
evaluate_every = {judge}
"""
MLP, NORMED = "hidden = [5]", 'name = "mortal:normed"'
SETS, EXACT = '{ kind = "candidates", generate = "uniform", q = 0.3 }', '{ kind = "exact" }'
FEDERATIONS = {
    "accord": {"method": "accord", "more": 'prior = "all"', "view": SETS},
    "local": {"method": "local"},
    "fedprox": {"method": "fedprox", "judge": 3, "model": NORMED},
    "personal": {"method": "personal", "view": SETS},
    "drops": {"method": "fedavg", "model": 'name = "mortal:fragile"', "judge": 2},
    "pfedpll": {"method": "pfedpll", "more": "[server]\nunlabelled = 30", "view": SETS},
    "coming and going": {
        "method": "private-labels",
        "drawn": 3,
        "view": '{ kind = "exact", known = "own" }\njoins = { site-3 = 3 }\nleaves = { site-1 = 5 }',
        "more": 'local = "scaffold"\naggregation = "median"',
    },
    "own statistics": {"method": "accord", "more": 'bn = "local"', "model": NORMED, "keep": 2},
}


def tiny(**parts):
    return TINY.format(**{"view": EXACT, "model": MLP, "more": "", "keep": 1, "judge": 1, "drawn": 2} | parts)


@pytest.fixture(scope="module")
def whole(nursery, tmp_path_factory):
    """Return the folder of an experiment file beside the run that was never stopped, `whole`."""
    made = {}

    def make(name):
        if name not in made:
            folder = made[name] = tmp_path_factory.mktemp(name.replace(" ", "-"))
            write(folder, tiny(**FEDERATIONS[name]))
            life = nursery.live("run", "experiment.toml", "--out", "whole", cwd=folder)
            assert_fine(life)
            (folder / "seconds").write_text(str(life.seconds))
        return made[name]

    return make


def assert_fine(life):
    """Assert that a run ended well; one whose sites send NaN on purpose says so."""
    assert life.code == 0, life.err
    assert [line for line in life.err.splitlines() if not line.startswith("problem: ")] == []


def account(run: Path) -> dict:
    """Return all that a run leaves behind but for times, the number of workers and the run's random name."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    summary = json.loads((run / "summary.json").read_text())
    for part in (*lines, summary):
        part.pop("seconds", None)
    summary.pop("workers")
    state, memories = read_checkpoint(max((run / "checkpoints").glob("round-*.checkpoint")))
    state.numbers.pop("seconds")
    state.words.pop("run")
    messages = {"": state, **memories}
    return {
        "lines": lines,
        "summary": summary,
        "federation": json.loads((run / "federation.json").read_text()),
        "kept": {site: (m.numbers, m.words, sorted(m.tensors)) for site, m in messages.items()},
        "tensors": {(s, n): (t.dtype, t.tolist()) for s, m in messages.items() for n, t in m.tensors.items()},
        "model": {p.name: p.read_bytes() for p in (run / "model").rglob("*") if p.is_file()},
        "checkpoints": sorted(path.name for path in (run / "checkpoints").iterdir()),
        "half written": [str(path) for path in run.rglob("*.tmp")],
    }


def assert_same(run: Path, other: Path) -> None:
    mine, others = account(run), account(other)
    for part, value in others.items():
        assert mine[part] == value, f"{part} differ"
    assert others["half written"] == []


PRECISE = [
    ("fsync", 3),
    ("fsync", 9),
    ("fsync", 18),
    ("replace", 4),
    ("replace", 5),
    ("replaced", 4),
    ("replaced", 6),
    ("half:.round-*.tmp", 1),
    ("half:.round-*.tmp", 2),
    ("half:metrics.jsonl", 2),
    ("half:.summary.json.tmp", 1),
    ("half:.model*.tmp", 1),
    ("half:.metrics.jsonl.tmp", 1),
    ("half:.config.toml.tmp", 2),
]


KILLS = 5  # of each federation, 40 in all


class TestKilling:
    @pytest.mark.parametrize("name", mostly_slow(FEDERATIONS, "accord"))
    def test_at_random_moments(self, nursery, whole, name):
        """Some by the clock, some in the middle of writing; a life that ends well begins another run."""
        folder, rng, kills, runs = whole(name), random.Random(name), 0, 0
        assert (account(folder / "whole")["summary"]["dropped"] > 1) == (name == "drops")
        length, out = float((folder / "seconds").read_text()), None
        while kills < KILLS or out is not None:
            command = ["resume", out]
            if out is None:
                runs, out = runs + 1, f"cut-{runs}"
                command = ["run", "experiment.toml", "--out", out]
            fate = {}
            if kills < KILLS:
                fate = {"after": rng.uniform(0.05, length)} if rng.random() < 0.5 else {"at": rng.choice(PRECISE)}
            life = nursery.live(*command, cwd=folder, **fate)
            kills += life.killed
            if not life.killed:
                assert_fine(life)
                assert_same(folder / out, folder / "whole")
                out = None
            elif not (folder / out / "config.toml").exists():  # killed before it began
                out = None
        assert runs <= 6 * KILLS  # on a fast machine many a life ends before its hour

    @pytest.mark.slow
    def test_with_a_worker(self, nursery, whole):
        folder = whole("accord")
        life = nursery.live(
            "run", "experiment.toml", "--out", "worker", "--workers", "1", cwd=folder, at=("half:.round-*.tmp", 3)
        )
        assert life.killed
        for at in ("fsync", 13), ("replace", 5):
            assert nursery.live("resume", "worker", "--workers", "1", cwd=folder, at=at).killed
        nobody_left(nursery)
        life = nursery.live("resume", "worker", "--workers", "0", cwd=folder)
        assert (life.code, life.err) == (0, "")
        assert_same(folder / "worker", folder / "whole")

    @pytest.mark.slow
    def test_every_write_of_a_whole_run(self, nursery, whole):
        """One run, killed at each of its writes in turn; each life gets one write further."""
        folder = whole("local")
        (folder / "long").mkdir()
        write(folder / "long", tiny(**FEDERATIONS["local"]).replace("rounds = 7", "rounds = 2"))
        here = folder / "long"
        assert nursery.live("run", "experiment.toml", "--out", "whole", cwd=here).code == 0
        killed = 0
        for number in range(1, 100):
            shutil.rmtree(here / "cut", ignore_errors=True)
            event = ("replaced", number)
            life = nursery.live("run", "experiment.toml", "--out", "cut", cwd=here, at=event)
            if not life.killed:
                break
            killed += 1
            if (here / "cut" / "config.toml").exists():
                life = nursery.live("resume", "cut", cwd=here)
                assert (life.code, life.err) == (0, "")
                assert (here / "cut" / "report.html").exists()
                assert_same(here / "cut", here / "whole")
        assert killed >= 8  # run.json, config, federation, two checkpoints, the model's files, summary, report


def nobody_left(nursery):
    end = time.monotonic() + 10
    while nursery.left_over():
        assert time.monotonic() < end, "a worker outlived its run"
        time.sleep(0.05)


@pytest.fixture
def cut(nursery, whole, tmp_path):
    """A run cut in round 5, with checkpoints of rounds 3 and 4, beside the whole one."""
    folder = whole("accord")
    for name in ("experiment.toml", "whole"):
        copy = shutil.copytree if (folder / name).is_dir() else shutil.copy
        copy(folder / name, tmp_path / name)
    life = nursery.live(
        "run", "experiment.toml", "--out", "run", cwd=tmp_path, at=("half:.round-000005.checkpoint.tmp", 1)
    )
    assert life.killed
    run = tmp_path / "run"
    assert kept(run) == ["round-000003.checkpoint", "round-000004.checkpoint"]
    return run


def kept(run):
    return sorted(path.name for path in (run / "checkpoints").glob("round-*"))


def truncate(path):
    path.write_bytes(path.read_bytes()[:-100])


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def of_another_run(path):
    shutil.copy(checkpoint(path.parent.parent.parent / "whole", 7), path)


def of_a_newer_version(path):
    whole = pack(*read_checkpoint(path))
    whole.numbers["format"] = 2
    path.write_bytes(seal(whole))


DAMAGES = {
    truncate: "is damaged: its content does not match its digest",
    flip: "is damaged: its content does not match its digest",
    of_another_run: "it belongs to another run",
    of_a_newer_version: "the checkpoint has format 2, but this version reads format 1",
}


class TestCheckpointsThatCannotBeUsed:
    @pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
    def test_the_last_good_one_is_used(self, nursery, cut, damage):
        damage(checkpoint(cut, 4))
        life = nursery.live("resume", "run", cwd=cut.parent)
        assert (life.code, life.err) == (0, "")
        told = [line for line in life.out.splitlines() if "checkpoint 'round-000004.checkpoint' is not used: " in line]
        assert len(told) == 1
        assert told[0].endswith(DAMAGES[damage])
        log = (cut / "log.txt").read_text()
        assert told[0].removeprefix("tiny (accord): ") in log
        assert "resumed after round 3" in log
        assert "resumed after round 3" in life.out
        (cut / "checkpoints" / "round-000004.checkpoint.refused").unlink()  # it was set aside, not lost
        assert_same(cut, cut.parent / "whole")

    @pytest.mark.parametrize("damage", [truncate, of_a_newer_version], ids=lambda damage: damage.__name__)
    def test_without_a_good_one_it_begins_again(self, nursery, cut, damage):
        for number in (3, 4):
            damage(checkpoint(cut, number))
        # Killed once more on the way: what was refused must not stand in the way of new checkpoints.
        life = nursery.live("resume", "run", cwd=cut.parent, at=("half:.round-000003.checkpoint.tmp", 1))
        assert life.killed
        assert "no checkpoint: starts from round 1" in (cut / "log.txt").read_text()
        assert "no checkpoint: starts from round 1" in life.out
        refused = ["round-000003.checkpoint.refused", "round-000004.checkpoint.refused"]
        assert kept(cut) == ["round-000001.checkpoint", "round-000002.checkpoint", *refused]
        assert nursery.live("resume", "run", cwd=cut.parent).code == 0
        assert "resumed after round 2" in (cut / "log.txt").read_text()
        for name in refused:
            (cut / "checkpoints" / name).unlink()
        assert_same(cut, cut.parent / "whole")

    def test_figures_that_are_missing(self, nursery, cut):
        """A checkpoint whose rounds metrics.jsonl does not tell of would make another run than the whole one."""
        path = cut / "metrics.jsonl"
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(line for line in lines if json.loads(line)["round"] < 4))
        life = nursery.live("resume", "run", cwd=cut.parent)
        assert "'round-000004.checkpoint' is not used: metrics.jsonl has no line for round 4" in life.out
        (cut / "checkpoints" / "round-000004.checkpoint.refused").unlink()
        assert_same(cut, cut.parent / "whole")

    def test_figures_that_are_broken(self, nursery, cut):
        path = cut / "metrics.jsonl"
        text = path.read_text().splitlines(keepends=True)
        path.write_text("".join(["{broken\n", *text[1:]]))
        life = nursery.live("resume", "run", cwd=cut.parent)
        assert life.code == 3
        assert life.err == "error: line 1 of 'run/metrics.jsonl' is damaged\n"
        path.write_text("".join(text))
        assert nursery.live("resume", "run", cwd=cut.parent).code == 0
        assert_same(cut, cut.parent / "whole")


class TestWhatWasChangedMeanwhile:
    def test_the_method(self, nursery, cut):
        config = cut / "config.toml"
        config.write_text(config.read_text().replace("steps = 2", "steps = 3"))
        life = nursery.live("resume", "run", cwd=cut.parent)
        assert life.code == 2
        assert life.err == (
            "error: 'run/config.toml' has changed since the run started, and only [run] and [stop] may change; "
            "run it as a new experiment\n"
        )
        assert kept(cut) == ["round-000003.checkpoint", "round-000004.checkpoint"]

    def test_how_it_is_run(self, nursery, cut):
        config = cut / "config.toml"
        config.write_text(config.read_text().replace("checkpoint_every = 1", "checkpoint_every = 0"))
        assert nursery.live("resume", "run", cwd=cut.parent).code == 0
        assert kept(cut) == ["round-000004.checkpoint", "round-000007.checkpoint"]

    def test_the_data(self, nursery, cut):
        path = cut / "federation.json"
        told = json.loads(path.read_text())
        told["sites"]["site-1"]["train"] += 1  # as if a row had been deleted since
        path.write_text(json.dumps(told))
        life = nursery.live("resume", "run", cwd=cut.parent)
        assert life.code == 2
        assert "the data of site 'site-1' have changed since the run started" in life.err

    def test_the_network(self, nursery, cut):
        """As when the code of a user's own model has become another one."""
        state, memories = read_checkpoint(checkpoint(cut, 4))
        state.tensors["model"] = state.tensors["model"][:-1].clone()
        checkpoint(cut, 4).write_bytes(seal(pack(state, memories)))
        life = nursery.live("resume", "run", cwd=cut.parent)
        assert life.code == 3
        assert "was its code changed since the run started?" in life.err

    def test_samples_that_were_in_memory_only(self, nursery, cut):
        run = json.loads((cut / "run.json").read_text())
        assert run["in_memory"] is False
        (cut / "run.json").write_text(json.dumps(run | {"in_memory": True}))
        life = nursery.live("resume", "run", cwd=cut.parent)
        assert life.code == 3
        assert life.err == "error: 'run' cannot be resumed: its samples were only in memory\n"


class TestAPowerCut:
    def test_a_checkpoint_is_never_newer_than_the_figures_of_its_round(self, tmp_path, monkeypatch):
        """What is not synced may be lost in any order, so the order of syncs is what counts."""
        synced, fsync = [], os.fsync

        def watched(fd):
            synced.append(Path(os.readlink(f"/proc/self/fd/{fd}")).relative_to(tmp_path).as_posix())
            fsync(fd)

        folder = RunFolder(tmp_path / "run")
        folder.append_metrics([{"round": 1}])
        monkeypatch.setattr("os.fsync", watched)
        folder.write_checkpoint(Message(numbers={"round": 1}), {})
        folder.close()
        checkpoints = "run/checkpoints"
        assert synced == ["run/metrics.jsonl", "run", f"{checkpoints}/.round-000001.checkpoint.tmp", checkpoints]


class TestTheEnd:
    def test_a_finished_run_has_nothing_to_do(self, nursery, cut):
        whole = cut.parent / "whole"
        before = {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()}
        life = nursery.live("resume", "whole", cwd=cut.parent)
        assert (life.code, life.out) == (0, "the run in whole is finished: nothing to do\n")
        assert {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()} == before

    @pytest.mark.parametrize("name", mostly_slow(FEDERATIONS, "accord"))
    def test_a_run_cut_before_its_summary(self, nursery, whole, tmp_path, name):
        run = shutil.copytree(whole(name) / "whole", tmp_path / "run")
        for file in ("summary.json", "report.html", "model/model.json"):
            (run / file).unlink()
        life = nursery.live("resume", "run", cwd=tmp_path)
        assert_fine(life)
        assert_same(run, whole(name) / "whole")
        assert (run / "report.html").exists()

    def test_a_run_cut_before_its_report(self, nursery, cut):
        (cut.parent / "whole" / "report.html").unlink()
        life = nursery.live("resume", "whole", cwd=cut.parent)
        assert life.code == 0
        assert life.out.splitlines()[-1] == "but its report was missing: whole/report.html"
        assert (cut.parent / "whole" / "report.html").stat().st_size > 10_000


class TestTheBeginning:
    def test_a_run_cut_before_it_wrote_what_it_is(self, nursery, whole, tmp_path):
        path = whole("accord") / "experiment.toml"
        assert nursery.live("run", path, "--out", "run", cwd=tmp_path, at=("half:.config.toml.tmp", 1)).killed
        life = nursery.live("resume", "run", cwd=tmp_path)
        assert life.code == 3
        assert life.err == (
            "error: 'run' cannot be resumed: it has no config.toml; if it was interrupted at its start, run it again\n"
        )

    def test_a_run_cut_before_its_first_round(self, nursery, whole, tmp_path):
        path = whole("accord") / "experiment.toml"
        assert nursery.live("run", path, "--out", "run", cwd=tmp_path, at=("half:.federation.json.tmp", 1)).killed
        life = nursery.live("resume", "run", cwd=tmp_path)
        assert_fine(life)
        assert_same(tmp_path / "run", whole("accord") / "whole")


class TestTwoProcesses:
    def test_the_second_is_refused(self, nursery, cut):
        folder = RunFolder(cut, reopen=True)
        try:
            life = nursery.live("resume", "run", cwd=cut.parent)
        finally:
            folder.close()
        assert life.code == 3
        assert life.err == f"error: the run in 'run' is being written by another process (process {os.getpid()})\n"
        assert nursery.live("resume", "run", cwd=cut.parent).code == 0


class TestAFullDisk:
    def test_a_file_that_may_not_grow(self, nursery, whole, tmp_path):
        folder = whole("accord")
        shutil.copy(folder / "experiment.toml", tmp_path)
        limit = (folder / "whole" / "metrics.jsonl").stat().st_size // 2
        life = nursery.live("run", "experiment.toml", "--out", "run", cwd=tmp_path, limit=limit)
        assert life.code == 3
        assert life.err == (
            "error: 'run/metrics.jsonl' cannot be written: File too large; "
            "fix this, then continue with: fedaccord resume run --trust mortal\n"
        )
        good = kept(tmp_path / "run")
        assert len(good) == 2
        again = nursery.live("resume", "run", cwd=tmp_path, limit=limit)
        assert again.code == 3
        assert kept(tmp_path / "run") == good
        assert nursery.live("resume", "run", cwd=tmp_path).code == 0
        assert_same(tmp_path / "run", folder / "whole")

    @pytest.mark.mount
    def test_a_disk_without_space(self, nursery, whole, disk):
        folder = whole("accord")
        (disk / "filler").write_bytes(bytes(os.statvfs(disk).f_bavail * 4096 - 60_000))
        life = nursery.live("run", folder / "experiment.toml", "--out", "run", cwd=disk)
        assert life.code == 3
        assert life.err.startswith("error: 'run/")
        assert "cannot be written: No space left on device; fix this, then continue with: fedaccord " in life.err
        good = kept(disk / "run")
        assert good
        for name in good:
            read_checkpoint(disk / "run" / "checkpoints" / name)
        (disk / "filler").unlink()
        assert nursery.live("resume", "run", cwd=disk).code == 0
        assert_same(disk / "run", folder / "whole")

    @pytest.mark.mount
    def test_a_folder_that_is_read_only(self, nursery, whole, disk):
        folder = whole("accord")
        assert nursery.live(
            "run", folder / "experiment.toml", "--out", "run", cwd=disk, at=("half:.round-000005.checkpoint.tmp", 1)
        ).killed
        before = {path: path.read_bytes() for path in (disk / "run").rglob("*") if path.is_file()}
        remount(disk, "ro")
        life = nursery.live("resume", "run", cwd=disk)
        assert life.code == 3
        assert life.err == "error: the run folder 'run' cannot be written: Read-only file system\n"
        life = nursery.live("run", folder / "experiment.toml", "--out", "other", cwd=disk)
        assert life.code == 3
        assert life.err == "error: the run folder 'other' cannot be created: Read-only file system\n"
        remount(disk, "rw")
        assert {path: path.read_bytes() for path in (disk / "run").rglob("*") if path.is_file()} == before
        assert nursery.live("resume", "run", cwd=disk).code == 0
        assert_same(disk / "run", folder / "whole")


@pytest.fixture
def disk(tmp_path):
    """A disk of 16 MB; only root may make one."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(tmp_path)], check=True)
    yield tmp_path
    subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


def remount(disk, how):
    subprocess.run(["mount", "-o", f"remount,{how}", str(disk)], check=True)


def test_the_account_sees_a_single_bit(whole, tmp_path):
    """What the other tests rest on."""
    run = shutil.copytree(whole("accord") / "whole", tmp_path / "run")
    assert_same(run, whole("accord") / "whole")
    path = checkpoint(run, 7)
    state, memories = read_checkpoint(path)
    value = memories["site-2"].tensors["prior"]
    memories["site-2"].tensors["prior"] = torch.nextafter(value, torch.tensor(9.0))
    path.write_bytes(seal(pack(state, memories)))
    with pytest.raises(AssertionError, match="tensors differ"):
        assert_same(run, whole("accord") / "whole")
