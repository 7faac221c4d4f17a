"""What every recipe can be told about training; importable without torch, so a wrong setting is found at once."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

Count = Annotated[int, Field(ge=1)]


def _cpu_or_cuda(device: str) -> str:
    if not re.fullmatch(r"cpu|cuda(:\d+)?", device):
        raise ValueError(f'"cpu" or "cuda" is needed, not "{device}"')
    return device


Device = Annotated[str, AfterValidator(_cpu_or_cuda)]


class TrainingSettings(BaseModel):
    """Settings common to all methods."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)

    rounds: Count = Field(50, description="communication rounds")
    epochs: Count | None = Field(None, description="passes over a site's data in each round; 1 if no steps are given")
    steps: Count | None = Field(None, description="mini-batch steps of a site in each round, instead of epochs")
    iterations: Count | None = Field(
        None, description="mini-batch steps of a site in the whole run, instead of rounds; a multiple of steps"
    )
    batch: Count = Field(32, description="samples in a mini-batch")
    lr: float = Field(0.05, gt=0, le=1000, description="learning rate of the sites")
    optimiser: Literal["sgd", "adam"] = Field(
        "sgd", description="how sites step; adam: without momentum of its own setting, weight decay apart from the loss"
    )
    momentum: float = Field(0.9, ge=0, lt=1, description="momentum of the sites' SGD, fresh in every round")
    weight_decay: float = Field(0.0, ge=0, description="weight decay of the sites' SGD")
    clip: float = Field(0.0, ge=0, description="largest norm of a step's gradient; 0 means no clipping")
    schedule: Literal["constant", "cosine"] = Field("constant", description="learning rate over the rounds")
    sites: Literal["all", "exact"] | list[str] = Field(
        "all", description="which sites train: all, only the exactly labelled ones, or a list of names"
    )
    participation: int | float = Field(
        1.0, description="sites drawn per round: a fraction up to 1.0, or a whole number of sites"
    )
    softmax: Literal["view", "full"] = Field(
        "view", description="over which labels a site's softmax runs: those its view knows, or all"
    )
    prior: Literal["off", "exact-sites", "all"] = Field(
        "off", description="which sites add the log of their own label frequencies to the logits"
    )
    prior_count: float = Field(1.0, gt=0, description="pseudo-count that smooths a site's label frequencies")
    bn: Literal["average", "pooled", "local"] = Field(
        "average", description="batch-norm statistics: averaged, exactly pooled, or kept at the site"
    )

    @property
    def last_step(self) -> str:
        """Say what is done after the last round only, which a run that ends earlier never comes to; empty: nothing."""
        return ""

    @model_validator(mode="before")
    @classmethod
    def _one_epoch_unless_told(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        if given.get("steps") is not None:
            return {"epochs": None, **given}  # instead of a method's own number of epochs
        if given.get("epochs") is not None:
            return {**given, "steps": None}  # instead of a method's own number of steps
        steps = cls.model_fields["steps"].default
        epochs = cls.model_fields["epochs"].default or 1
        return {**given, "steps": steps, "epochs": epochs if steps is None else None}

    @model_validator(mode="before")
    @classmethod
    def _rounds_of_iterations(cls, given: Any) -> Any:
        total = given.get("iterations") if isinstance(given, dict) else None
        if not isinstance(total, int) or total < 1:
            return given  # a wrong value is told by the field's own check
        steps = given.get("steps")
        if steps is None and given.get("epochs") is None:
            steps = cls.model_fields["steps"].default
        if not isinstance(steps, int) or steps < 1:
            raise ValueError("iterations counts steps, so give the steps of a round as well, and no epochs")
        if total % steps:
            raise ValueError(f"iterations is {total}, which {steps} steps in each round do not come out at")
        rounds = total // steps
        if given.get("rounds", rounds) != rounds:
            raise ValueError(f"{total} iterations in rounds of {steps} steps are {rounds} rounds; leave out rounds")
        return {**given, "rounds": rounds}

    @model_validator(mode="after")
    def _steps_or_epochs(self) -> TrainingSettings:
        if self.steps is not None and self.epochs is not None:
            raise ValueError("give steps or epochs, not both")
        return self

    @field_validator("participation")
    @classmethod
    def _fraction_or_number(cls, value: int | float) -> int | float:
        if value < 1 if isinstance(value, int) else not 0 < value <= 1:
            raise ValueError(f"a fraction up to 1.0 or a whole number of sites, not {value}")
        return value

    def lr_at(self, round_: int) -> float:
        """Return the learning rate of a round, counted from 1."""
        if self.schedule == "cosine":
            return self.lr * 0.5 * (1 + math.cos(math.pi * (round_ - 1) / self.rounds))
        return self.lr
