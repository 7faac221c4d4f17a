"""The run folder: nothing half written, nothing of another run touched, and checkpoints that can be read back."""

from __future__ import annotations

import json
import os
import re

import pytest
import torch

from fedaccord.errors import RunFolderError
from fedaccord.messages.message import Message, from_bytes, to_bytes
from fedaccord.runs.checkpoint import pack, read_checkpoint, seal, unpack
from fedaccord.runs.folder import KEPT_CHECKPOINTS, RunFolder, free_folder


@pytest.fixture
def folder(tmp_path):
    folder = RunFolder(tmp_path / "runs" / "mine")
    yield folder
    folder.close()


def names(folder):
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


class TestMaking:
    def test_parents_are_made(self, folder):
        assert names(folder.path) == ["checkpoints", "model"]

    def test_an_empty_folder_is_taken(self, tmp_path):
        (tmp_path / "here").mkdir()
        RunFolder(tmp_path / "here").close()
        assert names(tmp_path / "here") == ["checkpoints", "model"]

    def test_a_folder_with_something_in_it_is_not(self, tmp_path):
        (tmp_path / "note.txt").write_text("mine")
        with pytest.raises(RunFolderError) as caught:
            RunFolder(tmp_path)
        assert str(caught.value) == f"the folder '{tmp_path}' is not empty; give another one with --out"
        assert os.listdir(tmp_path) == ["note.txt"]

    @pytest.mark.parametrize("below", ["file", "file/run", "file/a/b"])
    def test_a_place_where_none_can_be(self, tmp_path, below):
        (tmp_path / "file").write_text("mine")
        with pytest.raises(RunFolderError, match=rf"the run folder '{tmp_path}/{below}' cannot be created: \w"):
            RunFolder(tmp_path / below)

    def test_the_next_free_name(self, tmp_path):
        assert free_folder(tmp_path, "run") == tmp_path / "run"
        (tmp_path / "run").mkdir()
        (tmp_path / "run-2").write_text("")
        assert free_folder(tmp_path, "run") == tmp_path / "run-3"
        assert free_folder(tmp_path / "nowhere", "run") == tmp_path / "nowhere" / "run"


class TestWriting:
    def test_json_is_written_for_people_too(self, folder):
        folder.write_json("a.json", {"Zürich": [1, None]})
        text = (folder.path / "a.json").read_text(encoding="utf-8")
        assert "Zürich" in text
        assert json.loads(text) == {"Zürich": [1, None]}

    @pytest.mark.parametrize("value", [float("nan"), float("inf")])
    def test_what_is_no_json_is_never_written(self, folder, value):
        with pytest.raises(ValueError, match="JSON"):
            folder.write_json("a.json", {"x": value})
        with pytest.raises(ValueError, match="JSON"):
            folder.append_metrics([{"fine": 1}, {"x": value}])
        assert not (folder.path / "a.json").exists()
        assert not (folder.path / "metrics.jsonl").exists()

    def test_lines_are_appended(self, folder):
        folder.append_metrics([{"round": 1}, {"round": 1, "site": "ü"}])
        folder.append_metrics([{"round": 2}])
        lines = (folder.path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        assert [json.loads(line) for line in lines] == [{"round": 1}, {"round": 1, "site": "ü"}, {"round": 2}]

    def test_the_log_has_times(self, folder):
        folder.log("one")
        folder.log("two")
        one, two = (folder.path / "log.txt").read_text().splitlines()
        assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d one", one)
        assert two.endswith(" two")

    def test_a_file_that_cannot_be_written_leaves_the_old_one(self, folder, monkeypatch):
        folder.write("config.toml", "old = 1\n")

        def full(file):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("os.fsync", full)
        with pytest.raises(RunFolderError) as caught:
            folder.write("config.toml", "new = 2\n")
        assert str(caught.value) == f"'{folder.path}/config.toml' cannot be written: No space left on device"
        assert (folder.path / "config.toml").read_text() == "old = 1\n"
        assert names(folder.path) == ["checkpoints", "config.toml", "model"]
        assert not [name for name in os.listdir(folder.path) if name.endswith(".tmp")]

    @pytest.mark.parametrize("name", ["metrics.jsonl", "log.txt"])
    def test_a_line_that_cannot_be_appended(self, folder, name):
        (folder.path / name).mkdir()
        with pytest.raises(RunFolderError, match=f"{name}' cannot be written: Is a directory"):
            folder.append_metrics([{}]) if name == "metrics.jsonl" else folder.log("x")

    def test_the_model_and_how_to_rebuild_it(self, folder):
        flat = torch.arange(6.0)
        folder.write("model/model.safetensors", to_bytes(Message({"w": flat[:4].reshape(2, 2), "b": flat[4:]})))
        folder.write_json("model/model.json", {"model": {"name": "mlp"}})
        read = from_bytes((folder.path / "model" / "model.safetensors").read_bytes())
        assert read.tensors["w"].tolist() == [[0, 1], [2, 3]]
        assert read.tensors["b"].tolist() == [4, 5]
        assert json.loads((folder.path / "model" / "model.json").read_text()) == {"model": {"name": "mlp"}}


class TestDiscarding:
    def test_a_run_that_never_began_leaves_nothing(self, folder):
        folder.write("config.toml", "a = 1\n")
        folder.log("started")
        folder.discard()
        assert not folder.path.exists()
        assert folder.path.parent.exists()

    def test_a_run_that_began_stays(self, folder):
        folder.append_metrics([{"round": 1}])
        folder.discard()
        assert (folder.path / "metrics.jsonl").exists()


class TestCheckpoints:
    def state(self, round_):
        return Message({"model": torch.tensor([1.5, -0.0])}, {"round": round_}, {"word": "ä"})

    def test_what_is_written_is_read_back(self, folder):
        odd = {"b/c": Message({"w": torch.ones(2), "x/y": torch.tensor([3])}, {"n": 2.5}, {"k": "v"}), "": Message()}
        ten = {f"site-{i}": Message({"w": torch.full((1,), float(i))}) for i in range(11)}
        folder.write_checkpoint(self.state(4), odd | ten)
        (path,) = (folder.path / "checkpoints").iterdir()
        state, memories = read_checkpoint(path)
        assert state.tensors["model"].tolist() == [1.5, 0]
        assert (state.numbers, state.words) == ({"round": 4}, {"word": "ä"})
        assert sorted(memories) == sorted(odd | ten)
        assert list(memories["b/c"].tensors) == ["w", "x/y"]
        assert (memories["b/c"].numbers, memories["b/c"].words) == ({"n": 2.5}, {"k": "v"})
        assert memories[""].is_empty()
        assert [memories[f"site-{i}"].tensors["w"].item() for i in range(11)] == list(range(11))

    def test_the_last_few_are_kept(self, folder):
        for round_ in (8, 9, 10, 11):
            folder.write_checkpoint(self.state(round_), {})
        kept = [read_checkpoint(path)[0].numbers["round"] for path in sorted((folder.path / "checkpoints").iterdir())]
        assert kept == [10, 11]
        assert len(kept) == KEPT_CHECKPOINTS

    def test_one_that_is_not_there(self, tmp_path):
        with pytest.raises(RunFolderError, match=r"'.*/x' cannot be read: No such file"):
            read_checkpoint(tmp_path / "x")

    @pytest.mark.parametrize("damage", ["cut", "altered", "empty", "of something else"])
    def test_one_that_is_damaged(self, folder, damage):
        folder.write_checkpoint(self.state(1), {})
        (path,) = (folder.path / "checkpoints").iterdir()
        data = path.read_bytes()
        altered = data[:-1] + bytes([data[-1] ^ 1])  # one bit of the model
        path.write_bytes({"cut": data[:-5], "altered": altered, "empty": b"", "of something else": b"x" * 99}[damage])
        with pytest.raises(RunFolderError, match=r"the checkpoint '.*' is damaged: "):
            read_checkpoint(path)

    def test_one_of_another_version(self, tmp_path):
        whole = pack(self.state(1), {})
        whole.numbers["format"] = 99
        with pytest.raises(RunFolderError) as caught:
            unpack(whole)
        (tmp_path / "x").write_bytes(seal(whole))
        with pytest.raises(RunFolderError) as read:
            read_checkpoint(tmp_path / "x")
        assert str(caught.value) == str(read.value) == "the checkpoint has format 99, but this version reads format 1"
