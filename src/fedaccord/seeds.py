"""Random seeds, derived so that results do not depend on the order of sites, the workers or the engine."""

from __future__ import annotations

import hashlib


def derive(seed: int, purpose: str, *keys: str | int) -> int:
    """Return the seed of one random stream of a run, below 2**63; `keys` are for example the site and the round."""
    text = "\x1f".join([str(seed), purpose, *map(str, keys)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
