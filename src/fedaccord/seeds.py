"""Every random stream of a run comes from here, so that order, workers and engine cannot change a result."""

from __future__ import annotations

import hashlib


def derive(seed: int, purpose: str, *keys: str | int) -> int:
    """Return the seed of the stream for one purpose (and site, and round) of a run: a number below 2**63."""
    text = "\x1f".join([str(seed), purpose, *map(str, keys)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
