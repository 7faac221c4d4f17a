"""Workers that are begun before their engine is there."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys

import pytest
from toy_host import everywhere, toy_engine

from command_line import SMALL, write
from fedaccord.engines import crew
from fedaccord.engines.embedded import EmbeddedEngine
from fedaccord.engines.engine import HostSpec
from fedaccord.messages.message import Message


def pids():
    return [begun.process.pid for begun in crew._ahead]


def is_there(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_an_engine_takes_over_what_was_begun_and_the_rest_is_ended():
    with crew.started_ahead(3, "json"):
        begun = pids()
        with toy_engine(2) as engine:
            engine.start()
            taken = {worker.process.pid for worker in engine._crew}
            assert taken < set(begun)
            assert pids() == []
            assert [pid for pid in begun if is_there(pid)] == [pid for pid in begun if pid in taken]  # no idle one
            assert len(engine.ask("echo", everywhere(words={"a": "b"}))) == 8
    assert not any(map(is_there, begun))


def test_what_no_engine_takes_over_is_ended():
    with crew.started_ahead(1):
        (begun,) = pids()
    assert not is_there(begun)


def test_one_that_died_before_it_was_needed_is_replaced():
    with crew.started_ahead(1):
        (begun,) = pids()
        os.kill(begun, signal.SIGKILL)
        crew._ahead[0].process.wait()
        with toy_engine(1) as engine:
            assert len(engine.ask("echo", everywhere())) == 8
            assert engine._crew[0].process.pid != begun


def test_it_looks_for_modules_where_the_engine_does_by_then(tmp_path, monkeypatch):
    """The folder of an experiment, with a model of one's own, is known later than that workers are needed."""
    (tmp_path / "late_host.py").write_text(
        "from fedaccord.messages.message import Message\n"
        "class Late:\n"
        "    def handle(self, task, site, brief, memory):\n"
        "        return Message(words={'from': __file__}), memory\n"
        "def build(spec, tensors):\n"
        "    return Late()\n"
    )
    with crew.started_ahead(1):
        monkeypatch.syspath_prepend(tmp_path)
        with EmbeddedEngine(HostSpec("late_host:build"), ["a"], 1) as engine:
            assert engine.ask("echo", {"a": Message()})["a"].words["from"] == str(tmp_path / "late_host.py")


def test_what_is_imported_is_never_searched_for_garbage():
    before = gc.get_freeze_count()
    with crew.importing():
        assert not gc.isenabled()
    assert gc.isenabled()
    assert gc.get_freeze_count() > before
    gc.unfreeze()


@pytest.mark.parametrize(
    ("arguments", "begun"),
    [(["--workers", "2"], 2), pytest.param(["--workers", "0"], 0, marks=pytest.mark.slow)],
    ids=str,
)
def test_a_run_begins_its_workers_before_it_imports_torch(tmp_path, arguments, begun):
    """Seen from inside: when torch begins to be imported, the processes are there."""
    program = (
        "import sys\n"
        "class Look:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'torch':\n"
        "            from fedaccord.engines import crew\n"
        "            print('begun', len(crew._ahead), file=sys.stderr)\n"
        "            sys.meta_path.remove(self)\n"
        "sys.meta_path.insert(0, Look())\n"
        "from fedaccord.cli import main\n"
        "main()\n"
    )
    experiment = write(tmp_path, SMALL)
    words = [sys.executable, "-c", program, "run", experiment, "--set", "method.rounds=1", *arguments]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert f"begun {begun}" in done.stderr
