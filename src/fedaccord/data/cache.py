"""What takes long to compute and comes out the same each time, kept on disk between runs.

The folder is named by FEDACCORD_CACHE; without it, `fedaccord` in the user's cache folder. It may be deleted at any
time. A file that is damaged, or that cannot be written, costs the computation and nothing else.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedaccord.data.dataset import Array
from fedaccord.errors import MessageError
from fedaccord.messages.message import Message, from_bytes, to_bytes


def cache_folder() -> Path:
    """Return where results are kept."""
    named = os.environ.get("FEDACCORD_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedaccord"


def cached(kind: str, depends_on: Mapping[str, Any], make: Callable[[], Array]) -> Array:
    """Return an array that was kept for just these dependencies, or make it and keep it.

    `depends_on` is JSON and must name everything that the result depends on.
    """
    key = json.dumps(depends_on, sort_keys=True)
    path = cache_folder() / kind / f"{hashlib.sha256(key.encode()).hexdigest()}.safetensors"
    kept = _read(path, key)
    if kept is not None:
        return kept
    made = make()
    with contextlib.suppress(OSError):  # a full or read-only disk is no reason to fail
        _write(path, key, made)
    return made


def digest(*arrays: Array) -> str:
    """Return the SHA-256 of arrays with their shapes and types."""
    total = hashlib.sha256()
    for array in arrays:
        total.update(f"{array.dtype.str} {array.shape} ".encode())
        total.update(np.ascontiguousarray(array).data)
    return total.hexdigest()


def _read(path: Path, key: str) -> Array | None:
    try:
        message = from_bytes(path.read_bytes())
        array: Array = message.tensors["array"].numpy()
    except (OSError, MessageError, KeyError):
        return None
    # safetensors does not notice a flipped bit among the values.
    whole = message.words.get("key") == key and message.words.get("sha256") == digest(array)
    return array if whole else None


def _write(path: Path, key: str, array: Array) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    message = Message({"array": torch.from_numpy(array)}, words={"key": key, "sha256": digest(array)})
    # Written under a name of its own and then put in place, for other runs may read and write at the same time.
    draft = path.with_name(f".{uuid.uuid4().hex}.tmp")
    try:
        draft.write_bytes(to_bytes(message))
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
