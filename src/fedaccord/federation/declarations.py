"""The section of the experiment file for a simulated network; importable without torch."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator, model_validator

from fedaccord.data.declarations import Section

Rate = Annotated[float, Field(gt=0)]
Seconds = Annotated[float, Field(ge=0)]
SHARES = {"accuracy", "map", "o_map", "cp", "cr", "cf1", "op", "or", "of1", "hamming"}  # figures from 0 to 1


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
    metric: str = Field("global.accuracy", description="metric whose target is timed")
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
