"""Which run a server plays: one that was cut goes on, one that never began leaves nothing behind."""

from __future__ import annotations

import json
import os
import subprocess
from types import SimpleNamespace

import pytest

from fedaccord.config import check_experiment
from fedaccord.deployment import serving
from fedaccord.deployment.serving import serve, unfinished
from fedaccord.deployment.writing import Address, write_deployment
from fedaccord.errors import ConfigError, EngineError, FedAccordError
from people import table


class Nobody:
    """A grid to which no node is connected."""

    def get_nodes(self):
        return []


class Broken:
    def get_nodes(self):
        raise RuntimeError("the grid broke down")


@pytest.fixture
def server(tmp_path):
    address = Address("localhost", 9443)
    write_deployment(check_experiment(table(tmp_path, 2)), tmp_path, tmp_path / "d", address, 9444, None)
    link = tmp_path / "d/server/link.json"
    link.write_text(json.dumps(json.loads(link.read_text()) | {"patience": 0.01}))
    return tmp_path / "d/server"


def test_a_run_that_is_refused_before_its_first_round_does_not_stick(server):
    config = server / "config.toml"
    right = config.read_text()
    config.write_text(right.replace("joins = {}", "joins = { nowhere = 3 }"))
    with pytest.raises(ConfigError, match=r"data\.joins: there is no site 'nowhere'"):
        serve(Nobody(), server)
    assert list((server / "runs").iterdir()) == []
    config.write_text(right)
    with pytest.raises(EngineError, match="no site could join"):
        serve(Nobody(), server)


def test_a_run_that_broke_down_is_gone_on_with_and_it_is_said_how_to_give_it_up(server, capsys):
    with pytest.raises(RuntimeError):
        serve(Broken(), server)
    (cut,) = (server / "runs").iterdir()
    assert "the grid broke down" in (cut / "log.txt").read_text()
    with pytest.raises(EngineError):
        serve(Nobody(), server)
    said = "resumes runs/people with its original settings; remove that folder to start a new run"
    assert said in capsys.readouterr().out
    assert said in (cut / "log.txt").read_text()


def test_of_several_runs_the_last_that_was_begun_goes_on(tmp_path):
    for time, name in enumerate(("x-2", "x-10", "x-9")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.toml").touch()
        os.utime(tmp_path / name / "config.toml", (time, time))
    (tmp_path / "x-9/summary.json").touch()
    assert unfinished(tmp_path) == tmp_path / "x-10"
    assert unfinished(tmp_path / "x-9") is None


def ended(*fatal):
    """The part of a summary that tells what went wrong."""
    return {"problems": [{"kind": "dropped", "text": f"problem {n}", "fatal": f} for n, f in enumerate(fatal)]}


def test_a_run_whose_model_should_not_be_used_fails_in_flower(monkeypatch, tmp_path):
    context = SimpleNamespace(run_config={"folder": str(tmp_path)})
    monkeypatch.setattr(serving, "serve", lambda grid, folder: ended(False))
    serving.main(Nobody(), context)
    monkeypatch.setattr(serving, "serve", lambda grid, folder: ended(False, True))
    with pytest.raises(FedAccordError, match=r"^problem 1$"):
        serving.main(Nobody(), context)


@pytest.mark.parametrize(
    ("fatal", "arguments", "code"), [(False, [], 0), (True, [], 1), (True, ["--format", "json"], 0)]
)
def test_the_script_ends_with_the_code_of_the_newest_run(server, fatal, arguments, code):
    flower = server / "bin" / "flwr"  # which ends with 0 after a failed run as well
    flower.parent.mkdir()
    flower.write_text("#!/bin/sh\n")
    flower.chmod(0o755)
    for number, run in enumerate(("old", "new")):
        folder = server / "runs" / run
        folder.mkdir(parents=True)
        (folder / "summary.json").write_text(json.dumps(ended(fatal if run == "new" else not fatal), indent=2))
        os.utime(folder, (number, number))
    environment = os.environ | {"FEDACCORD_BIN": str(flower.parent)}
    assert subprocess.run([server / "run.sh", *arguments], env=environment).returncode == code
