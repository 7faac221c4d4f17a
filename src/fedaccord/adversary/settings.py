"""The settings of attacks and of defences against them; importable without torch."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from fedaccord.errors import refuse_unused
from fedaccord.training.settings import Count, Device

SENDING = ("sign-flip", "scaling", "alie", "ipm")  # attacks on what is sent


class AttackSettings(BaseModel):
    """What a study lets some sites do: with their data (plfa, pafa, mixup, label-flip) or with what they send."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)

    kind: Literal["plfa", "pafa", "mixup", "label-flip", "sign-flip", "scaling", "alie", "ipm"] = Field(
        description="plfa, pafa, mixup: push a group towards a label"
    )
    sites: int | float | list[str] = Field(0.3, description="hostile sites: a share, rounded down; a number; or names")
    ratio: float = Field(0.5, ge=0, le=1, description="mixup: the victim's own share")
    strength: float | None = Field(
        None, gt=0, description="sign-flip: 1, scaling: 10, ipm: 0.5; alie: deviations, by the number of sites"
    )

    @field_validator("sites")
    @classmethod
    def _share_number_or_names(cls, value: int | float | list[str]) -> int | float | list[str]:
        if isinstance(value, list):
            if not value:
                raise ValueError("at least one name; leave `attack` out for no attack")
        elif value < 1 if isinstance(value, int) else not 0 < value < 1:
            raise ValueError(f"a share below 1, a whole number of sites, or names, not {value}")
        return value

    @model_validator(mode="after")
    def _every_key_does_something(self) -> AttackSettings:
        if self.kind != "mixup":
            refuse_unused(self, ("ratio",), "unless kind is 'mixup'")
        if self.kind not in SENDING:
            refuse_unused(self, ("strength",), "unless kind is one of " + ", ".join(f"'{kind}'" for kind in SENDING))
        return self


START = 0.5  # the confidence in a site of which nothing is known
RECONSTRUCTING = ("sign", "at", "dummies", "steps", "step_size", "variation", "start")


class DefenceSettings(BaseModel):
    """How the server tells sites that treat a group unjustly from the others, and leaves them out of the model."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)

    kind: Literal["inversion", "inversion+", "group-update", "group-update+", "probe"] = Field(
        description="what a site is judged by; the first two reconstruct rows of its data"
    )
    reconstruct: bool = Field(
        False, description="inversion, inversion+: allow the server to reconstruct rows of the sites' data"
    )
    sign: Literal["printed", "corrected"] | None = Field(
        None, description="of the gradient that is matched; left out: printed for inversion, corrected for inversion+"
    )
    at: Literal["global", "local"] = Field("global", description="the model whose gradient is matched")
    dummies: Count = Field(100, description="rows that are reconstructed of each site")
    steps: Count = Field(20, description="steps of a reconstruction")
    step_size: float = Field(0.1, gt=0, description="size of these steps")
    variation: float = Field(0.0, ge=0, description="weight of the total variation over neighbouring features")
    start: Literal["common", "own"] = Field("common", description="all sites begin from the same dummies, or not")
    device: Device = Field("cpu", description='where rows are reconstructed: "cpu" or "cuda"')
    probes: Count = Field(256, description="probe: made-up rows")
    rule: Literal["two-means", "minority", "peeling"] | None = Field(
        None, description="left out: two-means for inversion, peeling for group-update+, minority for the others"
    )
    gate: float | None = Field(
        None, ge=0, description="how clearly hostile sites must stand apart; left out: 3 for group-update+, else 2.5"
    )
    most: float = Field(1 / 3, gt=0, le=0.5, description="the largest share of hostile sites")
    memory: float | None = Field(
        None,
        ge=0,
        lt=1,
        description="weight of the past in what is known of a site; left out: 0.9 for group-update+, else 0.8",
    )
    confidence: bool | None = Field(
        None, description="judge by trust over the rounds instead of a round's verdict; left out: inversion only"
    )
    rho: float = Field(0.1, gt=0, lt=1, description="confidence: weight of a verdict")
    low: float = Field(0.1, ge=0, le=1, description="confidence: falls no further from here on")
    high: float = Field(0.9, ge=0, le=1, description="confidence: rises no further from here on")
    trust: float = Field(0.5, ge=0, lt=1, description="confidence: more than this is needed to take part")
    freeze: Literal["directional", "absolute"] = Field(
        "directional", description="confidence: what is beyond low or high may come back, or never moves again"
    )

    @property
    def inverts(self) -> bool:
        """Whether the server reconstructs rows of the sites' data."""
        return self.kind.startswith("inversion")

    @property
    def verdicts_by(self) -> str:
        """The rule that makes verdicts of scores."""
        return self.rule or {"inversion": "two-means", "group-update+": "peeling"}.get(self.kind, "minority")

    @property
    def gated_at(self) -> float:
        """How clearly hostile sites must stand apart."""
        usual = 3.0 if self.kind == "group-update+" else 2.5
        return usual if self.gate is None else self.gate

    @property
    def remembers(self) -> float:
        """The weight of the past in what is known of a site."""
        usual = 0.9 if self.kind == "group-update+" else 0.8
        return usual if self.memory is None else self.memory

    @property
    def trusts(self) -> bool:
        """Whether a site is judged by the confidence in it over the rounds."""
        return self.kind == "inversion" if self.confidence is None else self.confidence

    @model_validator(mode="after")
    def _every_key_does_something(self) -> DefenceSettings:
        if not self.inverts:
            refuse_unused(self, RECONSTRUCTING, "unless kind is 'inversion' or 'inversion+'")
        if self.kind != "probe":
            refuse_unused(self, ("probes",), "unless kind is 'probe'")
        if self.verdicts_by == "two-means":
            # The score itself of group-update+ looks back.
            idle = ("gate", "most") if self.kind == "group-update+" else ("gate", "most", "memory")
            refuse_unused(self, idle, 'unless rule = "minority" or "peeling"')
        if not self.trusts:
            refuse_unused(self, ("rho", "low", "high", "trust", "freeze"), "unless confidence = true")
        return self

    @model_validator(mode="after")
    def _anyone_can_be_trusted(self) -> DefenceSettings:
        for key in ("low", "trust"):
            if getattr(self, key) >= self.high:
                raise ValueError(
                    f"{key} is {getattr(self, key):g} and high is {self.high:g}, from where on confidence rises no "
                    f"further: {key} must be below high"
                )
        return self

    @model_validator(mode="after")
    def _anyone_can_be_left_out(self) -> DefenceSettings:
        if self.trust < self.low:
            raise ValueError(
                f"trust is {self.trust:g} and low is {self.low:g}, from where on confidence falls no further: trust "
                "must not be below low"
            )
        if self.freeze == "absolute" and not self.low < START < self.high:
            raise ValueError(
                f'with freeze = "absolute" confidence, which begins at {START:g}, would never move: low must be below '
                f"and high above that, not {self.low:g} and {self.high:g}"
            )
        return self

    @model_validator(mode="after")
    def _asks_before_it_reconstructs(self) -> DefenceSettings:
        if self.inverts and not self.reconstruct:
            raise ValueError(
                f"'{self.kind}' lets the server reconstruct rows of the sites' data, an inversion attack on them; if "
                "all sites agree, set reconstruct = true, else use 'group-update+' or 'probe'"
            )
        return self
