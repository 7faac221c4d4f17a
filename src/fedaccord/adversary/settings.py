"""The settings of attacks and of defences, and the selection of hostile sites; importable without torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from fedaccord.errors import ConfigError, did_you_mean, refuse_unused
from fedaccord.seeds import derive
from fedaccord.training.settings import Count, Device, TrainingSettings

SENDING = ("sign-flip", "scaling", "alie", "ipm")  # attacks on replies


class AttackSettings(BaseModel):
    """An attack by some sites of a study: on their data (plfa, pafa, mixup, label-flip) or on their replies."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)

    kind: Literal["plfa", "pafa", "mixup", "label-flip", "sign-flip", "scaling", "alie", "ipm"] = Field(
        description="attack; plfa, pafa and mixup push a group towards a label"
    )
    sites: int | float | list[str] = Field(
        0.3, description="hostile sites: a fraction, rounded down; a number; or names"
    )
    ratio: float = Field(0.5, ge=0, le=1, description="mixup: weight of the victim in the mixture")
    strength: float | None = Field(
        None,
        gt=0,
        description="factor of the attack; by default sign-flip: 1, scaling: 10, ipm: 0.5, alie: by number of sites",
    )

    @field_validator("sites")
    @classmethod
    def _check_share_number_or_names(cls, value: int | float | list[str]) -> int | float | list[str]:
        if isinstance(value, list):
            if not value:
                raise ValueError("at least one name is needed; remove `attack` for no attack")
        elif value < 1 if isinstance(value, int) else not 0 < value < 1:
            raise ValueError(f"must be a share between 0 and 1, a whole number of sites, or names, not {value}")
        return value

    @model_validator(mode="after")
    def _check_no_setting_is_unused(self) -> AttackSettings:
        if self.kind != "mixup":
            refuse_unused(self, ("ratio",), "unless kind is 'mixup'")
        if self.kind not in SENDING:
            refuse_unused(self, ("strength",), "unless kind is one of " + ", ".join(f"'{kind}'" for kind in SENDING))
        return self

    def without_effect(self) -> list[str]:
        """Return a sentence if the attack changes nothing."""
        if self.kind == "mixup" and self.ratio == 1:
            return ["method.attack.ratio = 1 keeps every victim as it is, so the attack changes nothing; lower it"]
        return []


INITIAL_CONFIDENCE = 0.5  # in a site without verdicts
RECONSTRUCTING = ("sign", "at", "dummies", "steps", "step_size", "variation", "start")


class DefenceSettings(BaseModel):
    """How the server detects sites that treat a group unfairly, and excludes them from the aggregate."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)

    kind: Literal["inversion", "inversion+", "group-update", "group-update+", "probe"] = Field(
        description="the score of a site; the first two reconstruct rows of its data"
    )
    reconstruct: bool = Field(
        False, description="inversion, inversion+: allow the server to reconstruct rows of the sites' data"
    )
    sign: Literal["printed", "corrected"] | None = Field(
        None, description="sign of the matched gradient; by default printed for inversion, corrected for inversion+"
    )
    at: Literal["global", "local"] = Field("global", description="the model whose gradient is matched")
    dummies: Count = Field(100, description="number of rows reconstructed per site")
    steps: Count = Field(20, description="number of Adam steps of a reconstruction")
    step_size: float = Field(0.1, gt=0, description="learning rate of these steps")
    variation: float = Field(0.0, ge=0, description="weight of the total variation over neighbouring features")
    start: Literal["common", "own"] = Field("common", description="initial dummies: the same for all sites, or not")
    device: Device = Field("cpu", description='device for reconstructions: "cpu" or "cuda"')
    probes: Count = Field(256, description="probe: number of synthetic rows")
    rule: Literal["two-means", "minority", "peeling"] | None = Field(
        None,
        description="turns scores into verdicts; by default two-means for inversion, peeling for group-update+, "
        "minority for the others",
    )
    gate: float | None = Field(
        None,
        ge=0,
        description="smallest ratio of the gap to the standard deviation within clusters at which sites are hostile; "
        "by default 3 for group-update+, else 2.5",
    )
    most: float = Field(1 / 3, gt=0, le=0.5, description="largest fraction of hostile sites")
    memory: float | None = Field(
        None,
        ge=0,
        lt=1,
        description="weight of earlier rounds in the running mean of a site's score; by default 0.9 for "
        "group-update+, else 0.8",
    )
    confidence: bool | None = Field(
        None, description="exclude sites by confidence over the rounds, not by verdicts; by default only for inversion"
    )
    rho: float = Field(0.1, gt=0, lt=1, description="confidence: weight of a new verdict")
    low: float = Field(0.1, ge=0, le=1, description="confidence: stops falling below this value")
    high: float = Field(0.9, ge=0, le=1, description="confidence: stops rising above this value")
    trust: float = Field(0.5, ge=0, lt=1, description="confidence: a site must exceed this value to take part")
    freeze: Literal["directional", "absolute"] = Field(
        "directional", description="confidence: beyond low or high it can recover, or never changes again"
    )

    @property
    def inverts(self) -> bool:
        """Whether the server reconstructs rows of the sites' data."""
        return self.kind.startswith("inversion")

    @property
    def verdict_rule(self) -> str:
        """The rule that turns scores into verdicts."""
        return self.rule or {"inversion": "two-means", "group-update+": "peeling"}.get(self.kind, "minority")

    @property
    def gate_ratio(self) -> float:
        """The smallest ratio at which sites are hostile: gap between clusters over the deviation within."""
        default = 3.0 if self.kind == "group-update+" else 2.5
        return default if self.gate is None else self.gate

    @property
    def memory_weight(self) -> float:
        """The weight of earlier rounds in the running mean of a site's score."""
        default = 0.9 if self.kind == "group-update+" else 0.8
        return default if self.memory is None else self.memory

    @property
    def uses_confidence(self) -> bool:
        """Whether sites are excluded by the confidence in them over the rounds."""
        return self.kind == "inversion" if self.confidence is None else self.confidence

    @model_validator(mode="after")
    def _check_no_setting_is_unused(self) -> DefenceSettings:
        if not self.inverts:
            refuse_unused(self, RECONSTRUCTING, "unless kind is 'inversion' or 'inversion+'")
        if self.kind != "probe":
            refuse_unused(self, ("probes",), "unless kind is 'probe'")
        if self.verdict_rule == "two-means":
            # The score of group-update+ itself averages over rounds.
            unused = ("gate", "most") if self.kind == "group-update+" else ("gate", "most", "memory")
            refuse_unused(self, unused, 'unless rule = "minority" or "peeling"')
        if not self.uses_confidence:
            refuse_unused(self, ("rho", "low", "high", "trust", "freeze"), "unless confidence = true")
        return self

    @model_validator(mode="after")
    def _check_thresholds_of_confidence(self) -> DefenceSettings:
        for key in ("low", "trust"):
            if getattr(self, key) >= self.high:
                high = f"high, above which confidence stops rising, is {self.high:g}"
                raise ValueError(f"{key} is {getattr(self, key):g} and {high}: {key} must be below high")
        if self.trust < self.low:
            low = f"low, below which confidence stops falling, is {self.low:g}"
            raise ValueError(f"trust is {self.trust:g} and {low}: trust must not be below low")
        if self.freeze == "absolute" and not self.low < INITIAL_CONFIDENCE < self.high:
            raise ValueError(
                f'with freeze = "absolute" confidence, which starts at {INITIAL_CONFIDENCE:g}, would never change: low '
                f"must be below and high above that, not {self.low:g} and {self.high:g}"
            )
        return self

    @model_validator(mode="after")
    def _check_reconstruction_is_allowed(self) -> DefenceSettings:
        if self.inverts and not self.reconstruct:
            raise ValueError(
                f"'{self.kind}' reconstructs rows of the sites' data at the server, which is an inversion attack; if "
                "all sites agree, set reconstruct = true, otherwise use 'group-update+' or 'probe'"
            )
        return self


def share_of(share: float, sites: int) -> int:
    """Return a share of `sites` sites, rounded down."""
    # The epsilon corrects products such as 0.29 * 100, which is just below 29 in floating point.
    return math.floor(share * sites + 1e-9)


def attack_of(settings: TrainingSettings) -> AttackSettings | None:
    """Return the attack of a study, or None; a method outside FedAccord may use the name for a setting of its own."""
    attack = getattr(settings, "attack", None)
    return attack if isinstance(attack, AttackSettings) else None


def hostile_sites(
    asked: int | float | Sequence[str], sites: Sequence[str], seed: int, able: Sequence[str] | None = None
) -> tuple[str, ...]:
    """Return the hostile sites: the named ones, or a number or share of the sites, drawn with the run's seed.

    A share is rounded down, to at least one site. Only sites in `able`, which can carry out the attack, are drawn.
    """
    import numpy as np  # here, because settings are read without it

    able = sites if able is None else able
    if not isinstance(asked, int | float):
        for name in asked:
            if name not in sites:
                raise ConfigError(f"method.attack.sites: there is no site '{name}'; {did_you_mean(name, sites)}")
        return tuple(sorted(asked))
    number = asked if isinstance(asked, int) else max(1, share_of(asked, len(sites)))
    wanted = f"method.attack.sites asks for {number} hostile sites, but only"
    if number > len(sites):
        raise ConfigError(f"{wanted} {len(sites)} may train")
    if number > len(able):
        raise ConfigError(f"{wanted} {len(able)} of {len(sites)} know the target label of the attack and another label")
    rng = np.random.default_rng(derive(seed, "hostile"))
    return tuple(sorted(sorted(able)[i] for i in rng.choice(len(able), number, replace=False)))
