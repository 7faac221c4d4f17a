"""`python -m papers` as a user types it, with a small table of the bundled digits."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from command_line import register
from fedaccord.cli import app as fedaccord
from fedaccord.errors import DataError, RunFolderError, UserError
from fedaccord.runs.folder import FolderLock
from pace import mostly_slow
from papers.harness import registry
from papers.harness.cells import FinishedCells
from papers.harness.command import app
from papers.harness.reproduce import reproduce_table
from papers.harness.runner import run_cells
from papers.harness.worker import run_cell

HERE = str(Path(__file__).parent)
CLONE = Path(__file__).parents[2]


@pytest.fixture(autouse=True, scope="module")
def small():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(HERE)
        patch.setitem(registry.TABLES, "small", registry.TableEntry("small", "digits", "small_table"))
        yield


def run(tmp_path, size="quick", workers=1, **more):
    return reproduce_table("small", size, tmp_path, workers, Console(quiet=True), **more)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished table: its folder, page and results."""
    folder = tmp_path_factory.mktemp("finished")
    return folder, *run(folder)


def test_the_page_holds_the_figures_the_command_and_no_unescaped_text(finished):
    folder, page, results = finished
    assert (len(results), results.failed) == (2, {})
    text, html = (folder / "table.md").read_text(), page.read_text()
    assert "python -m papers small --quick" in text
    assert "2 of 2 cells are finished" in text
    assert "FedAvg \\| local" in text  # a bar inside a cell does not end it
    assert "A small &lt;table&gt;" in html
    assert "<p>Made by <code>a &lt; b</code>.</p>" in html
    assert "https://" not in html.split("<script>")[0]


def test_finished_cells_are_kept_and_only_missing_ones_run(finished, tmp_path):
    folder = shutil.copytree(finished[0], tmp_path / "copy")
    files = {file: file.stat().st_mtime_ns for file in (folder / "cells").iterdir()}
    ran = []
    cells = registry.find_table("small").cells("default")
    run_cells(cells, FinishedCells(folder), 2, lambda cell, now: ran.append((cell.key, now)))
    assert sorted(ran) == [
        ("fedavg/seed-0", False),
        ("fedavg/seed-1", True),
        ("local/seed-0", False),
        ("local/seed-1", True),
    ]
    assert {file: file.stat().st_mtime_ns for file in files} == files


def test_the_figures_of_a_cell_are_those_of_a_run(finished, tmp_path):
    _, _, results = finished
    config = tmp_path / "same.toml"
    config.write_text(
        '[data]\ndataset = "digits"\nsamples = 60\npartition = {kind = "iid", sites = 2}\n[model]\nname = "linear"\n'
        '[method]\nname = "fedavg"\nrounds = 2\nbatch = 16\n'
    )
    asked = CliRunner().invoke(fedaccord, ["run", str(config), "--out", str(tmp_path / "run"), "--workers", "0"])
    assert asked.exit_code == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert results.values(("fedavg",), "sites.mean.accuracy") == {0: summary["final"]["sites"]["mean"]["accuracy"]}


def test_a_cell_that_fails_does_not_end_the_others(tmp_path, monkeypatch):
    table = registry.find_table("small")
    cells = table.cells("quick")
    cells[0].experiment["model"]["name"] = "nowhere:at_all"
    results = run_cells(cells, FinishedCells(tmp_path), 1)
    assert len(results) == 1
    assert "nowhere" in results.failed["fedavg/seed-0"]


@pytest.mark.slow
def test_a_process_that_dies_fails_its_cell_only(tmp_path, monkeypatch):
    (tmp_path / "deadly.py").write_text("import os\n\n\ndef model(*args, **settings):\n    os._exit(7)\n")
    register(tmp_path, "deadly", models={"deadly": "deadly:model"})
    monkeypatch.syspath_prepend(str(tmp_path))
    cells = registry.find_table("small").cells("quick")
    cells[0].experiment["model"]["name"] = "deadly"
    results = run_cells(cells, FinishedCells(tmp_path), 1)
    assert results.failed == {"fedavg/seed-0": "its process ended with exit code 7"}
    assert len(results) == 1


class TestDevice:
    @pytest.fixture
    def handed(self, monkeypatch):
        """The lines that processes would be handed, by processes that answer each with the same result."""
        handed = []

        class Process:
            stdin = stdout = None

            def __init__(self, *_, **__):
                self.stdin, self.stdout = self, self

            def write(self, text):
                handed.extend(json.loads(line) for line in text.splitlines() if line)

            def readline(self):
                return json.dumps({"result": {"final": {}, "best": {}, "seconds": 1.0}})

            def flush(self): ...
            def close(self): ...
            def kill(self): ...
            def poll(self): ...
            def wait(self): ...

        monkeypatch.setattr("subprocess.Popen", Process)
        monkeypatch.setattr("torch.cuda.is_available", lambda: True)
        return handed

    @pytest.mark.parametrize("asked", [(), ("--device", "cpu"), ("--device", "cuda")])
    def test_it_reaches_the_processes_but_is_no_part_of_a_cell(self, tmp_path, handed, asked):
        command = ["small", "--quick", "--out", str(tmp_path)]
        assert CliRunner().invoke(app, [*command, *asked]).exit_code == 0
        device = asked[-1] if asked else "cpu"
        assert [line["device"] for line in handed] == [device] * 2
        assert not any("run" in line["table"] for line in handed)
        how = f"python -m papers small --quick{' --device cuda' if device == 'cuda' else ''}`"
        assert how in (tmp_path / "table.md").read_text()
        assert CliRunner().invoke(app, command).exit_code == 0
        assert len(handed) == 2  # all were kept, whatever the device

    def test_a_cell_is_carried_out_on_it(self, monkeypatch):
        opened = []

        def opening(experiment, data):
            opened.append((experiment.run.device, experiment.run.workers))
            raise DataError("enough was seen")

        monkeypatch.setattr("papers.harness.worker.open_server", opening)
        told = registry.find_table("small").cells("quick")[0].table
        for device in ({}, {"device": "cuda"}):
            with pytest.raises(DataError, match="enough was seen"):
                run_cell(told, **device)
        assert opened == [("cpu", 0), ("cuda", 0)]

    def test_a_gpu_that_is_not_there_is_told_before_anything_runs(self, tmp_path, monkeypatch):
        monkeypatch.setattr("torch.cuda.is_available", lambda: False)
        with pytest.raises(UserError) as caught:
            run(tmp_path / "new", device="cuda")
        assert str(caught.value) == "--device is 'cuda', but torch finds no GPU here; use --device cpu"
        assert not (tmp_path / "new").exists()

    def test_another_word_is_refused(self):
        asked = CliRunner().invoke(app, ["small", "--device", "gpu"])
        assert asked.exit_code == 2


def test_mistakes_are_told_before_anything_runs(tmp_path, monkeypatch):
    ask = CliRunner().invoke
    assert "did you mean 'private-labels'" in str(ask(app, ["private-label"]).exception)
    assert "two sizes" in str(ask(app, ["small", "--quick", "--full"]).exception)
    monkeypatch.delenv("FEDACCORD_DATA", raising=False)
    missing = ask(app, ["private-labels", "--out", str(tmp_path / "new")]).exception
    assert isinstance(missing, DataError)
    assert "the folder named by --data or FEDACCORD_DATA, which is not set" in str(missing)
    assert not (tmp_path / "new").exists()


def test_a_data_folder_without_the_data_is_told_however_it_was_given(tmp_path, monkeypatch):
    for option, place in (["--data", str(tmp_path / "nowhere")], "nowhere"), ([], "elsewhere"):
        monkeypatch.setenv("FEDACCORD_DATA", str(tmp_path / "elsewhere"))
        missing = CliRunner().invoke(app, ["pfedmo", "--out", str(tmp_path / "new"), *option]).exception
        assert isinstance(missing, DataError)
        assert f", by --data or FEDACCORD_DATA: the file '{tmp_path / place}/" in str(missing)


def test_tables_are_listed():
    assert "private-labels" in CliRunner().invoke(app, []).output


class TestInstalledCommand:
    """The package has no tables; its commands say where they are."""

    def test_outside_a_clone(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        asked = CliRunner().invoke(fedaccord, ["reproduce", "fedmt", "--quick"])
        assert asked.exit_code == 2
        assert "clone of FedAccord's repository" in asked.output
        assert "make reproduce TABLE=fedmt" in asked.output
        listed = CliRunner().invoke(fedaccord, ["tables"])
        assert listed.exit_code == 0
        assert "clone" in listed.output

    @pytest.mark.parametrize("folder", [".", "docs"])
    def test_inside_a_clone(self, monkeypatch, folder):
        monkeypatch.chdir(CLONE / folder)
        asked = CliRunner().invoke(fedaccord, ["reproduce", "fedmt", "--quick", "--data", "my data"])
        assert asked.exit_code == 2
        assert f"In {CLONE}, run: python -m papers fedmt --quick --data 'my data'\n" in asked.output
        assert "run: python -m papers\n" in CliRunner().invoke(fedaccord, ["tables"]).output

    def test_without_a_table(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        asked = CliRunner().invoke(fedaccord, ["reproduce"])
        assert asked.exit_code == 2
        assert "TABLE=TABLE" in asked.output


def test_two_processes_do_not_write_one_folder(tmp_path):
    lock = FolderLock(tmp_path)
    with pytest.raises(RunFolderError, match="another process"):
        run(tmp_path)
    lock.release()


@pytest.mark.parametrize("number", mostly_slow([signal.SIGINT, signal.SIGTERM], signal.SIGTERM))
def test_a_stopped_table_keeps_its_cells_writes_its_page_and_leaves_no_process(tmp_path, number):
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); from papers.harness import registry as r; "
        "import small_table as t; made = t.cells('quick'); made[1].experiment['method']['rounds'] = 100000; "
        "t.cells = lambda size: made; "
        "r.TABLES['small'] = r.TableEntry('small', '', 'small_table'); from papers.harness import command as c; "
        "sys.argv = ['papers', 'small', '--quick', '--workers', '1', '--out', sys.argv[2]]; c.main()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, HERE, str(tmp_path)],
        cwd=CLONE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob("cells/*.json")) and time.monotonic() < deadline:
            time.sleep(0.1)
        os.kill(process.pid, number)
        _, err = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 128 + number
    assert "1 of 2 cells are kept" in err
    assert "1 of 2 cells are finished" in (tmp_path / "table.md").read_text()
    with pytest.raises(ProcessLookupError):  # nobody of its group is left
        os.killpg(process.pid, 0)
