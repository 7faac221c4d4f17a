"""Shared memory blocks for tensors, and JSON frames for the socket between two processes of an engine.

A block is an anonymous file: the kernel frees it when the last process that holds it has ended, even by a signal. Its
layout in bytes:

    0        64                                                          end
    | marks  | tensor | tensor | bytes | ...  each at a multiple of 64 ... |
"""

from __future__ import annotations

import ctypes
import itertools
import json
import math
import mmap
import operator
import os
import struct
import tempfile
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedaccord.errors import MessageError
from fedaccord.messages.message import Message

Header = list[list[Any]]  # [name, dtype, shape, offset] per tensor, ready for JSON
Written = dict[tuple[Any, ...], int]  # offsets of tensors that are already in a block
SharedHeaders = dict[tuple[Any, ...], tuple[int, Header]]  # numbered headers that several jobs refer to

# Kernels may sum in another order for another alignment, and results must not depend on the worker.
_ALIGN = 64
_FIRST_SIZE = 1 << 16
_RETURNED = 1 << 27  # freed bytes after which the allocator returns memory to the system
# Not torch's copy, which uses all threads while the cores are busy with sites.
_copy_memory = ctypes.memmove
_MARK = struct.Struct("<q")
_LENGTH = struct.Struct("<I")
_NAMES = (
    "bool uint8 uint16 uint32 uint64 int8 int16 int32 int64 float16 bfloat16 float32 float64 complex64 complex128 "
    "float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz"
)
_DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in _NAMES.split() if hasattr(torch, name)}
_NAME_OF = {dtype: name for name, dtype in _DTYPES.items()}


class SharedBlock:
    """Memory that processes share by passing on `fd`; one process writes, the others read."""

    def __init__(self, fd: int | None = None, *, writable: bool = True) -> None:
        self.fd = _anonymous_file() if fd is None else fd
        self._writable = writable
        self._end = _ALIGN
        self._map: mmap.mmap
        self._storage: torch.UntypedStorage
        self._remap()

    @property
    def size(self) -> int:
        """The bytes reserved so far, by any process."""
        return os.fstat(self.fd).st_size

    def reset(self) -> None:
        """Write from the beginning again; this overwrites the tensors of existing views."""
        self._end = _ALIGN

    def write(self, tensors: Mapping[str, Tensor], written: Written | None = None) -> Header:
        """Copy tensors into the block and return their header.

        A tensor with several names is written once; with a common `written`, also once over several calls. The caller
        then keeps these tensors alive and unchanged until the next `reset`.
        """
        written = {} if written is None else written
        header: Header = []
        for name, tensor in tensors.items():
            dtype = _NAME_OF.get(tensor.dtype)
            if dtype is None or tensor.layout is not torch.strided:
                raise MessageError(f"tensor '{name}' ({tensor.dtype}, {tensor.layout}) cannot be sent")
            shape = tuple(tensor.shape)
            key = (tensor.data_ptr(), dtype, shape, tensor.stride(), tensor.is_conj(), tensor.is_neg())
            offset = written.get(key)
            if offset is None:
                offset = written[key] = self._reserve(tensor.nbytes)
                plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()  # copies only if needed
                _copy_memory(self._storage.data_ptr() + offset, plain.data_ptr(), plain.nbytes)
            header.append([name, dtype, shape, offset])
        return header

    def take_over(self, tensors: dict[str, Tensor]) -> Header:
        """Write tensors as `write` does, and remove each one from `tensors` to free its memory."""
        header: Header = []
        written: Written = {}
        unreturned = 0
        for name in list(tensors):
            unreturned += tensors[name].nbytes
            header += self.write({name: tensors.pop(name)}, written)
            if unreturned > _RETURNED:
                _return_memory()
                unreturned = 0
        return header

    def read(self, header: Header) -> dict[str, Tensor]:
        """Return the tensors as views of the block."""
        self._map_up_to(max((offset + _padded_size(dtype, shape) for _, dtype, shape, offset in header), default=0))
        return {name: _tensor(self._storage, dtype, shape, offset) for name, dtype, shape, offset in header}

    def copy(self, header: Header) -> dict[str, Tensor]:
        """Return copies of the tensors, made by a single copy if they are adjacent."""
        sizes = [_padded_size(dtype, shape) for _, dtype, shape, _ in header]
        offsets = [offset for *_, offset in header]
        new_offsets = list(itertools.accumulate(sizes, initial=0))
        storage = torch.empty(new_offsets.pop(), dtype=torch.uint8).untyped_storage()
        self._map_up_to(max(map(operator.add, offsets, sizes), default=0))
        source, target = self._storage.data_ptr(), storage.data_ptr()
        if all(offset - offsets[0] == new for offset, new in zip(offsets, new_offsets, strict=True)):
            _copy_memory(target, source + min(offsets, default=0), sum(sizes))
        else:  # tensors that several messages share are not adjacent
            for new, offset, size in zip(new_offsets, offsets, sizes, strict=True):
                _copy_memory(target + new, source + offset, size)
        return {
            name: _tensor(storage, dtype, shape, new)
            for (name, dtype, shape, _), new in zip(header, new_offsets, strict=True)
        }

    def write_bytes(self, data: bytes) -> tuple[int, int]:
        """Copy bytes into the block and return their offset and length."""
        offset = self._reserve(len(data))
        self._map[offset : offset + len(data)] = data
        return offset, len(data)

    def read_bytes(self, offset: int, length: int) -> bytes:
        """Return the bytes that `write_bytes` wrote."""
        self._map_up_to(offset + length)
        return self._map[offset : offset + length]

    def unload_pages(self) -> None:
        """Unload the block's pages from this process; they are loaded again when read."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)

    def mark(self, index: int, value: int) -> None:
        """Store a number under an index from 0 to 7 for the other process; it survives the writing process."""
        _MARK.pack_into(self._map, index * _MARK.size, value)

    def marked(self, index: int) -> int:
        """Return the number last stored under an index, initially 0."""
        return int(_MARK.unpack_from(self._map, index * _MARK.size)[0])

    def close(self) -> None:
        """Close the file; the memory is freed with its last view."""
        if self.fd >= 0:
            os.close(self.fd)
            del self._storage, self._map
            self.fd = -1

    def _reserve(self, length: int) -> int:
        offset, self._end = self._end, self._end + _rounded(length)
        if self._end > len(self._map):
            # Untouched pages use no memory, so doubling costs nothing.
            os.ftruncate(self.fd, max(self._end, 2 * len(self._map)))
            self._remap()
        return offset

    def _map_up_to(self, stop: int) -> None:
        if stop > len(self._map):
            self._remap()

    def _remap(self) -> None:
        # The old map is not closed: it may have views, and the last one frees it.
        access = mmap.ACCESS_WRITE if self._writable else mmap.ACCESS_READ
        self._map = mmap.mmap(self.fd, 0, access=access)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The given buffer is not writable")
            self._storage = torch.frombuffer(self._map, dtype=torch.uint8).untyped_storage()


def pack(block: SharedBlock, message: Message, written: Written | None = None) -> list[Any]:
    """Write a message's tensors into the block and return its description, ready for JSON."""
    return [block.write(message.tensors, written), message.numbers, message.words]


def unpack(block: SharedBlock, packed: list[Any], as_views: bool = False) -> Message:
    """Return the message that `pack` described, with tensors that are copies or views of the block."""
    header, numbers, words = packed
    return Message(block.read(header) if as_views else block.copy(header), numbers, words)


def to_json(document: Any) -> bytes:
    """Encode a document as JSON; raise MessageError if it cannot be."""
    try:
        return json.dumps(document).encode()
    except (TypeError, ValueError) as error:
        raise MessageError(f"a message contains more than tensors, numbers and words: {error}") from None


def to_frame(document: Any) -> bytes:
    """Encode one document for the control socket: its length, then JSON."""
    data = to_json(document)
    return _LENGTH.pack(len(data)) + data


def take_frames(inbox: bytearray) -> list[Any]:
    """Remove the complete frames from the received bytes, and return their documents."""
    frames, at = [], 0
    while len(inbox) - at >= _LENGTH.size:
        start = at + _LENGTH.size
        stop = start + _LENGTH.unpack_from(inbox, at)[0]
        if stop > len(inbox):
            break
        frames.append(json.loads(inbox[start:stop]))
        at = stop
    del inbox[:at]
    return frames


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("fedaccord", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, _FIRST_SIZE)
    return fd


def _return_memory() -> None:
    """Make glibc's allocator return freed memory to the system; otherwise samples would be in memory twice."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _rounded(length: int) -> int:
    # Never 0, so that no two tensors have the same offset.
    return -(-max(length, 1) // _ALIGN) * _ALIGN


def _padded_size(dtype: str, shape: list[int]) -> int:
    return _rounded(math.prod(shape) * _DTYPES[dtype].itemsize)


def _tensor(storage: torch.UntypedStorage, dtype_name: str, shape: Any, offset: int) -> Tensor:
    dtype = _DTYPES[dtype_name]
    # Not a slice of one large tensor: slices share a version counter, so autograd would take an update of one (a
    # running mean) for an update of all (the saved weights).
    return torch.empty(0, dtype=dtype).set_(storage, offset // dtype.itemsize, shape, ())
