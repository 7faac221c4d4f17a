"""A site's side without a network: the gate's rule, the host that is kept ready, and folders that are not one."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest
import torch
from all_recipes import texts, write_tags
from fake_grid import FakeGrid

from command_line import SMALL, command, write
from fedaccord import __version__
from fedaccord.config import parse_experiment
from fedaccord.deployment.certificates import make_authority
from fedaccord.deployment.checking import check_folder
from fedaccord.engines.engine import HostSpec
from fedaccord.engines.flower.client import _answer_by_keeper_or_here, answer
from fedaccord.engines.flower.gate import gate_app, is_forwarded
from fedaccord.engines.flower.memory import SiteMemories
from fedaccord.engines.flower.node import ask_keeper, run_keeper
from fedaccord.engines.flower.site_folder import SiteFolder, write_site_folder
from fedaccord.errors import ConfigError, DataError, EngineError
from fedaccord.messages.message import Message, to_bytes
from fedaccord.methods.registry import METHODS, make_recipe


@pytest.mark.parametrize("path", ["/health", "/v1/fleet/pull-messages", "/v1/fleet/send-node-heartbeat"])
def test_nodes_are_let_through(path):
    assert is_forwarded(path)


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/v1/control/start-run",
        "/v1/runtime/push-messages",
        "/v1/fleet/../control/start-run",
        "/v1/fleet",
        "/docs",
        "/v1/fleet/%2e%2e/control/start-run",
        "/v1/fleet//x",
        "//v1/fleet/x",
        "/V1/FLEET/x",
        "/health/",
        "/openapi.json",
    ],
)
def test_nobody_else_is(path):
    assert not is_forwarded(path)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/fleet/pull-messages", 502),
        ("/v1/control/start-run", 403),
        ("//v1/control/start-run", 403),
        ("/v1/fleet/%2e%2e/control/start-run", 403),
        ("/v1/fleet/..;/control/start-run", 403),
        ("/flwr.proto.Control/StartRun", 403),
    ],
)
def test_the_gate_goes_by_the_path_as_it_was_sent(tmp_path, path, status):
    """Nobody listens behind this one, so what it lets through comes back as 502."""
    ca = tmp_path / "ca.crt"
    ca.write_bytes(make_authority("some").pem())

    async def call():
        passed = httpx.ASGITransport(gate_app("https://127.0.0.1:1", ca))
        async with httpx.AsyncClient(transport=passed) as client:
            return await client.post(httpx.URL("https://gate", raw_path=path.encode()))

    assert asyncio.run(call()).status_code == status


class TestKeeper:
    def start(self, folder, answer):
        threading.Thread(target=run_keeper, args=(folder, answer), daemon=True).start()
        while not (folder / "keeper.sock").exists():
            pass

    def test_a_question_comes_back_answered(self, tmp_path):
        self.start(tmp_path, lambda question: {"back": question["word"], "bytes": question["brief"] * 2})
        question = {"word": "é", "brief": bytes(range(256)) * 5000}
        for _ in range(2):
            assert ask_keeper(tmp_path, question) == {"back": "é", "bytes": question["brief"] * 2}
        assert (tmp_path / "keeper.sock").stat().st_mode & 0o077 == 0

    def test_nobody_is_there(self, tmp_path):
        assert ask_keeper(tmp_path, {}) is None
        (tmp_path / "keeper.sock").touch()  # left behind
        assert ask_keeper(tmp_path, {}) is None

    def test_one_that_breaks_down_costs_one_answer(self, tmp_path):
        program = "import os, sys; from pathlib import Path; from fedaccord.engines.flower.node import run_keeper\n"
        program += "run_keeper(Path(sys.argv[1]), lambda question: os._exit(3))"
        grid = FakeGrid(tmp_path)
        folder = SiteFolder.open(grid.folders["site-0"])
        process = subprocess.Popen([sys.executable, "-c", program, folder.path])
        while not (folder.path / "keeper.sock").exists():
            assert process.poll() is None
        with pytest.raises(EngineError, match="host loaded crashed"):
            ask_keeper(folder.path, {"task": "train"})
        assert process.wait(10) == 3
        # The next finds nobody, and the process that Flower started does it itself.
        answer = _answer_by_keeper_or_here(folder, {"task": "train", "site": "site-9"})
        assert answer["reason"].startswith("MessageError")


class TestFolder:
    def test_what_is_none(self, tmp_path):
        with pytest.raises(DataError, match=r"is not the folder of a site: site\.json cannot be read"):
            SiteFolder.open(tmp_path)
        (tmp_path / "site.json").write_text("{}")
        with pytest.raises(DataError, match=r"its site\.json is damaged"):
            SiteFolder.open(tmp_path)

    def test_data_are_mapped_and_a_file_is_never_written_to(self, tmp_path):
        folder = SiteFolder.open(FakeGrid(tmp_path).folders["site-1"])
        before = {path: path.read_bytes() for path in (folder.path / "data").iterdir()}
        tensors = folder.build_host().tensors
        assert all(tensor.data_ptr() % 64 == 0 for tensor in tensors.values())
        for tensor in tensors.values():
            tensor.zero_()
        assert before == {path: path.read_bytes() for path in (folder.path / "data").iterdir()}

    def test_a_host_that_is_open_keeps_its_data_when_the_folder_is_written_anew(self, tmp_path):
        """A file that shrinks under its mapping would end the process."""
        place = FakeGrid(tmp_path).folders["site-1"]
        folder = SiteFolder.open(place)
        tensors = folder.build_host().tensors
        before = {name: tensor.clone() for name, tensor in tensors.items()}
        fewer = {name: tensor[:1] * 0 - 7 for name, tensor in before.items()}
        write_site_folder(place, "site-1", HostSpec("toy_host:build", {}, fewer), "d", "", ["."])
        assert all(torch.equal(tensors[name], before[name]) for name in before)
        assert all((tensor == -7).all() for tensor in SiteFolder.open(place).build_host().tensors.values())
        assert not list(place.rglob("*.tmp"))

    def test_a_memory_is_on_the_disk_with_its_name_before_the_site_answers(self, tmp_path, monkeypatch):
        synced, fsync = [], os.fsync

        def watched(fd):
            synced.append(Path(os.readlink(f"/proc/self/fd/{fd}")))
            fsync(fd)

        memories = SiteMemories(SiteFolder.open(FakeGrid(tmp_path).folders["site-1"]), "run-1")
        monkeypatch.setattr("os.fsync", watched)
        memories.store(Message(numbers={"rounds": 1}))
        assert synced[-1] == tmp_path / "site-1/memory/run-1"
        assert synced[-2].suffix == ".tmp"

    def test_a_pickle_in_the_place_of_data_is_not_opened(self, tmp_path):
        import numpy as np

        folder = SiteFolder.open(FakeGrid(tmp_path).folders["site-1"])
        np.save(folder.path / "data" / "0000.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
        with pytest.raises(DataError, match=r"cannot be read: it is not an \.npy file of numbers"):
            folder.build_host()

    def test_saying_who_one_is_needs_no_torch(self, tmp_path):
        program = "import sys; import fedaccord.engines.flower.client; sys.exit('torch' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", program]).returncode == 0


class TestAgreement:
    """A site runs code outside FedAccord only if its own `site.toml` says so."""

    RECIPE = """
from fedaccord.methods.averaging.recipe import fedavg
from fedaccord.methods.shared_settings import ClassicSettings

open("imported", "w").close()


def own(settings: ClassicSettings):
    return fedavg(settings)
"""

    @pytest.fixture
    def deployed(self, tmp_path, monkeypatch):
        """The folders of two sites that train by a method beside the experiment file."""
        monkeypatch.chdir(tmp_path)
        (tmp_path / "own_method.py").write_text(self.RECIPE)
        config = write(tmp_path, SMALL.replace("fedavg", "own_method:own"))
        done = command("deploy", config, "d", "--trust", "own_method", cwd=tmp_path)
        assert done.code == 0, done.err
        (tmp_path / "imported").unlink()
        for name in ("own_method.py", "__pycache__"):
            subprocess.run(["rm", "-r", tmp_path / name], check=False)
        sys.modules.pop("own_method")
        yield tmp_path / "d"
        sys.modules.pop("own_method", None)

    def asked(self, folder):
        question = {
            "task": "train",
            "site": "site-0",
            "run": "r",
            "version": "",
            "keep": "",
            "brief": to_bytes(Message()),
        }
        return answer(SiteFolder.open(folder), question)

    def test_until_it_agrees_a_site_refuses_in_a_sentence_for_the_server(self, deployed, tmp_path):
        site = deployed / "sites/site-0"
        told = self.asked(site)["reason"]
        assert "site 'site-0' has not agreed to run code of 'own_method'" in told
        assert 'trust = ["own_method"] in site.toml' in told
        assert "has not agreed" in (site / "log.txt").read_text()
        assert any("has not agreed" in problem for problem in check_folder(site))
        assert not (tmp_path / "imported").exists()

        text = (site / "site.toml").read_text()
        assert text.count("# trust = ") == 1
        (site / "site.toml").write_text(text.replace("# trust = ", "trust = "))
        assert "has not agreed" not in self.asked(site)["reason"]
        assert (tmp_path / "imported").exists()

        (site / "site.toml").write_text(text)  # it may change its mind
        assert "has not agreed" in self.asked(site)["reason"]

    def test_the_word_of_others_is_not_enough(self, deployed, tmp_path):
        site = deployed / "sites/site-0"
        description = json.loads((site / "site.json").read_text())
        description["spec"]["trust"] = ["own_method"]
        (site / "site.json").write_text(json.dumps(description))
        assert "has not agreed" in self.asked(site)["reason"]
        (site / "site.json").write_text(json.dumps(description | {"entry": "own_method:own"}))
        assert "has not agreed" in self.asked(site)["reason"]
        assert not (tmp_path / "imported").exists()

    def test_a_folder_of_another_version_gives_both_versions_and_asks_for_no_agreement(self, deployed, tmp_path):
        site = deployed / "sites/site-0"
        description = json.loads((site / "site.json").read_text())
        old = {"entry": "fedaccord.methods.hosting:build_host", "fedaccord": "0.1.0"}
        (site / "site.json").write_text(json.dumps(description | old))
        versions = f"was written by fedaccord 0.1.0, but {__version__} is installed"
        told = self.asked(site)["reason"]
        assert f"the folder of site 'site-0' {versions}" in told
        assert "agreed" not in told
        problems = check_folder(site)
        assert [problem for problem in problems if "0.1.0" in problem] == [f"the folder {versions}"]
        assert not any("agreed" in problem for problem in problems)

        (site / "site.toml").write_text('trust = ["fedaccord"]')  # agreeing opens no other entry inside FedAccord
        (site / "site.json").write_text(json.dumps(description | {"entry": "fedaccord.session:os.system"}))
        assert "its entry must be 'fedaccord.hosting:build_host'" in self.asked(site)["reason"]
        assert not (tmp_path / "imported").exists()

    def test_decisions_that_cannot_be_read(self, deployed):
        site = deployed / "sites/site-0"
        (site / "site.toml").write_text('trust = "own_method"')
        with pytest.raises(DataError, match="trust must be a list of package names"):
            SiteFolder.open(site).build_host()
        (site / "site.toml").write_text("trust = ")
        with pytest.raises(DataError, match=r"site\.toml' cannot be read"):
            SiteFolder.open(site).build_host()


class TestExtras:
    """Without Flower nothing but Flower is missing."""

    def test_the_simulation_says_what_to_install(self, tmp_path, monkeypatch):
        monkeypatch.setitem(sys.modules, "ray", None)
        monkeypatch.delitem(sys.modules, "fedaccord.engines.flower.simulation", raising=False)
        done = command("run", write(tmp_path, SMALL), "--engine", "flower", cwd=tmp_path)
        assert done.code == 2
        assert 'run.engine is "flower", but ray is not installed' in done.err
        assert 'pip install "fedaccord[flower-simulation]"' in done.err

    def test_an_engine_that_is_none(self, tmp_path):
        done = command("run", write(tmp_path, SMALL), "--engine", "flour", cwd=tmp_path)
        assert done.code == 2
        assert "run.engine" in done.err
        assert "flower" in done.err


def test_make_parity_has_an_experiment_for_every_method(tmp_path):
    def fits(method, text):
        try:
            experiment = parse_experiment(text)
        except ConfigError:
            return False
        needs = make_recipe(method, experiment.settings).server_trains
        return experiment.server.labelled is not None or not needs

    tags = write_tags(tmp_path / "tags.npz")
    without = [name for name in METHODS if not any(fits(name, text) for text in texts(name, tags))]
    assert without == []
