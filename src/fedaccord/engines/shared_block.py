"""What two processes of an engine share: a block of memory for tensors, a socket for short JSON frames.

A block is an anonymous file, so it has no name that could be left behind: the kernel frees it with the last process
that holds it, however that process ended. Its layout:

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
Written = dict[tuple[Any, ...], int]  # where a tensor already stands in a block
Told = dict[tuple[Any, ...], tuple[int, Header]]  # the sets of tensors that jobs are told of, numbered

# Kernels may sum in another order when memory is aligned otherwise, and results must not depend on the worker.
_ALIGN = 64
_FIRST_SIZE = 1 << 16
_RETURNED = 1 << 27  # bytes that are freed before the allocator is told to give them back
# Not torch's own copy: it calls in all threads, and the cores are busy with sites.
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
    """Memory that processes share by passing on `fd`; one of them writes, the others read."""

    def __init__(self, fd: int | None = None, *, writable: bool = True) -> None:
        self.fd = _anonymous_file() if fd is None else fd
        self._writable = writable
        self._end = _ALIGN
        self._map: mmap.mmap
        self._storage: torch.UntypedStorage
        self._remap()

    @property
    def size(self) -> int:
        """The bytes reserved so far, by whichever process."""
        return os.fstat(self.fd).st_size

    def reset(self) -> None:
        """Start to write from the beginning again; views of what was there will change under their owners."""
        self._end = _ALIGN

    def write(self, tensors: Mapping[str, Tensor], written: Written | None = None) -> Header:
        """Put tensors into the block and return where they are.

        The same tensor under several names is written once, and over several calls too when they share `written`. The
        caller then keeps all those tensors alive and unchanged until the next `reset`.
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
                plain = tensor if _is_plain(tensor) else tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
                _copy_memory(self._storage.data_ptr() + offset, plain.data_ptr(), plain.nbytes)
            header.append([name, dtype, shape, offset])
        return header

    def take_over(self, tensors: dict[str, Tensor]) -> Header:
        """Write tensors as `write` does, and take each out of `tensors`, so that its memory can be given back."""
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
        self._see(max((offset + _room(dtype, shape) for _, dtype, shape, offset in header), default=0))
        return {name: _tensor(self._storage, dtype, shape, offset) for name, dtype, shape, offset in header}

    def copy(self, header: Header) -> dict[str, Tensor]:
        """Return the tensors in memory of their own, by one copy where they stand side by side."""
        rooms = [_room(dtype, shape) for _, dtype, shape, _ in header]
        starts = [offset for *_, offset in header]
        places = list(itertools.accumulate(rooms, initial=0))
        own = torch.empty(places.pop(), dtype=torch.uint8).untyped_storage()
        self._see(max(map(operator.add, starts, rooms), default=0))
        source, target = self._storage.data_ptr(), own.data_ptr()
        if all(start - starts[0] == place for start, place in zip(starts, places, strict=True)):
            _copy_memory(target, source + min(starts, default=0), sum(rooms))
        else:  # parts that several messages share stand elsewhere
            for place, start, room in zip(places, starts, rooms, strict=True):
                _copy_memory(target + place, source + start, room)
        return {
            name: _tensor(own, dtype, shape, place)
            for (name, dtype, shape, _), place in zip(header, places, strict=True)
        }

    def write_bytes(self, data: bytes) -> tuple[int, int]:
        """Put bytes into the block and return their offset and length."""
        offset = self._reserve(len(data))
        self._map[offset : offset + len(data)] = data
        return offset, len(data)

    def read_bytes(self, offset: int, length: int) -> bytes:
        """Return what `write_bytes` put there."""
        self._see(offset + length)
        return self._map[offset : offset + length]

    def let_go(self) -> None:
        """Take the block's pages out of this process's own memory; nothing is lost, they come back when read."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)

    def mark(self, index: int, value: int) -> None:
        """Leave a number (mark 0 to 7) for the other process; it outlives the one that wrote it."""
        _MARK.pack_into(self._map, index * _MARK.size, value)

    def marked(self, index: int) -> int:
        """Return the number last left under `index`, 0 at first."""
        return int(_MARK.unpack_from(self._map, index * _MARK.size)[0])

    def close(self) -> None:
        """Let go of the file; the memory is freed when the last view of it is gone."""
        if self.fd >= 0:
            os.close(self.fd)
            del self._storage, self._map
            self.fd = -1

    def _reserve(self, length: int) -> int:
        offset, self._end = self._end, self._end + _rounded(length)
        if self._end > len(self._map):
            # Pages that are never touched take no memory, so doubling is free.
            os.ftruncate(self.fd, max(self._end, 2 * len(self._map)))
            self._remap()
        return offset

    def _see(self, stop: int) -> None:
        if stop > len(self._map):
            self._remap()

    def _remap(self) -> None:
        # The old map is not closed: views of it may live on, and the last of them frees it.
        access = mmap.ACCESS_WRITE if self._writable else mmap.ACCESS_READ
        self._map = mmap.mmap(self.fd, 0, access=access)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The given buffer is not writable")
            self._storage = torch.frombuffer(self._map, dtype=torch.uint8).untyped_storage()


def pack(block: SharedBlock, message: Message, written: Written | None = None) -> list[Any]:
    """Put a message's tensors into the block and return the rest of it, ready for JSON."""
    return [block.write(message.tensors, written), message.numbers, message.words]


def unpack(block: SharedBlock, packed: list[Any]) -> Message:
    """Return the message that `pack` described, in memory of its own."""
    header, numbers, words = packed
    return Message(block.copy(header), numbers, words)


def look(block: SharedBlock, packed: list[Any]) -> Message:
    """Return the message that `pack` described, whose tensors are views of the block."""
    header, numbers, words = packed
    return Message(block.read(header), numbers, words)


def to_json(document: Any) -> bytes:
    """Encode plain values; anything else in them is a `MessageError`."""
    try:
        return json.dumps(document).encode()
    except (TypeError, ValueError) as error:
        raise MessageError(f"a message holds more than tensors, numbers and words: {error}") from None


def to_frame(document: Any) -> bytes:
    """Encode one document for the control socket: its length, then JSON."""
    data = to_json(document)
    return _LENGTH.pack(len(data)) + data


def take_frames(inbox: bytearray) -> list[Any]:
    """Take the complete frames out of what has arrived so far."""
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
    """Have the allocator give back what was freed: glibc keeps it otherwise, and samples would be there twice."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _is_plain(tensor: Tensor) -> bool:
    """Say whether a tensor's memory is already what is to be copied."""
    return tensor.is_cpu and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def _rounded(length: int) -> int:
    # Never 0, so that two tensors never start at the same place.
    return -(-max(length, 1) // _ALIGN) * _ALIGN


def _room(dtype: str, shape: list[int]) -> int:
    return _rounded(math.prod(shape) * _DTYPES[dtype].itemsize)


def _tensor(storage: torch.UntypedStorage, dtype_name: str, shape: Any, offset: int) -> Tensor:
    dtype = _DTYPES[dtype_name]
    # Not a slice of one big tensor: slices share a version counter, and then autograd takes a change of one (a running
    # mean) for a change of all (the weights it saved).
    return torch.empty(0, dtype=dtype).set_(storage, offset // dtype.itemsize, shape, ())
