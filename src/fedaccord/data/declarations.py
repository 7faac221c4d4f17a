"""How the experiment file asks for a partition of one data set into sites; importable without torch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=1)]


class Section(BaseModel):
    """A table of the experiment file; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Iid(Section):
    """Samples dealt at random, sites of equal size."""

    kind: Literal["iid"]
    sites: Count = Field(description="number of sites")
    stratified: bool = Field(False, description="balance the classes at every site")


class Classes(Section):
    """Each site gets samples of a few classes only."""

    kind: Literal["classes"]
    sites: Count = Field(description="number of sites")
    classes: Count = Field(description="classes at each site")
    replace: bool = Field(False, description="draw with replacement")


class Quantity(Section):
    """Sites of given sizes, with the same class proportions."""

    kind: Literal["quantity"]
    sizes: list[Count] = Field(min_length=1, description="samples at each site")


class Dirichlet(Section):
    """Each class is spread over the sites by proportions from a Dirichlet distribution."""

    kind: Literal["dirichlet"]
    sites: Count = Field(description="number of sites")
    alpha: float = Field(gt=0, description="small: skewed, large: even")
    min_size: Count = Field(10, description="smallest site allowed")


class Gamma(Section):
    """Two majority classes at each site, the skew of FedMT."""

    kind: Literal["gamma"]
    sites: Count = Field(description="number of sites")
    gamma: float = Field(ge=0, lt=1, description="share of the majority classes")
    samples: Count | None = Field(None, description="samples at each site")
    low: float = Field(0.45, gt=0, description="lower end of the class priors")
    high: float = Field(0.55, gt=0, description="upper end of the class priors")
    reading: Literal["multiply", "set"] = Field("multiply", description="how a majority prior is raised")
    replace: bool = Field(False, description="draw with replacement")


class LabelSets(Section):
    """Each site knows a fixed number of labels."""

    kind: Literal["label-sets"]
    sites: Count = Field(description="number of sites")
    labels: Count = Field(description="labels each site knows")
    samples: Count | None = Field(None, description="samples at each site")
    coverage: bool = Field(True, description="make sure that every label has a site")


class Natural(Section):
    """One site for each value of a column."""

    kind: Literal["natural"]
    by: str = Field(description="name of the column or array")
    min_size: Count = Field(1, description="smallest site kept as it is")
    small: Literal["drop", "merge"] = Field("drop", description="what becomes of smaller ones")
    most: Count | None = Field(None, description="largest number of sites, largest first")


Partition = Annotated[
    Iid | Classes | Quantity | Dirichlet | Gamma | LabelSets | Natural, Field(discriminator="kind")
]
