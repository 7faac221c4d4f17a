"""Which computer and link each site of a simulated network has."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from fedaccord.engines.network import Link
from fedaccord.errors import ConfigError, did_you_mean
from fedaccord.federation.declarations import NetworkSection, SiteLink
from fedaccord.messages.message import SiteId
from fedaccord.seeds import derive


def draw_links(section: NetworkSection, sites: Iterable[SiteId], seed: int) -> dict[SiteId, Link]:
    """Return every site's link; values from a range are drawn by the seed and the site's name, evenly by factors."""
    names = sorted(sites)
    for name in section.sites:
        if name not in names:
            raise ConfigError(f"network.sites: there is no site '{name}'; {did_you_mean(name, names)}")
    return {name: _link(section, section.sites.get(name, SiteLink()), name, seed) for name in names}


def _link(section: NetworkSection, own: SiteLink, name: SiteId, seed: int) -> Link:
    values = {}
    for key in ("speed", "up", "down", "latency"):
        asked, given = getattr(section, key), getattr(own, key)
        values[key] = float(_drawn(asked, derive(seed, "network", key, name)) if given is None else given)
    return Link(**values)


def _drawn(asked: float | list[float], seed: int) -> float:
    if not isinstance(asked, list):
        return asked
    low, high = asked
    share = np.random.default_rng(seed).random()
    if low <= 0:  # a latency may begin at zero, which has no factors
        return low + share * (high - low)
    return math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
