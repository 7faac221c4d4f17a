"""The block keeps every tensor as it was, once, aligned, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import tempfile
import weakref

import pytest
import torch

from fedaccord.engines import shared_block
from fedaccord.engines.shared_block import SharedBlock, pack, take_frames, to_frame, unpack
from fedaccord.errors import MessageError
from fedaccord.messages.message import Message

WHOLE = [torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int8, torch.int16, torch.int32, torch.int64]
REAL = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2]
DTYPES = [torch.bool, *WHOLE, *REAL, torch.complex64, torch.complex128]


@pytest.fixture
def block():
    block = SharedBlock()
    yield block
    block.close()


@pytest.fixture
def reader(block):
    """The same memory as another process sees it, mapped before anything was written."""
    reader = SharedBlock(os.dup(block.fd), writable=False)
    yield reader
    reader.close()


def through_json(header):
    return json.loads(json.dumps(header))


def assert_same(got, expected):
    assert list(got) == list(expected)
    for name, tensor in expected.items():
        assert got[name].dtype == tensor.dtype, name
        assert got[name].shape == tensor.shape, name
        assert got[name].is_contiguous(), name
        assert got[name].data_ptr() % 64 == 0, name
        bits = [t.contiguous().resolve_conj().resolve_neg().reshape(-1).view(torch.uint8) for t in (got[name], tensor)]
        assert torch.equal(*bits), name


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_and_form_survives(block, reader, dtype):
    base = torch.arange(12, dtype=torch.uint8).reshape(3, 4).to(dtype)
    tensors = {
        "plain": base,
        "transposed": base.t(),
        "every second": base[:, ::2],
        "inside": base[1:, 1:],
        "expanded": base[:1].expand(5, 4),
        "a number": base[2, 3].reshape(()),
        "empty": base[:0],
        "no rows of no columns": torch.zeros(0, 0, dtype=dtype),
        "after an empty one": base,
    }
    header = through_json(block.write(tensors))
    assert_same(reader.read(header), tensors)
    assert_same(reader.copy(header), tensors)


def test_lazy_conjugates_and_negatives_are_resolved_and_not_mistaken_for_their_base(block, reader):
    base = torch.tensor([1 + 2j, 3 - 4j])
    tensors = {"base": base, "conjugate": base.conj(), "imaginary": base.imag, "negative": base.conj().imag}
    got = reader.copy(block.write(tensors))
    assert got["conjugate"].tolist() == [1 - 2j, 3 + 4j]
    assert got["negative"].tolist() == [-2, 4]
    assert got["imaginary"].tolist() == [2, -4]


def test_parameters_with_gradients_are_written_as_plain_values(block):
    weights = torch.ones(3, requires_grad=True)
    assert not block.copy(block.write({"w": weights * 2}))["w"].requires_grad


def test_a_block_grows_and_readers_and_old_views_follow(block, reader):
    small = {"small": torch.arange(5)}
    header = block.write(small)
    early = block.read(header)
    before = block.size
    large = {"large": torch.randn(300_000)}
    second = block.write(large)
    assert block.size > before
    assert_same(reader.read(header), small)
    assert_same(reader.copy(second), large)
    assert_same(early, small)


def test_one_tensor_is_written_once_however_often_it_appears(block, reader):
    model = torch.randn(250_000)
    written = {}
    headers = [block.write({f"{i}/w": model, f"{i}/again": model.view(-1)}, written) for i in range(100)]
    assert block.size < 3_000_000
    assert_same(reader.copy(headers[99]), {"99/w": model, "99/again": model})
    # Same memory, but not the same tensor.
    views = {"a": model[:4], "b": model[:4].view(2, 2), "c": model[:8:2], "d": model[:4].view(torch.int32)}
    assert_same(reader.copy(block.write(views, written)), views)


def test_without_a_memory_of_earlier_writes_a_changed_tensor_is_written_anew(block):
    model = torch.zeros(3)
    first = block.write({"w": model})
    model += 1
    second = block.write({"w": model})
    assert [block.read(header)["w"].tolist() for header in (first, second)] == [[0, 0, 0], [1, 1, 1]]


def test_a_copy_is_one_memcpy_and_independent_of_the_block(block, monkeypatch):
    tensors = {"a": torch.randn(100, 3), "b": torch.randn(7), "c": torch.tensor(True)}
    header = block.write(tensors)
    calls = []
    move = shared_block._copy_memory
    monkeypatch.setattr(shared_block, "_copy_memory", lambda *args: (calls.append(args), move(*args)))
    copied, viewed = block.copy(header), block.read(header)
    assert len(calls) == 1
    block.reset()
    block.write({"other": torch.zeros(400)})
    assert_same(copied, tensors)
    assert viewed["a"].eq(0).all()


def test_a_copy_of_scattered_parts_takes_the_parts_only(block):
    head, body = torch.randn(4), torch.randn(100_000)
    written = {}
    block.write({"body": body}, written)
    block.write({"between": torch.randn(100_000)}, written)
    copied = block.copy(block.write({"head": head, "body": body}, written))
    assert_same(copied, {"head": head, "body": body})
    assert copied["head"].untyped_storage().nbytes() < 500_000


def test_names_of_one_tensor_become_tensors_of_their_own(block):
    tied = torch.zeros(3)
    copied = block.copy(block.write({"encoder": tied, "decoder": tied}))
    copied["encoder"].add_(1)
    assert copied["decoder"].tolist() == [0, 0, 0]


def test_changing_one_copied_tensor_does_not_touch_the_autograd_version_of_another(block):
    copied = block.copy(block.write({"weights": torch.ones(2), "running": torch.ones(2)}))
    weights = copied["weights"].requires_grad_()
    loss = (weights * weights).sum()
    copied["running"].add_(1)
    assert torch.autograd.grad(loss, weights)[0].tolist() == [2, 2]


def test_views_outlive_the_closed_block():
    block = SharedBlock()
    view = block.read(block.write({"a": torch.arange(3)}))["a"]
    block.close()
    block.close()
    assert view.tolist() == [0, 1, 2]


def test_marks_and_bytes_are_seen_by_the_other_side_and_survive_growth(block, reader):
    block.mark(0, 2**40)
    block.mark(7, -1)
    at = block.write_bytes("é".encode() * 200_000)
    assert (reader.marked(0), reader.marked(1), reader.marked(7)) == (2**40, 0, -1)
    assert reader.read_bytes(*at).decode() == "é" * 200_000
    block.reset()
    block.write({"a": torch.zeros(8)})
    assert reader.marked(0) == 2**40


@pytest.mark.parametrize("memfd", [True, False])
def test_a_block_has_no_name_in_the_file_system(monkeypatch, tmp_path, memfd):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    if not memfd:
        monkeypatch.delattr(os, "memfd_create")
    block = SharedBlock()
    tensors = {"a": torch.randn(100_000)}
    assert_same(block.read(block.write(tensors)), tensors)
    path = os.readlink(f"/proc/self/fd/{block.fd}")
    assert path.endswith("(deleted)")
    assert path.startswith("/memfd:" if memfd else str(tmp_path))
    assert list(tmp_path.iterdir()) == []
    block.close()


def test_closing_gives_back_descriptors_and_memory():
    def used():
        with open("/proc/self/maps") as maps:
            return len(os.listdir("/proc/self/fd")), maps.read().count("memfd:fedaccord")

    before = used()
    for _ in range(20):
        block = SharedBlock()
        block.write({"a": torch.zeros(100_000)})
        block.close()
    assert used() == before


def test_a_message_survives_with_numbers_and_words(block, reader):
    message = Message({"a": torch.ones(2)}, {"n": 3, "x": 0.1, "big": 2**70, "inf": float("inf")}, {"word": "naïve"})
    got = unpack(reader, through_json(pack(block, message)))
    assert_same(got.tensors, message.tensors)
    assert (got.numbers, got.words) == (message.numbers, message.words)
    assert type(got.numbers["n"]) is int


def test_what_is_no_message_is_refused(block):
    with pytest.raises(MessageError, match=r"tensor 'a' \(torch.float32, torch.sparse_coo\) cannot be sent"):
        block.write({"a": torch.eye(2).to_sparse()})
    with pytest.raises(MessageError, match="more than tensors, numbers and words"):
        to_frame(pack(block, Message(numbers={"n": torch.tensor(1)})))


def test_frames_are_taken_as_they_become_complete():
    stream = to_frame({"a": 1}) + to_frame([2, 3]) + to_frame("x" * 1000)
    inbox, taken = bytearray(), []
    for start in range(0, len(stream), 7):
        inbox += stream[start : start + 7]
        taken += take_frames(inbox)
    assert taken == [{"a": 1}, [2, 3], "x" * 1000]
    assert not inbox


def test_what_is_taken_over_is_let_go_tensor_by_tensor(block, monkeypatch):
    """No more than one tensor is there twice; the same memory under two names is still written once."""
    monkeypatch.setattr(shared_block, "_RETURNED", 10_000)
    returned = []
    monkeypatch.setattr(shared_block, "_return_memory", lambda: returned.append(len(tensors)))
    first, second = torch.arange(3000.0), torch.rand(2000)
    tensors = {"a": first, "b": first, "c": second}
    living, expected = [weakref.ref(first), weakref.ref(second)], {n: t.clone() for n, t in tensors.items()}
    del first, second
    header = block.take_over(tensors)
    assert tensors == {}
    assert [reference() for reference in living] == [None, None]
    assert returned == [2, 1]
    assert_same(block.read(header), expected)
    assert header[0][3] == header[1][3] != header[2][3]
