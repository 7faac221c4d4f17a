"""Compressed files: unpacked in full, or refused at a stated limit without filling memory."""

import gzip
import subprocess
import sys
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedaccord.data import unpacking
from fedaccord.data.dataset import read_npz
from fedaccord.data.tables import read_table
from fedaccord.data.unpacking import GROWTH, LIMIT, read_gzip, unpacking_limit
from fedaccord.errors import DataError

PEAK = """
import resource, sys
from pathlib import Path
from fedaccord.data.tables import read_table
from fedaccord.errors import DataError
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    read_table(Path(sys.argv[1]))
except DataError as error:
    print(error)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def test_a_small_file_that_unpacks_to_gigabytes_is_refused_in_little_memory(tmp_path):
    bomb = tmp_path / "bomb.csv.gz"
    member = gzip.compress(b"a,b\n" + b"0" * (1 << 24))  # a .gz file may have several members
    with bomb.open("wb") as file:
        for _ in range(128):
            file.write(member)
    assert bomb.stat().st_size < 3 << 20  # and unpacks to 2 GiB
    done = subprocess.run([sys.executable, "-c", PEAK, bomb], capture_output=True, text=True, check=True)
    message, megabytes = done.stdout.splitlines()
    assert f"({bomb.stat().st_size} bytes) unpacks to more than 512 MiB, the limit for a compressed file" in message
    assert int(megabytes) < 100


def test_the_limit_grows_with_the_file(tmp_path, monkeypatch):
    content = np.random.default_rng(0).integers(33, 126, 4000, dtype=np.uint8).tobytes()
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(content))
    assert unpacking_limit(path) == LIMIT
    monkeypatch.setattr(unpacking, "LIMIT", 1000)
    assert unpacking_limit(path) == GROWTH * path.stat().st_size
    assert read_gzip(path) == content  # more than 1000 bytes, but from a file that is not much smaller
    path.write_bytes(gzip.compress(b"0" * 4000))
    with pytest.raises(DataError, match="unpacks to more than"):
        read_gzip(path)


def test_damaged_gzip(tmp_path):
    path = tmp_path / "a.csv.gz"
    whole = gzip.compress(b"age,dx\n" + b"".join(b"%d,a\n" % n for n in range(10**6)), 1)
    for content, expected in (
        (whole[: len(whole) // 2], r"is cut off in line [45]\d{5}; copy it again"),
        (gzip.compress(b"a,b\n1,2\n3,4\n5,6", 0)[:-12], r"is cut off in line 3; copy it again"),
        (whole[:2000] + b"xxxx" + whole[2004:], r"is damaged .*; copy it again"),
        (b"age,dx\n1,a\n", r"a.csv.gz' is not compressed by gzip; take '.gz' out of its name"),
        (b"", "has no rows"),
    ):
        path.write_bytes(content)
        with pytest.raises(DataError, match=expected):
            read_table(path)


def test_archives_that_unpack_to_too_much(tmp_path, monkeypatch):
    path = tmp_path / "a.npz"
    np.savez_compressed(path, x=np.zeros((1000, 100)))
    assert read_npz(path, "site 'a'")["x"].shape == (1000, 100)
    monkeypatch.setattr(unpacking, "LIMIT", 10_000)
    with pytest.raises(DataError, match=r"a.npz' \(\d+ bytes\) unpacks to more than"):
        read_npz(path, "site 'a'")


def test_an_archive_that_lies_about_its_size(tmp_path, monkeypatch):
    path = tmp_path / "a.npz"
    np.savez_compressed(path, x=np.zeros((1000, 100)))
    with zipfile.ZipFile(path) as archive:
        (member,) = archive.infolist()
    raw = path.read_bytes()
    path.write_bytes(raw.replace(member.file_size.to_bytes(4, "little"), (200).to_bytes(4, "little")))
    monkeypatch.setattr(unpacking, "LIMIT", 10_000)
    with pytest.raises(DataError, match=r"is not an .npz file, as numpy.savez writes it, or damaged"):
        read_npz(path, "site 'a'")


def test_equal_texts_of_a_parquet_file_are_in_memory_once(tmp_path):
    path = tmp_path / "a.parquet"
    indices, texts = pa.array(np.zeros(20_000, dtype=np.int32)), pa.array(["y" * 1_000_000])
    pq.write_table(pa.table({"dx": pa.DictionaryArray.from_arrays(indices, texts)}), path)
    cells = read_table(path).column("dx")  # 20 GB if each cell were a text of its own
    assert len({id(cell) for cell in cells}) == 1


def test_parquet_that_unpacks_to_too_much(tmp_path, monkeypatch):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"age": np.arange(50_000) % 3, "who": ["x" * 1000] * 50_000}), path)
    assert read_table(path).rows == 50_000
    with monkeypatch.context() as patch:
        patch.setattr(unpacking, "MOST_CELLS", 99_999)
        with pytest.raises(DataError, match=r"has 50000 rows of 2 columns, more than the limit of 0 million cells"):
            read_table(path)
    monkeypatch.setattr(unpacking, "LIMIT", 1000)
    monkeypatch.setattr(unpacking, "GROWTH", 0)
    with pytest.raises(DataError, match="unpacks to more than"):
        read_table(path)
