"""The federation goes on when sites and workers do not, and nothing is left behind when it ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import torch
from toy_host import SITES, everywhere, toy_engine

from fedaccord.engines import crew
from fedaccord.engines.embedded import EmbeddedEngine
from fedaccord.engines.engine import HostSpec
from fedaccord.errors import EngineError, MessageError
from fedaccord.messages.message import Failure, Message


def failures(replies):
    found = {site: reply.reason for site, reply in replies.items() if isinstance(reply, Failure)}
    return {site: re.sub(r" \(toy_host\.py:\d+\)$", "", reason) for site, reason in found.items()}


def wait_until(condition, seconds=20.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_failing_site_is_reported_with_everything_and_keeps_its_memory(pool):
    pool.restore({site: Message(numbers={"rounds": 1}) for site in SITES})
    replies = pool.ask("fail_at", everywhere(words={"bad": "site-5"}))
    failure = replies["site-5"]
    assert isinstance(failure, Failure)
    assert (failure.site, failure.task) == ("site-5", "fail_at")
    assert re.fullmatch(r"ValueError: no rows at site-5 \(toy_host\.py:\d+\)", failure.reason)
    assert "in fail_at" in failure.trace
    assert list(failures(replies)) == ["site-5"]
    assert [memory.numbers["rounds"] for memory in pool.memories().values()] == [99] * 5 + [1] + [99] * 2


def test_without_workers_the_exception_surfaces_and_nothing_is_kept(here):
    here.restore({site: Message(numbers={"rounds": 1}) for site in SITES})
    with pytest.raises(ValueError, match=r"^no rows at site-5$"):
        here.ask("fail_at", everywhere(words={"bad": "site-5"}))
    assert {memory.numbers["rounds"] for memory in here.memories().values()} == {1}
    assert not failures(here.ask("fail_at", everywhere(words={"bad": "nobody"})))


def test_a_reply_that_is_no_message_fails_its_site(pool, here):
    reason = failures(pool.ask("no_message", everywhere()))["site-0"]
    assert reason.startswith("MessageError: a message contains more than")
    with pytest.raises(MessageError):
        here.ask("no_message", everywhere())


def test_a_brief_that_is_no_message_is_the_callers_mistake_and_spoils_nothing(either):
    with pytest.raises(MessageError):
        either.ask("echo", everywhere() | {"site-6": Message(numbers={"n": torch.tensor(1)})})
    assert not failures(either.ask("echo", everywhere()))


def test_an_unknown_site_is_refused_with_a_hint(either):
    with pytest.raises(ValueError, match="there is no site 'site-9' for this brief; did you mean 'site-"):
        either.ask("echo", {"site-9": Message()})
    with pytest.raises(ValueError, match="there is no site 'x' for this memory; known: site-0, site-1"):
        either.restore({"x": Message()})


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="0 or more, not -1"):
        EmbeddedEngine(HostSpec("toy_host:build"), SITES, -1)
    with pytest.raises(ValueError, match="two sites have the same name"):
        EmbeddedEngine(HostSpec("toy_host:build"), ["a", "a"], 0)
    typo = EmbeddedEngine(HostSpec("toy_host.build"), SITES, 0)
    with typo, pytest.raises(ValueError, match=r"'package.module:function', not 'toy_host.build'"):
        typo.start()


@pytest.mark.parametrize(
    ("task", "reason"),
    [
        ("killed_at", "its worker process was killed by signal 9"),
        pytest.param("exit_at", "its worker process ended with exit code 7", marks=pytest.mark.slow),
        ("sys_exit_at", "SystemExit: 7"),
    ],
)
def test_a_dying_worker_costs_one_site_only(pool, task, reason):
    replies = pool.ask(task, everywhere(words={"bad": "site-2"}))
    assert failures(replies) == {"site-2": reason}
    assert replies["site-2"].task == task
    assert len(replies) == 8
    assert not failures(pool.ask(task, everywhere(words={"bad": "nobody"})))


def test_writing_to_site_data_is_stopped_and_explained(pool):
    replies = pool.ask("write_data", {"site-0": Message()})
    assert failures(replies) == {"site-0": "its worker process was killed by signal 11 (did it write to site data?)"}
    assert pool.tensors["site-0/x"].abs().sum() > 0


def test_a_worker_killed_between_two_asks_costs_nothing(pool):
    pool.start()
    os.kill(pool._crew[0].process.pid, signal.SIGKILL)
    assert not failures(pool.ask("echo", everywhere()))


def test_a_deadline_fails_the_slow_site_only_and_nothing_lags_behind(pool):
    pool.start()
    pids = {worker.process.pid for worker in pool._crew}
    began = time.monotonic()
    replies = pool.ask("slow_at", everywhere(numbers={"seconds": 60}, words={"bad": "site-0"}), deadline=1.0)
    assert time.monotonic() - began < 10
    assert failures(replies) == {"site-0": "no reply within 1 s"}
    assert list(replies) == SITES
    survivors = pids & {worker.process.pid for worker in pool._crew}
    assert len(survivors) == 1
    assert not any(is_running(pid) for pid in pids - survivors)
    assert not failures(pool.ask("echo", everywhere(), deadline=20))


def test_a_deadline_without_workers_fails_the_slow_site_and_all_after_it(here):
    here.restore({})
    began = time.monotonic()
    replies = here.ask("slow_at", everywhere(numbers={"seconds": 1.0}, words={"bad": "site-6"}), deadline=0.9)
    assert time.monotonic() - began < 1.5
    assert failures(replies) == dict.fromkeys(["site-6", "site-7"], "no reply within 0.9 s")


def test_a_host_that_cannot_be_built_is_an_engine_error_with_the_childs_reason():
    with toy_engine(1, build="raise") as broken:
        with pytest.raises(EngineError, match="could not build its host: KeyError: 'no such column'") as caught:
            broken.ask("echo", everywhere())
        assert "toy_host.py" in caught.value.__notes__[0]
        assert broken._crew == []
    with toy_engine(0, build="raise") as broken, pytest.raises(KeyError, match="no such column"):
        broken.start()


def test_workers_that_die_while_starting_are_given_up_after_three(monkeypatch):
    monkeypatch.setattr(crew, "_PROGRAM", "raise SystemExit(3)")
    with toy_engine(1) as broken:
        with pytest.raises(EngineError, match="ended with exit code 3 before it was ready, 3 times in a row"):
            broken.start()
        assert broken._crew == []


# Processes and memory


def resident(pid):
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
def test_two_hundred_asks_of_a_hundred_sites_take_no_more_memory_than_twenty(crowd):
    crowd.restore({site: Message({"own": torch.zeros(1000)}) for site in crowd.sites()})
    briefs = {site: Message({"model": torch.randn(2500)}) for site in crowd.sites()}
    crowd.start()
    pids = [os.getpid(), *(worker.process.pid for worker in crowd._crew)]

    def used():
        blocks = [crowd._briefs.size, *(block.size for worker in crowd._crew for block in worker.replies)]
        return [resident(pid) for pid in pids], blocks, len(os.listdir("/proc/self/fd"))

    for i in range(200):
        if i == 20:
            before, blocks, descriptors = used()
        crowd.ask("echo", briefs)
    after, blocks_still, descriptors_still = used()
    assert blocks_still == blocks
    assert descriptors_still <= descriptors  # fewer, if what an earlier test left behind was collected meanwhile
    # One ask's replies are 1.4 MB, all of them 280 MB.
    assert max(now - was for now, was in zip(after, before, strict=True)) < 6_000_000


def test_closing_ends_the_workers_gives_back_everything_and_may_be_repeated():
    before = len(os.listdir("/proc/self/fd"))
    short = toy_engine(1)
    short.start()
    pids = [worker.process.pid for worker in short._crew]
    assert all(map(is_running, pids))
    short.close()
    short.close()
    assert not any(map(is_running, pids))
    del short
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("workers", [0, 1])
def test_a_closed_engine_says_so(workers):
    closed = toy_engine(workers)
    closed.close()
    with pytest.raises(EngineError, match="the engine is closed"):
        closed.ask("echo", everywhere())


SCRIPT = """
    import signal

    from fedaccord.engines.embedded import EmbeddedEngine
    from fedaccord.engines.engine import HostSpec
    from fedaccord.messages.message import Message

    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what a shell began in the background
    engine = EmbeddedEngine(HostSpec("toy_host:build"), ["a", "b"], {workers})
    engine.start()
    print(*(worker.process.pid for worker in engine._crew), flush=True)
    engine.ask({task!r}, dict.fromkeys("ab", Message(words={{"file": {file!r}}})))
    print("done", flush=True)
"""


@pytest.fixture
def run_script(tmp_path):
    """Start a script that uses an engine; return it with its workers' pids, and leave none of them behind."""
    started, pids = [], []

    def run(task, workers):
        begun = tmp_path / "begun"
        begun.touch()
        script = textwrap.dedent(SCRIPT).format(task=task, workers=workers, file=str(begun))
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-W", "error", "-c", script]
        # Unbuffered: what a buffered readline takes beyond its line is lost to communicate().
        process = subprocess.Popen(command, stdout=-1, stderr=-1, bufsize=0, env=environment)
        started.append(process)
        pids.extend(map(int, process.stdout.readline().split()))
        assert len(pids) == workers
        if task == "hold":
            wait_until(lambda: sorted(map(int, begun.read_text().split())) == sorted(pids))
        return process, pids

    yield run
    for pid in filter(is_running, pids):  # first, because they hold the script's stderr open
        os.kill(pid, signal.SIGKILL)
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_ctrl_c_in_the_middle_of_an_ask_ends_script_and_workers(run_script):
    process, pids = run_script("hold", workers=2)
    for pid in pids:
        os.kill(pid, signal.SIGINT)  # a terminal sends it to everybody; the workers leave it to the engine
    time.sleep(0.1)
    assert all(map(is_running, pids))
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert time.monotonic() - began < 5
    assert process.returncode == -signal.SIGINT
    assert errors.count(b"Traceback") == 1
    assert b"KeyboardInterrupt" in errors
    assert not any(map(is_running, pids))


def test_workers_vanish_with_a_killed_script_even_in_the_middle_of_a_task(run_script):
    process, pids = run_script("hold", workers=1)
    assert all(map(is_running, pids))
    process.kill()
    wait_until(lambda: not any(map(is_running, pids)), seconds=10)


@pytest.mark.slow
def test_an_engine_nobody_closed_ends_with_its_script_and_prints_nothing_of_its_own(run_script):
    process, pids = run_script("talk", workers=1)
    output, errors = process.communicate(timeout=20)
    assert process.returncode == 0
    assert output == b"done\n"
    assert errors.splitlines() == [b"a word on stdout"] * 2
    assert not any(map(is_running, pids))
