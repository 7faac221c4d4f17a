"""A simulated network: its section of the experiment file, and the link of each site. Importable without torch."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, Field, field_validator, model_validator

from fedaccord.data.declarations import Section
from fedaccord.errors import ConfigError, did_you_mean
from fedaccord.lazy import np
from fedaccord.seeds import derive

if TYPE_CHECKING:
    from fedaccord.engines.network import Link
    from fedaccord.messages.message import SiteId

Rate = Annotated[float, Field(gt=0)]
Seconds = Annotated[float, Field(ge=0)]
SHARES = {"accuracy", "map", "o_map", "cp", "cr", "cf1", "op", "or", "of1", "hamming"}  # figures from 0 to 1


def check_metric(name: str) -> str:
    """Return the dotted name of a metric; raise ValueError if it has no scope."""
    if not re.fullmatch(r"(global|sites\.mean|sites\.median|sites\.each\..+)\.\w+", name):
        metric = name.rsplit(".", 1)[-1] or "accuracy"
        forms = [f"global.{metric}", f"sites.mean.{metric}", f"sites.median.{metric}", f"sites.each.SITE.{metric}"]
        raise ValueError(f"'{name}' does not say whose figure it is; {did_you_mean(name, forms)}")
    return name


MetricName = Annotated[str, AfterValidator(check_metric)]
"""A metric with its scope, e.g. "global.accuracy" or "sites.each.SITE.nll"."""


class SiteLink(Section):
    """Values of one site."""

    speed: Rate | None = Field(None, description="number of samples per second whose gradients it computes")
    up: Rate | None = Field(None, description="its uplink in megabits per second")
    down: Rate | None = Field(None, description="its downlink in megabits per second")
    latency: Seconds | None = Field(None, description="latency of a message in seconds, each way")


class NetworkSection(Section):
    """`[network]`: a simulated edge network; computing and transfer times are added up, without waiting for them.

    A list of two numbers is a range from which each site's value is sampled.
    """

    speed: Rate | list[Rate] = Field(1000.0, description="number of samples per second whose gradients a site computes")
    up: Rate | list[Rate] = Field(5.0, description="uplink of a site in megabits per second")
    down: Rate | list[Rate] = Field(20.0, description="downlink of a site in megabits per second")
    latency: Seconds | list[Seconds] = Field(0.05, description="latency of a message in seconds, each way")
    sites: dict[str, SiteLink] = Field(default_factory=dict, description="values that differ, by site name")
    metric: MetricName = Field("global.accuracy", description="metric whose target is timed")
    target: float | None = Field(
        None, description="value of the metric; the time at which it is first reached is reported"
    )

    @field_validator("speed", "up", "down", "latency")
    @classmethod
    def _a_range_has_two_ends(cls, value: float | list[float]) -> float | list[float]:
        if isinstance(value, list) and (len(value) != 2 or value[0] > value[1]):
            raise ValueError(f"one number for all sites, or a range such as [1, 10], not {value}")
        return value

    @model_validator(mode="after")
    def _a_target_that_can_be_reached(self) -> NetworkSection:
        name = self.metric.rpartition(".")[2]
        if self.target is not None and name in SHARES and not 0 <= self.target <= 1:
            raise ValueError(f"target is {self.target:g}, but {name} is a share from 0 to 1; write 85 % as 0.85")
        return self


def draw_links(section: NetworkSection, sites: Iterable[SiteId], seed: int) -> dict[SiteId, Link]:
    """Return every site's link.

    Values from a range are drawn from a log-uniform distribution, seeded by `seed` and the site's name.
    """
    from fedaccord.engines.network import Link  # here, because it needs torch

    names = sorted(sites)
    for name in section.sites:
        if name not in names:
            raise ConfigError(f"network.sites: there is no site '{name}'; {did_you_mean(name, names)}")
    links = {}
    for name in names:
        values = section.model_dump(include=set(SiteLink.model_fields))
        if name in section.sites:
            values |= section.sites[name].model_dump(exclude_none=True)
        links[name] = Link(**{k: float(_sample(v, derive(seed, "network", k, name))) for k, v in values.items()})
    return links


def _sample(value: float | list[float], seed: int) -> float:
    if not isinstance(value, list):
        return value
    low, high = value
    share = np.random.default_rng(seed).random()
    if low <= 0:  # a latency may start at zero, which has no logarithm: uniform
        return low + share * (high - low)
    return math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
