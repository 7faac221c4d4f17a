"""Settings that every method has, and how a setting says where it belongs; importable without torch.

A setting belongs to the sites if any part of a recipe that runs at a site reads it: objective, solver, sharing, tasks
or the initial network. All others belong to the server and never leave it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar, cast

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic.fields import FieldInfo

if TYPE_CHECKING:
    from fedaccord.labels.views.declaration import ViewDeclaration

Count = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(gt=0, le=1000)]  # a learning rate
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
Auto = Literal["auto"]
Optimiser = Literal["sgd", "adam"]
Schedule = Literal["constant", "cosine"]
Softmax = Literal["view", "full"]
Prior = Literal["off", "exact-sites", "all", "fading"]
Place = Literal["server", "site", "hostile site"]
T = TypeVar("T")
LARGEST_ADAM_LR = 0.02  # a step of Adam changes each parameter by about `lr`, whatever the size of the gradient


def _cpu_or_cuda(device: str) -> str:
    if not re.fullmatch(r"cpu|cuda(:\d+)?", device):
        raise ValueError(f'"cpu" or "cuda" is needed, not "{device}"')
    return device


Device = Annotated[str, AfterValidator(_cpu_or_cuda)]


def site_setting(default: T, description: str) -> T:
    """Declare a setting that the sites read, so that it is sent to them."""
    return Field(default, description=description, json_schema_extra={"belongs": "site"})


def server_setting(default: T, description: str) -> T:
    """Declare a setting that only the server reads, so that it never leaves the server."""
    return Field(default, description=description, json_schema_extra={"belongs": "server"})


def attack_setting(default: T, description: str) -> T:
    """Declare a setting that is sent only to the sites that are hostile in a study."""
    return Field(default, description=description, json_schema_extra={"belongs": "hostile site"})


def place_of(setting: FieldInfo) -> Place | None:
    """Return where a setting belongs; None for one that was declared without saying so."""
    extra = setting.json_schema_extra
    return cast("Place | None", extra.get("belongs")) if isinstance(extra, dict) else None


@dataclass(frozen=True)
class FigureSection:
    """A section of a run's report that draws values in `server.figures` over the rounds."""

    title: str
    reading: str  # how to read the curves
    curves: Mapping[str, str] = field(default_factory=dict)  # from names of shares to their descriptions
    per_site: str = ""  # prefix of names that end in a site's name: one curve per site
    means: Mapping[str, str] = field(default_factory=dict)  # from names of shares to a sentence with {mean}


class TrainingSettings(BaseModel):
    """Settings of every method; a subclass that only changes a default keeps description and place."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)
    report_sections: ClassVar[tuple[FigureSection, ...]] = ()
    takes_auto: ClassVar[bool] = False  # whether `lr` and `steps` may be "auto": only the sites use them
    formerly: ClassVar[Mapping[str, Any]] = {}  # settings that keep a run of version 0.1 as it began

    rounds: Count = site_setting(50, "number of communication rounds")
    epochs: Count | None = site_setting(None, "number of local epochs per round; 1 if `steps` is not given either")
    steps: Count | Auto | None = site_setting(
        None,
        "number of local mini-batch steps per round, instead of `epochs`; auto (some methods): one epoch, but at least "
        "10 and at most 200 steps",
    )
    iterations: Count | None = server_setting(
        None, "number of local mini-batch steps in the whole run, instead of `rounds`; a multiple of `steps`"
    )
    batch: Count = site_setting(32, "mini-batch size")
    lr: Rate | Auto = site_setting(
        0.05,
        "local learning rate; auto (some methods): 0.05 for SGD, 1 if the inputs are hashed texts, 0.003 for Adam",
    )
    optimiser: Optimiser = site_setting(
        "sgd", "local optimiser; adam ignores `momentum` and decouples weight decay from the loss (AdamW)"
    )
    momentum: Fraction = site_setting(0.9, "momentum of local SGD, reset in every round")
    weight_decay: NotNegative = site_setting(0.0, "weight decay of the local optimiser")
    clip: NotNegative = site_setting(0.0, "maximum gradient norm per step; 0 disables clipping")
    schedule: Schedule = site_setting("constant", "learning-rate schedule over the rounds")
    sites: Literal["all", "exact"] | list[str] = server_setting(
        "all", "sites that train: all, only those with exact labels, or a list of names"
    )
    participation: int | float = server_setting(
        1.0, "sites sampled per round: a fraction up to 1.0, or a whole number of sites"
    )
    softmax: Softmax = site_setting("view", "labels in a site's softmax: those its view knows, or all")
    prior: Prior = site_setting(
        "off",
        "sites that add the log of their own label frequencies to the logits; fading: all sites, less and less in the "
        "first half of the rounds unless they have candidate sets",
    )
    prior_count: Positive = site_setting(1.0, "pseudo-count that smooths these frequencies")
    bn: Literal["average", "pooled", "local"] = site_setting(
        "average", "batch-norm statistics: averaged, pooled exactly, or kept at the site"
    )

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Copy description and place of settings whose default alone is changed."""
        for name, setting in cls.model_fields.items():
            parents = [base.model_fields for base in cls.__bases__ if issubclass(base, TrainingSettings)]
            inherited = next((fields[name] for fields in parents if name in fields), None)
            if setting.description is None and inherited is not None:
                setting.description, setting.json_schema_extra = inherited.description, inherited.json_schema_extra

    @property
    def last_step(self) -> str:
        """What is done only after the last round, which a run that stops early never reaches; empty if nothing is."""
        return ""

    def view_problem(self, view: ViewDeclaration) -> str:
        """Return why the method cannot train a site with this view; empty if it can."""
        return ""

    @model_validator(mode="before")
    @classmethod
    def _default_to_one_epoch(cls, given: Any) -> Any:
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
            return given  # the field itself refuses a wrong value
        steps = given.get("steps")
        if steps is None and given.get("epochs") is None:
            steps = cls.model_fields["steps"].default
        if not isinstance(steps, int) or steps < 1:
            raise ValueError("iterations counts steps: give the steps per round as well, and no epochs")
        if total % steps:
            raise ValueError(f"iterations is {total}, which is not a multiple of {steps} steps per round")
        rounds = total // steps
        if given.get("rounds", rounds) != rounds:
            raise ValueError(f"{total} iterations in rounds of {steps} steps are {rounds} rounds; leave out rounds")
        return {**given, "rounds": rounds}

    @model_validator(mode="after")
    def _steps_or_epochs(self) -> TrainingSettings:
        if self.steps is not None and self.epochs is not None:
            raise ValueError("give steps or epochs, not both")
        return self

    @field_validator("lr", "steps")
    @classmethod
    def _auto_where_it_is_known(cls, value: int | float | str | None) -> int | float | str | None:
        if value == "auto" and not cls.takes_auto:
            raise ValueError('"auto" is not possible with this method; give a number')
        return value

    @field_validator("participation")
    @classmethod
    def _fraction_or_number(cls, value: int | float) -> int | float:
        if value < 1 if isinstance(value, int) else not 0 < value <= 1:
            raise ValueError(f"a fraction up to 1.0 or a whole number of sites, not {value}")
        return value

    def without_effect(self) -> list[str]:
        """Return a sentence on each setting that changes nothing in combination with the others; a run warns of them.

        A subclass adds its own sentences to those of `super()`.
        """
        found = []
        if self.optimiser == "adam" and self.is_changed("momentum"):
            found.append(f'method.momentum = {self.momentum:g} has no effect: optimiser = "adam" does not use it')
        if self.prior == "off" and self.is_changed("prior_count"):
            found.append('method.prior_count has no effect with prior = "off"')
        return found

    def is_changed(self, name: str) -> bool:
        """Return whether a setting differs from its default; complete files contain the defaults as well."""
        return bool(getattr(self, name) != type(self).model_fields[name].default)

    @property
    def reads_server_inputs(self) -> bool | None:
        """Whether the server's inputs without labels are used; None: that is not known."""
        return None

    def lr_warning(self, method: str) -> str | None:
        """Return a sentence on a learning rate that was chosen for another optimiser; None if it fits."""
        if isinstance(self.lr, str):
            return None
        usual, default = (type(self).model_fields[key].default for key in ("lr", "optimiser"))
        if self.optimiser == "adam" and self.lr > LARGEST_ADAM_LR:
            if default == "adam":
                why = f"but {method} uses Adam, with {usual:g} by default; leave method.lr out, or set method.optimiser"
            else:
                why = "a learning rate for SGD, but method.optimiser is 'adam'; set method.lr to about 0.001"
        elif self.optimiser != default and default == "adam" and self.lr == usual:
            why = f"the default of {method} for Adam, but method.optimiser is '{self.optimiser}'; set method.lr as well"
        else:
            return None
        return f"method.lr is {self.lr:g}, {why}"

    def lr_at(self, round_: int, base: float | None = None, rounds: int | None = None) -> float:
        """Return the learning rate of a round, counted from 1.

        `base` replaces `lr`, which "auto" needs; `rounds` replaces the number of rounds of the schedule.
        """
        lr = self.lr if base is None else base
        assert not isinstance(lr, str)
        share = (round_ - 1) / (rounds or self.rounds)
        return lr * 0.5 * (1 + math.cos(math.pi * share)) if self.schedule == "cosine" else lr
