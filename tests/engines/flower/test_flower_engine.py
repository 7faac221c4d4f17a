"""The engine on a grid that a test can script: who answers, when, how often and as whom."""

from __future__ import annotations

import json
import re
import time

import pytest
import torch
from fake_grid import SITES, FakeGrid
from toy_host import site_data

from fedaccord import __version__
from fedaccord.engines.embedded import EmbeddedEngine
from fedaccord.engines.engine import HostSpec
from fedaccord.engines.flower import engine as flower_engine
from fedaccord.engines.flower import nodes as flower_nodes
from fedaccord.engines.flower.engine import VERSION, FlowerEngine
from fedaccord.engines.flower.nodes import Roster
from fedaccord.errors import EngineError
from fedaccord.messages.message import Failure, Message, to_bytes

KEYS = {site: f"key of {site}".encode() for site in SITES}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(flower_nodes, "_LOOK", 0.0)
    monkeypatch.setattr(flower_nodes, "_POLL", 0.01)
    monkeypatch.setattr(flower_engine, "_POLL", 0.01)


@pytest.fixture
def grid(tmp_path):
    return FakeGrid(tmp_path)


def engine_on(grid, *, carries=False, keys=None, **options):
    roll = Roster(tuple(SITES), keys or {}, "d")
    return FlowerEngine(grid, roll, carries_memories=carries, **({"patience": 0.3} | options))


def briefs(run="run-1", sites=SITES, **words):
    start = {"w": torch.linspace(-1, 1, 20), "running": torch.zeros(20)}
    return {site: Message(dict(start), {"lr": 1e-5}, {"run": run, **words}) for site in sites}


def embedded():
    return EmbeddedEngine(HostSpec("toy_host:build", {}, site_data()), SITES, 0)


def same(one, other):
    """Equal to the last bit; the order of tensors is no matter."""
    ordered = [Message(dict(sorted(m.tensors.items())), m.numbers, m.words) for m in (one, other)]
    return to_bytes(ordered[0]) == to_bytes(ordered[1])


class TestParity:
    @pytest.mark.parametrize("carries", [True, False])
    def test_three_rounds_give_what_the_embedded_engine_gives(self, grid, carries):
        ours = engine_on(grid, carries=carries)
        with embedded() as theirs:
            for _ in range(3):  # the memory of one round is part of the next
                here, there = ours.ask("train", briefs()), theirs.ask("train", briefs())
                assert list(here) == list(there) == SITES
                assert all(same(here[site], there[site]) for site in SITES)
            assert here["site-1"].numbers["rounds"] == 3
            if carries:
                assert all(same(ours.memories()[site], theirs.memories()[site]) for site in SITES)

    def test_a_brief_for_nobody(self, grid):
        with pytest.raises(ValueError, match="there is no site 'site-9' for this brief; did you mean 'site-"):
            engine_on(grid).ask("echo", {"site-9": Message()})

    def test_a_site_that_is_not_asked_is_not_disturbed(self, grid):
        engine_on(grid).ask("echo", briefs(sites=["site-1"]))
        assert [site for site, kind in grid.asked if kind == "train.task"] == ["site-1"]


class TestNames:
    def test_a_node_that_comes_back_under_another_id_is_found_by_its_name(self, grid):
        ours = engine_on(grid)
        ours.ask("train", briefs())
        grid.leave("site-1")
        gone = ours.ask("train", briefs())
        assert gone["site-1"] == Failure("site-1", "train", "its node is not connected")
        assert gone["site-0"].numbers["rounds"] == 2
        grid.join("site-1", 77)
        assert ours.ask("train", briefs())["site-1"].numbers["rounds"] == 2  # and goes on from its own memory

    def test_a_name_without_its_key_is_not_believed(self, grid):
        told = []
        grid.leave("site-2")
        grid.join("site-2", 9, key=b"key of site-0")
        replies = engine_on(grid, keys=KEYS, note=told.append).ask("echo", briefs())
        assert replies["site-2"].reason == "its node is not connected"
        assert isinstance(replies["site-0"], Message)
        assert "a node claims to be 'site-2', but does not hold that site's key" in told

    def test_a_site_with_another_version_is_refused_whoever_wrote_its_folder(self, grid, monkeypatch):
        told = []
        ours = engine_on(grid, keys=KEYS, note=told.append)
        monkeypatch.setattr(flower_nodes, "__version__", "9.9.9")
        replies = ours.ask("echo", briefs())
        said = f"site 'site-0' has fedaccord {__version__}, the server has 9.9.9; install the same version"
        assert said in told
        assert replies["site-0"].reason == said

    def test_two_nodes_of_one_name(self, grid):
        told = []
        grid.join("site-0", 50)
        replies = engine_on(grid, note=told.append).ask("echo", briefs())
        assert isinstance(replies["site-0"], Message)
        assert told == ["two nodes claim to be 'site-0'; the first one is used"]

    def test_a_folder_of_another_deployment(self, tmp_path):
        told = []
        grid = FakeGrid(tmp_path, deployment="an older one")
        replies = engine_on(grid, note=told.append).ask("echo", briefs())
        assert {reply.reason for reply in replies.values()} == {"its node is not connected"}
        assert "the folder of site 'site-0' was written by another `fedaccord deploy`" in told

    def test_a_site_whose_folder_is_not_the_right_one_is_told_why(self, tmp_path):
        grid = FakeGrid(tmp_path, deployment="an older one")
        replies = engine_on(grid, keys=KEYS).ask("echo", briefs())
        assert replies["site-0"].reason == "the folder of site 'site-0' was written by another `fedaccord deploy`"

    def test_a_node_that_cannot_say_whose_it_is(self, grid):
        """Its key tells whose it is, and its error what is wrong; no round waits for it, and mended it is asked."""
        told = []
        whole = grid.folders["site-1"]
        grid.folders["site-1"] = whole / "nowhere"
        ours = engine_on(grid, keys=KEYS, note=told.append)
        reasons = [ours.ask("echo", briefs())["site-1"].reason for _ in range(2)]
        assert all(r.startswith("its node cannot name its site (Flower error code 2): ") for r in reasons)
        assert "site.json cannot be read" in reasons[0]
        assert [text for text in told if "Flower" in text] == [f"site 'site-1': {reasons[0]}"]
        grid.folders["site-1"] = whole
        ours.ask("echo", briefs())
        assert isinstance(ours.ask("echo", briefs())["site-1"], Message)

    def test_a_stranger(self, tmp_path):
        told = []
        grid = FakeGrid(tmp_path, [*SITES, "site-3"])
        assert all(isinstance(r, Message) for r in engine_on(grid, note=told.append).ask("echo", briefs()).values())
        assert told == ["a node claims to be 'site-3', which is not a site of this run"]

    def test_a_name_cannot_pass_for_a_line_of_the_log(self, grid):
        told = []
        site = grid.folders["site-1"] / "site.json"
        site.write_text(json.dumps(json.loads(site.read_text()) | {"site": "x\nround 9: all is well" + "y" * 10**4}))
        engine_on(grid, note=told.append).ask("echo", briefs())
        assert told[0].startswith("a node claims to be 'x round 9: all is well")
        assert all("\n" not in text and len(text) <= 500 for text in told)

    def test_the_first_ask_waits_for_those_that_are_not_there_yet(self, grid):
        grid.leave("site-0")
        told = []
        began = time.monotonic()
        replies = engine_on(grid, patience=0.5, note=told.append).ask("echo", briefs())
        assert time.monotonic() - began >= 0.5
        assert replies["site-0"].reason == "its node is not connected"
        assert told == ["not connected after 0.5 s: site-0"]


class TestDeadlines:
    def test_a_site_that_is_too_slow(self, grid):
        ours = engine_on(grid)
        grid.held = {"site-1"}
        replies = ours.ask("train", briefs(), deadline=0.3)
        assert replies["site-1"] == Failure("site-1", "train", "no reply within 0.3 s")
        assert replies["site-0"].numbers["rounds"] == 1

    def test_a_site_two_rounds_behind(self, grid):
        """Its old answer comes while the third round waits for the new one."""
        ours = engine_on(grid)
        ours.ask("train", briefs())
        grid.held = {"site-1"}
        for _ in range(2):
            assert isinstance(ours.ask("train", briefs(), deadline=0.2)["site-1"], Failure)
        old = [question for question, message in grid.open.items()]
        assert len(old) == 2
        grid.late = [grid.answer(question) for question in old]
        grid.held = set()
        replies = ours.ask("train", briefs())
        assert replies["site-1"].numbers["rounds"] == 2  # of its own, not counting what came too late
        assert replies["site-0"].numbers["rounds"] == 4

    def test_an_answer_that_comes_twice_counts_once(self, grid):
        ours = engine_on(grid)
        grid.twice = True
        assert [ours.ask("train", briefs())["site-0"].numbers["rounds"] for _ in range(2)] == [1, 2]

    def test_a_node_that_goes_away_is_asked_again_when_it_is_back(self, grid):
        ours = engine_on(grid)
        ours.ask("train", briefs())
        grid.held = {"site-2"}  # somebody still works, so the round is still on
        pulls = iter(range(100))
        pull = grid.pull_messages

        def pull_and_change(ids):
            at = next(pulls)
            if at == 0:
                grid.leave("site-1")
            elif at == 5:
                grid.join("site-1", 40)
            elif at == 15:
                grid.held = set()
            return pull(ids)

        grid.pull_messages = pull_and_change
        replies = ours.ask("train", briefs(), deadline=20)
        assert [reply.numbers["rounds"] for reply in replies.values()] == [2, 2, 2]
        assert grid.asked.count(("site-1", "train.task")) == 3  # once before, and twice now


class TestFailures:
    def test_the_server_hears_the_cause_and_the_site_keeps_the_trace(self, grid):
        replies = engine_on(grid).ask("fail_at", briefs(bad="site-1"))
        reason = replies["site-1"].reason
        assert replies["site-1"] == Failure("site-1", "fail_at", reason, "")
        assert re.fullmatch(r"ValueError: no rows at site-1 \(toy_host\.py:\d+\)", reason)
        log = (grid.folders["site-1"] / "log.txt").read_text()
        assert "fail_at failed: ValueError: no rows at site-1" in log
        assert "Traceback" in log
        assert "toy_host.py" in log
        assert not (grid.folders["site-0"] / "log.txt").exists()

    def test_what_a_failed_task_kept_is_not_kept(self, grid):
        ours = engine_on(grid)
        ours.ask("train", briefs())
        ours.ask("fail_at", briefs(bad="site-1"))
        assert ours.ask("train", briefs())["site-1"].numbers["rounds"] == 2

    def test_data_that_are_gone(self, grid):
        for file in (grid.folders["site-1"] / "data").iterdir():
            file.unlink()
        reason = engine_on(grid).ask("train", briefs())["site-1"].reason
        assert reason.startswith("DataError: ")
        assert "cannot be read" in reason

    def test_an_answer_of_another_site(self, grid):
        ours = engine_on(grid)
        ours.ask("echo", briefs())
        grid.folders["site-0"], grid.folders["site-1"] = grid.folders["site-1"], grid.folders["site-0"]
        reason = ours.ask("echo", briefs())["site-0"].reason
        assert reason == "the answer is from site 'site-1'"

    def test_nonsense(self, grid, monkeypatch):
        ours = engine_on(grid)
        ours.ask("echo", briefs())
        answer = grid.answer

        def spoilt(question):
            message = answer(question)
            message.content["fedaccord"]["reply"] = b"\x80\x04nonsense"
            return message

        monkeypatch.setattr(grid, "answer", spoilt)
        assert ours.ask("echo", briefs())["site-0"].reason.startswith("not a FedAccord message")

    @pytest.mark.parametrize("version", ["../../x", "A" * 64, "0" * 63, "\x1b[31m", "0" * 64 + "\n", "9" * 10**6])
    def test_a_version_of_another_form(self, grid, monkeypatch, version):
        ours = engine_on(grid)
        ours.ask("train", briefs())
        before, answer = ours.memories(), grid.answer

        def spoilt(question):
            message = answer(question)
            message.content["fedaccord"]["version"] = version
            return message

        monkeypatch.setattr(grid, "answer", spoilt)
        reason = ours.ask("train", briefs())["site-0"].reason
        assert reason.endswith("is not a version id of a memory")
        assert reason.isprintable()
        assert len(reason) < 200
        assert ours.memories() == before

    @pytest.mark.parametrize("field", ["reply", "ballast"])
    def test_an_answer_much_longer_than_its_question(self, grid, monkeypatch, field):
        ours = engine_on(grid)
        ours.ask("echo", briefs())
        answer = grid.answer

        def spoilt(question):
            message = answer(question)
            message.content["fedaccord"][field] = bytes(20_000)
            return message

        monkeypatch.setattr(grid, "answer", spoilt)
        monkeypatch.setattr(flower_engine, "_SPARE", 10_000)
        reason = ours.ask("echo", briefs())["site-0"].reason
        assert re.fullmatch(r"the answer has 20\d\d\d bytes, more than 1\d\d\d\d", reason)

    def test_the_message_of_flower_itself(self, grid, monkeypatch):
        ours = engine_on(grid)
        ours.ask("echo", briefs())
        monkeypatch.setitem(grid.folders, "site-2", grid.folders["site-2"] / "nowhere")
        reason = ours.ask("echo", briefs())["site-2"].reason
        assert reason.startswith("its node answered with Flower error code 2: ")


class TestMemories:
    def test_the_server_holds_a_version_and_the_site_the_memory(self, grid):
        ours = engine_on(grid)
        ours.ask("train", briefs())
        memories = ours.memories()
        assert list(memories) == SITES
        assert all(list(memory.words) == [VERSION] and not memory.tensors for memory in memories.values())
        (file,) = (grid.folders["site-0"] / "memory" / "run-1").iterdir()
        assert file.name == f"{memories['site-0'].words[VERSION]}.memory"

    def test_a_run_goes_back_to_its_checkpoint(self, grid):
        ours = engine_on(grid)
        ours.ask("train", briefs())
        ours.checkpointed(kept := ours.memories())
        for _ in range(3):
            ours.ask("train", briefs())
        again = engine_on(grid)  # the server was killed; the sites were not
        again.ask("echo", briefs())  # it asks who is there before it knows where it was
        again.restore(kept)
        assert again.ask("train", briefs())["site-0"].numbers["rounds"] == 2
        with pytest.raises(EngineError, match="stored the memory of site 'site-0' at the site"):
            engine_on(grid, carries=True).restore(kept)

    def test_a_checkpoint_that_is_settled_a_round_later(self, grid):
        """It is made of a finished round while the next is played, and that round asks twice before it is settled."""
        ours = engine_on(grid)
        for task in ("train", "echo"):
            ours.ask(task, briefs())
        kept = ours.memories()
        for task in ("train", "echo"):
            ours.ask(task, briefs())
        ours.checkpointed(kept)
        again = engine_on(grid)
        again.restore(kept)
        assert [reply.numbers["rounds"] for reply in again.ask("train", briefs()).values()] == [2, 2, 2]

    def test_no_more_is_kept_than_a_run_may_go_back_to(self, grid):
        ours = engine_on(grid)
        for round_ in range(8):
            ours.ask("train", briefs())
            kept = ours.memories()
            if round_ % 2:
                ours.checkpointed(kept)
        assert len(list((grid.folders["site-0"] / "memory" / "run-1").iterdir())) <= 5

    def test_a_memory_of_another_run_is_not_used(self, grid):
        ours = engine_on(grid)
        ours.ask("train", briefs(run="old"))
        kept = ours.memories()
        new = engine_on(grid)
        assert new.ask("train", briefs(run="new"))["site-0"].numbers["rounds"] == 1
        log = (grid.folders["site-0"] / "log.txt").read_text()
        assert "run new starts without memory: memory/old belongs to another run" in log
        new.restore(kept)
        reason = new.ask("train", briefs(run="new"))["site-0"].reason
        assert reason == "EngineError: its memory from the last round cannot be read: No such file or directory"

    def test_a_memory_that_was_carried_over_by_hand_or_damaged(self, grid):
        ours = engine_on(grid)
        ours.ask("train", briefs(run="old"))
        place = grid.folders["site-0"] / "memory"
        (place / "new").mkdir()
        (file,) = (place / "old").iterdir()
        file.rename(place / "new" / file.name)
        ours.restore(ours.memories())
        reason = ours.ask("train", briefs(run="new"))["site-0"].reason
        assert reason == "EngineError: its memory from the last round belongs to another run or site"
        content = bytearray((place / "new" / file.name).read_bytes())
        content[-1] ^= 1
        (place / "new" / file.name).write_bytes(content)
        assert ours.ask("train", briefs(run="new"))["site-0"].reason.endswith("is damaged")

    def test_a_run_that_would_lead_out_of_the_folder(self, grid):
        reason = engine_on(grid).ask("train", briefs(run="../../x"))["site-0"].reason
        assert reason == "MessageError: '../../x' is not a valid name of a run"
