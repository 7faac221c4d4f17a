"""What is kept on disk between runs: found again for the same dependencies only, and never trusted when damaged."""

import os
from pathlib import Path

import numpy as np
import pytest

from fedaccord.clean_classifier import cache_folder, cached, digest


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDACCORD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def make():
    """Counts how often it was needed."""

    def made():
        made.times += 1
        return np.arange(12, dtype=np.float32).reshape(3, 4) / 7

    made.times = 0
    return made


def files(folder):
    return [path for path in folder.rglob("*") if path.is_file()]


def test_it_is_made_once(folder, make):
    first, second = (cached("things", {"seed": 1}, make) for _ in range(2))
    assert make.times == 1
    assert np.array_equal(first, second)
    assert (first.dtype, first.shape) == (second.dtype, second.shape)
    assert [path.parent for path in files(folder)] == [folder / "things"]


@pytest.mark.parametrize("other", [{"seed": 2}, {"seed": 1, "more": 0}, {"seed": "1"}])
def test_other_dependencies_are_another_thing(make, other):
    cached("things", {"seed": 1}, make)
    cached("things", other, make)
    assert make.times == 2


def test_the_order_of_dependencies_does_not_matter(make):
    cached("things", {"a": 1, "b": 2}, make)
    cached("things", {"b": 2, "a": 1}, make)
    assert make.times == 1


def flip(data):
    data[-3] ^= 4  # among the values, where safetensors does not look
    return data


@pytest.mark.parametrize("damage", [flip, lambda data: data[:-5], lambda data: b"", lambda data: b"x" * 100])
def test_a_damaged_file_is_made_anew(folder, make, damage):
    good = cached("things", {"seed": 1}, make)
    (path,) = files(folder)
    whole = path.read_bytes()
    path.write_bytes(damage(bytearray(whole)))
    assert np.array_equal(cached("things", {"seed": 1}, make), good)
    assert make.times == 2
    assert path.read_bytes() == whole


def test_a_file_of_another_key_is_not_taken(folder, make):
    cached("things", {"seed": 1}, make)
    (one,) = files(folder)
    cached("things", {"seed": 2}, make)
    (two,) = set(files(folder)) - {one}
    two.write_bytes(one.read_bytes())
    cached("things", {"seed": 2}, make)
    assert make.times == 3


def test_where_nothing_can_be_written_it_is_made_each_time(folder, make):
    folder.write_text("a file where the folder should be")
    cached("things", {"seed": 1}, make)
    cached("things", {"seed": 1}, make)
    assert make.times == 2


def test_a_write_that_fails_leaves_nothing_behind(folder, make, monkeypatch):
    def full(path, target):
        raise OSError(28, "no space left on device")

    monkeypatch.setattr(Path, "replace", full)
    assert cached("things", {"seed": 1}, make).shape == (3, 4)
    assert files(folder) == []


def test_the_folder_without_a_variable(monkeypatch, tmp_path):
    monkeypatch.delenv("FEDACCORD_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "fedaccord"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path(os.path.expanduser("~")) / ".cache" / "fedaccord"


def test_a_digest_tells_values_shapes_and_types_apart():
    x = np.arange(6, dtype=np.int32)
    others = [x[::-1], x.reshape(2, 3), x.astype(np.int64), x.view(np.float32)]
    assert len({digest(array) for array in [x, *others]}) == 5
    assert digest(x) == digest(x.copy())
    assert digest(x, x) != digest(x)
