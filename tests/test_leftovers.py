"""Sessions of pytest that are interrupted in every way, with a test in them that starts processes which detach."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from leftovers import marked

HERE = Path(__file__).parent
STAND_IN = """
import os, pathlib, subprocess, sys, time

DAEMON = '''
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # worse than any of ours
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(120)
'''

def test_that_starts_a_daemon():
    subprocess.run([sys.executable, "-S", "-c", DAEMON], check=True)
    if "PYTEST_XDIST_WORKER" in os.environ and os.fork() == 0:
        time.sleep(120)
        os._exit(0)
    pathlib.Path("begun").touch()
    time.sleep(120)
"""
DEPLOYMENT = """
import pathlib, time
from fleet import TWO_SITES, Fleet, within

def test_that_deploys():
    folder = pathlib.Path("deployment").resolve()
    fleet = Fleet(folder, TWO_SITES)
    fleet.start("north", "south")
    within(30, lambda: len(fleet.pids("supernode")) >= 2, "two nodes run")
    pathlib.Path("begun").touch()
    time.sleep(120)
"""
MAKEFILE = f"all:\n\t{sys.executable} -m pytest -q -p no:cacheprovider -n 2 --dist loadfile\n"
PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]


def hear_all_signals():
    """Undo what nohup, or a shell that runs the suite in the background, makes children ignore."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


class Session:
    """A session of pytest over one test, started in a folder of its own as from a terminal."""

    def __init__(self, folder, test, words):
        (folder / "conftest.py").write_text("from leftovers import pytest_configure, pytest_unconfigure\n")
        (folder / "test_it.py").write_text(textwrap.dedent(test))
        (folder / "Makefile").write_text(MAKEFILE)
        self.mark = f"{folder.name}-{os.getpid()}-{time.time_ns()}"
        path = os.pathsep.join(map(str, [HERE, HERE / "engines" / "flower", *map(os.path.abspath, sys.path)]))
        usual = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "MAKE"))}
        self.out = folder / "out"
        with self.out.open("wb") as out:
            self.process = subprocess.Popen(
                words,
                cwd=folder,
                env=usual | {"PYTHONPATH": path, "FEDACCORD_SESSION": self.mark},
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=hear_all_signals,
            )
        self.until((folder / "begun").exists, 60)

    def until(self, happens, seconds):
        end = time.monotonic() + seconds
        while not happens():
            assert time.monotonic() < end, f"{self.left()}\n{self.out.read_text()}"
            time.sleep(0.05)

    def left(self):
        """Return what is left of the session, its keeper included; a line for each process."""
        found = []
        for pid in marked(self.mark):
            try:
                found.append(f"{pid} {Path(f'/proc/{pid}/cmdline').read_bytes()}")
            except OSError:
                continue
        return found

    def interrupt(self, *numbers, group=False, between=0.3):
        for number in numbers:
            (os.killpg if group else os.kill)(self.process.pid, number)
            time.sleep(between)


@pytest.fixture
def session(tmp_path):
    begun = []

    def start(test, *words):
        begun.append(Session(tmp_path, test, words))
        return begun[0]

    yield start
    for one in begun:
        for pid in marked(one.mark):
            os.kill(pid, signal.SIGKILL)
        one.process.wait()


def ends_without_a_trace(session):
    assert len(session.left()) >= 3  # the session, its keeper and the daemon

    def gone():
        return session.process.poll() is not None and not session.left()

    return lambda: session.until(gone, 20)


def test_ctrl_c_of_a_session_with_workers(session):
    begun = session(STAND_IN, *PYTEST, "-n", "2")
    end = ends_without_a_trace(begun)
    begun.interrupt(signal.SIGINT, group=True)
    end()


@pytest.mark.slow
@pytest.mark.parametrize("workers", [[], ["-n", "2"]], ids=["alone", "with workers"])
@pytest.mark.parametrize(
    "numbers",
    [[signal.SIGINT], [signal.SIGINT] * 3, [signal.SIGTERM], [signal.SIGHUP], [signal.SIGKILL]],
    ids=["Ctrl-C", "Ctrl-C thrice", "SIGTERM", "SIGHUP", "SIGKILL"],
)
def test_any_signal_to_pytest(session, numbers, workers):
    begun = session(STAND_IN, *PYTEST, *workers)
    end = ends_without_a_trace(begun)
    begun.interrupt(*numbers)
    end()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("numbers", "group"),
    [
        ([signal.SIGINT], True),
        ([signal.SIGINT] * 2, True),
        ([signal.SIGHUP], True),
        ([signal.SIGTERM], False),
        ([signal.SIGKILL], False),
    ],
    ids=["Ctrl-C", "Ctrl-C twice", "hang-up", "SIGTERM", "SIGKILL"],
)
def test_any_signal_to_make(session, numbers, group):
    begun = session(STAND_IN, "make")
    end = ends_without_a_trace(begun)
    begun.interrupt(*numbers, group=group)
    end()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "SIGKILL"])
def test_a_deployment_in_a_session_that_is_interrupted(session, number):
    begun = session(DEPLOYMENT, *PYTEST, "-n", "1")
    end = ends_without_a_trace(begun)
    assert any("superlink" in line for line in begun.left())
    assert sum("supernode" in line for line in begun.left()) >= 2
    begun.interrupt(number)
    end()
