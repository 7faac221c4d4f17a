"""The speed and the link of each site in a simulated network."""

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
    """Return every site's link.

    Values from a range are drawn from a log-uniform distribution, seeded by `seed` and the site's name.
    """
    names = sorted(sites)
    for name in section.sites:
        if name not in names:
            raise ConfigError(f"network.sites: there is no site '{name}'; {did_you_mean(name, names)}")
    return {name: _link(section, section.sites.get(name, SiteLink()), name, seed) for name in names}


def _link(section: NetworkSection, override: SiteLink, name: SiteId, seed: int) -> Link:
    values = {}
    for key in ("speed", "up", "down", "latency"):
        common, given = getattr(section, key), getattr(override, key)
        values[key] = float(_sample(common, derive(seed, "network", key, name)) if given is None else given)
    return Link(**values)


def _sample(value: float | list[float], seed: int) -> float:
    if not isinstance(value, list):
        return value
    low, high = value
    share = np.random.default_rng(seed).random()
    if low <= 0:  # a latency may start at zero, which has no logarithm: uniform
        return low + share * (high - low)
    return math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
