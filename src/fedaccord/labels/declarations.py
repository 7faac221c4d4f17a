"""How the experiment file declares a site's view, and how a study makes such annotations from true labels."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from fedaccord.errors import refuse_unused

Names = Annotated[list[str], Field(min_length=1)]


class _View(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)


class ExactView(_View):
    """One true label for each sample."""

    kind: Literal["exact"]
    known: Names | Literal["own"] | None = Field(
        None, description='the labels this site knows; "own": those that occur there; left out: all'
    )


DRAWN_BY = {"uniform": ("q",), "class": ("following", "other"), "instance": ("rho", "normalise", "temperature")}
BOUNDS = ("min_size", "drop_full")  # of drawn sets


class CandidatesView(_View):
    """A set of labels that holds the true one."""

    kind: Literal["candidates"]
    known: Names | Literal["own"] | None = Field(
        None, description='the labels this site knows; "own": those that occur there; left out: all'
    )
    generate: Literal["uniform", "superset", "class", "instance"] | None = Field(
        None, description="make the sets from true labels: a study; left out: the data has them"
    )
    q: float = Field(0.3, ge=0, le=1, description="uniform: probability of each wrong label")
    following: float = Field(0.5, ge=0, le=1, description="class: probability of the next class")
    other: float = Field(0.1, ge=0, le=1, description="class: probability of every other class")
    rho: float = Field(0.4, ge=0, le=1, description="instance: size of the sets")
    normalise: Literal["mean", "none"] = Field("mean", description="instance: rule for the probabilities")
    temperature: float = Field(
        7.0, gt=0, description="instance: evens out what the clean network confuses; 1: as it predicts"
    )
    min_size: int = Field(1, ge=1, description="smallest set")
    drop_full: bool = Field(True, description="draw again when a set holds every label")

    @model_validator(mode="after")
    def _every_key_does_something(self) -> CandidatesView:
        if self.generate is None:
            refuse_unused(
                self, (*(key for keys in DRAWN_BY.values() for key in keys), *BOUNDS), "unless generate is set"
            )
        for kind, keys in DRAWN_BY.items():
            if kind != self.generate:
                refuse_unused(self, keys, f'unless generate = "{kind}"')
        if self.generate == "superset":
            refuse_unused(self, BOUNDS, "on sets of which all are equally likely")
        return self


class CoarseView(_View):
    """A label of another criterion."""

    kind: Literal["coarse"]
    correspondence: Annotated[dict[str, list[str] | dict[str, float]], Field(min_length=1)] | str | None = Field(
        None,
        description="coarse names and the classes (or probabilities) behind each; or a grouping the data set names",
    )
    names: Names | None = Field(
        None, description="coarse names alone, where nobody knows what they stand for: fedmt finds out"
    )

    @model_validator(mode="after")
    def _one_of_both(self) -> CoarseView:
        if (self.correspondence is None) == (self.names is None):
            given = "neither is" if self.names is None else "both are"
            raise ValueError(f"a coarse view needs 'correspondence', or 'names' alone; {given} given")
        return self


class TagsView(_View):
    """Any number of labels at once."""

    kind: Literal["tags"]
    known: Names | None = Field(None, description="the tags this site knows; left out: all")


class UnlabelledView(_View):
    """No annotations."""

    kind: Literal["unlabelled"]


def with_kind(value: Any) -> Any:
    """Read a view that names no kind as an exact one."""
    return {"kind": "exact", **value} if isinstance(value, dict) and "kind" not in value else value


AnyView = ExactView | CandidatesView | CoarseView | TagsView | UnlabelledView
ViewConfig = Annotated[
    AnyView,
    Field(discriminator="kind"),
    BeforeValidator(with_kind),
]


def exact_view() -> ExactView:
    """Return the view of a site that labels everything exactly."""
    return ExactView(kind="exact")
