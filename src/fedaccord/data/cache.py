"""Results of slow, deterministic computations, cached on disk between runs.

The environment variable FEDACCORD_CACHE names the folder; the default is `fedaccord` in the user's cache folder. It may
be deleted at any time. A damaged file is computed again.
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
from fedaccord.durable import atomic_write
from fedaccord.errors import MessageError
from fedaccord.messages.message import Message, from_bytes, to_bytes


def cache_folder() -> Path:
    """Return the folder of cached results."""
    named = os.environ.get("FEDACCORD_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedaccord"


def cached(kind: str, depends_on: Mapping[str, Any], make: Callable[[], Array]) -> Array:
    """Return the cached array for these dependencies, or compute and cache it.

    `depends_on` must be JSON and name everything that the result depends on.
    """
    key = json.dumps(depends_on, sort_keys=True)
    path = cache_folder() / kind / f"{hashlib.sha256(key.encode()).hexdigest()}.safetensors"
    found = _read(path, key)
    if found is not None:
        return found
    made = make()
    message = Message({"array": torch.from_numpy(made)}, words={"key": key, "sha256": digest(made)})
    with contextlib.suppress(OSError):  # a full or read-only disk must not fail the run
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path, uuid.uuid4().hex) as file:  # other runs may write it at the same time
            file.write(to_bytes(message))
    return made


def digest(*arrays: Array) -> str:
    """Return the SHA-256 digest of arrays with their shapes and types."""
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
    # safetensors does not detect a flipped bit in a value.
    intact = message.words.get("key") == key and message.words.get("sha256") == digest(array)
    return array if intact else None
