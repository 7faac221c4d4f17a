"""What an experiment asks of its data: the data sections of its file, and requests made of them; without torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, Field, field_validator, model_validator

from fedaccord.data.registry import locate
from fedaccord.errors import refuse_unused
from fedaccord.labels.synonyms import Renaming, Synonyms, check_synonyms, renaming
from fedaccord.labels.views import ViewDeclaration
from fedaccord.labels.views.exact import ExactView
from fedaccord.labels.views.registry import ViewConfig

if TYPE_CHECKING:
    from fedaccord.data.dataset import Array, Dataset

Count = Annotated[int, Field(ge=1)]
MISSING_WORDS = ("", "?", "NA", "N/A", "nan", "NaN", "null", "None")
Standardise = Literal["federation", "site", "none"]  # whose moments numbers are standardised by


class Section(BaseModel, extra="forbid", frozen=True, strict=True, defer_build=True):
    """A table of the experiment file; unknown keys are errors."""


class Iid(Section):
    """Samples are assigned at random to sites of equal size."""

    kind: Literal["iid"]
    sites: Count = Field(description="number of sites")
    stratified: bool = Field(False, description="balance the classes at every site")


class Classes(Section):
    """Each site has samples of a few classes only."""

    kind: Literal["classes"]
    sites: Count = Field(description="number of sites")
    classes: Count = Field(description="number of classes at each site")
    replace: bool = Field(False, description="draw with replacement")


class Quantity(Section):
    """Sites of given sizes, with the same class proportions."""

    kind: Literal["quantity"]
    sizes: list[Count] = Field(min_length=1, description="number of samples at each site")


class Dirichlet(Section):
    """Each class is divided among the sites by proportions from a Dirichlet distribution."""

    kind: Literal["dirichlet"]
    sites: Count = Field(description="number of sites")
    alpha: float = Field(gt=0, description="concentration of the distribution; small values are skewed")
    min_size: Count = Field(10, description="smallest allowed number of samples at a site")


class Gamma(Section):
    """Each site has two majority classes, as in FedMT."""

    kind: Literal["gamma"]
    sites: Count = Field(description="number of sites")
    gamma: float = Field(ge=0, lt=1, description="fraction of the majority classes")
    samples: Count | None = Field(None, description="number of samples at each site")
    low: float = Field(0.45, gt=0, description="lower bound of the class priors")
    high: float = Field(0.55, gt=0, description="upper bound of the class priors")
    reading: Literal["multiply", "set"] = Field("multiply", description="how the prior of a majority class is raised")
    replace: bool = Field(False, description="draw with replacement")
    level: Literal["coarse", "fine"] = Field("coarse", description="classes to skew: coarse if there are any, or fine")


class LabelSets(Section):
    """Each site knows a fixed number of labels."""

    kind: Literal["label-sets"]
    sites: Count = Field(description="number of sites")
    labels: Count = Field(description="number of labels that each site knows")
    samples: Count | None = Field(None, description="number of samples at each site")
    coverage: bool = Field(True, description="ensure that every label is known to a site")


class Natural(Section):
    """One site for each value of a column."""

    kind: Literal["natural"]
    by: str = Field(description="name of the column or array")
    min_size: Count = Field(1, description="smallest number of samples of a site")
    small: Literal["drop", "merge"] = Field("drop", description="what happens to smaller sites")
    most: Count | None = Field(None, description="maximum number of sites; the largest are kept")


Partition = Annotated[Iid | Classes | Quantity | Dirichlet | Gamma | LabelSets | Natural, Field(discriminator="kind")]


class Sensitive(Section):
    """The sensitive attribute of a data set, and how uncertain a study makes it at the sites."""

    column: str = Field(description="column of the data set, such as race")
    flips: Literal["uniform", "cyclic"] = Field("uniform", description="how wrong groups are added to the true one")
    q: float = Field(0.0, ge=0, le=1, description="uniform: probability of each wrong group; 0: groups are certain")
    following: float = Field(0.5, ge=0, le=1, description="cyclic: probability of the next group")
    other: float = Field(0.1, ge=0, le=1, description="cyclic: probability of every other group")

    @model_validator(mode="after")
    def _every_key_does_something(self) -> Sensitive:
        if self.flips == "cyclic":
            refuse_unused(self, ("q",), 'unless flips = "uniform"')
        else:
            refuse_unused(self, ("following", "other"), 'unless flips = "cyclic"')
        return self


class Fairness(Section):
    """`[fairness]`: the group whose treatment is measured, attacked or defended; needs a sensitive attribute."""

    group: str = Field(description="the group in question, a value of the sensitive attribute")
    label: str = Field(description="the unfavourable label, such as High risk")
    input: bool = Field(True, description="append a row's candidate groups to its features")
    normalise: bool = Field(False, description="the features of a row's candidates sum to 1; false: each is 1")

    @model_validator(mode="after")
    def _every_key_does_something(self) -> Fairness:
        if not self.input:
            refuse_unused(self, ("normalise",), "unless input = true")
        return self


class PerClass(Section):
    """Labelled samples that the server takes out of `[data]` before it is split."""

    per_class: Count = Field(description="number of samples per class")
    reserve: Count | None = Field(None, description="samples per class that no site gets; left out: `per_class`")

    @model_validator(mode="after")
    def _reserves_enough(self) -> PerClass:
        if self.reserve is not None and self.reserve < self.per_class:
            raise ValueError(f"reserve is {self.reserve}, but per_class asks for {self.per_class}")
        return self


class Features(Section):
    """`[features]`: how columns of the sites' tables are turned into features."""

    numbers: list[str] | dict[str, list[float]] = Field(
        default_factory=list,
        description="numeric columns; as a table age = [mean, deviation], so that sites report no moments",
    )
    categories: list[str] | dict[str, list[str]] = Field(
        default_factory=list,
        description='categorical columns; as a table sex = ["f", "m"], so that sites report no values',
    )
    text: list[str] = Field(default_factory=list, description="free-text columns, hashed into features")
    text_width: Count = Field(256, description="number of features per text column")
    ignore: list[str] = Field(default_factory=list, description="columns that are not features")
    missing: list[str] = Field(
        default_factory=lambda: list(MISSING_WORDS),
        description="cells that stand for a missing value in columns of features; for labels see labels.missing",
    )
    synonyms: dict[str, dict[str, list[str]]] = Field(
        default_factory=dict, description='words that mean the same, by column: sex = { male = ["M", "m"] }'
    )
    header: list[str] | None = Field(None, description="column names, for files without a header line")
    standardise: Standardise = Field(
        "federation",
        description="standardise numbers by the moments of all sites, arrays also by each site's own, or not; images "
        "never are",
    )
    image_size: Count = Field(32, description="width and height in pixels to which images are scaled")
    image_colour: bool = Field(True, description="three colour channels; false: one grey channel")

    @model_validator(mode="after")
    def _each_column_once(self) -> Features:
        named = [*self.asked(), *self.ignore]
        for name in named:
            if named.count(name) > 1:
                raise ValueError(f"the column '{name}' is named twice; it can be of one kind only")
        for name, given in self.given_numbers().items():
            if len(given) != 2 or not given[1] > 0:
                raise ValueError(f"numbers.{name} is {given}, but should be a mean and a deviation above 0: [50, 10]")
        return self

    @model_validator(mode="after")
    def _every_word_has_one_name(self) -> Features:
        for column, words in self.synonyms.items():
            try:
                check_synonyms(words, self.given_categories().get(column), "values")
            except ValueError as error:
                raise ValueError(f"column '{column}': {error}") from None
        return self

    def asked(self) -> list[str]:
        """Return the columns named as features; empty if all columns are features."""
        return [*self.numbers, *self.categories, *self.text]

    def given_numbers(self) -> dict[str, list[float]]:
        """Return the number columns with moments in the file."""
        return self.numbers if isinstance(self.numbers, dict) else {}

    def given_categories(self) -> dict[str, list[str]]:
        """Return the category columns with values in the file."""
        return self.categories if isinstance(self.categories, dict) else {}


class Reading(Section):
    """`read`: how a table is written, where that is not recognised or not recognised correctly."""

    separator: str | None = Field(None, min_length=1, max_length=1, description="character between cells")
    decimal: Literal[".", ","] | None = Field(None, description="decimal mark of numbers")
    thousands: Literal[",", ".", "'", " ", ""] | None = Field(None, description="mark that groups thousands")
    quote: Literal['"', "'", ""] | None = Field(None, description="mark around cells; empty: none")
    encoding: str | None = Field(None, description="encoding of the text, such as cp1252")
    sheet: str | None = Field(None, min_length=1, description="sheet of an .xlsx file; left out: the first")

    @model_validator(mode="after")
    def _marks_differ(self) -> Reading:
        if self.decimal is not None and self.decimal == self.thousands:
            raise ValueError(f"decimal and thousands are both '{self.decimal}'")
        if self.separator is not None and self.separator in ('"', "\n", "\r", self.quote):
            raise ValueError(f"separator is {self.separator!r}, which cannot separate cells")
        return self

    @field_validator("encoding")
    @classmethod
    def _is_known(cls, name: str | None) -> str | None:
        try:
            "a".encode(name or "utf-8")
        except (LookupError, ValueError):
            some = "some are utf-8, utf-16, cp1252, latin-1, cp1250"
            raise ValueError(f"Python knows no text encoding '{name}'; {some}") from None
        return name

    def given(self) -> list[str]:
        """Return the keys that are given."""
        return [key for key, value in self if value is not None]


class SiteSection(Section):
    """`[[sites]]`: a site with its own file."""

    name: str = Field(min_length=1, description="the site's name")
    data: str = Field(description="its table, .npz file or image folder, relative to this file's folder")
    label: str | list[str] | None = Field(
        None, description="label column of a table; for tags also a list of 0/1 columns"
    )
    sensitive: str | None = Field(None, description="column of sensitive groups; `a|b` for candidates")
    header: list[str] | None = Field(None, description="column names, for a file without a header line")
    read: Reading | None = Field(None, description="how its table is written; keys left out are recognised")
    view: ViewConfig = Field(default_factory=ExactView, description="how this site observes labels")
    synonyms: dict[str, list[str]] = Field(
        default_factory=dict,
        description="this site's words for labels: name = [words]; applied before the synonyms of [labels]",
    )
    test: float = Field(0.2, ge=0, lt=1, description="fraction of its samples held out as its test set")
    joins: Count | None = Field(None, description="first round in which it takes part; left out: the first of the run")
    leaves: Count | None = Field(None, description="first round in which it no longer takes part; left out: it stays")

    @model_validator(mode="after")
    def _joins_before_it_leaves(self) -> SiteSection:
        check_stay(self.name, self.joins, self.leaves)
        return self

    @model_validator(mode="after")
    def _every_word_has_one_name(self) -> SiteSection:
        check_synonyms(self.synonyms, self.view.own_names)
        return self


def check_stay(site: str, joins: int | None, leaves: int | None) -> None:
    """Raise ValueError for a site that leaves before it joins."""
    if leaves is not None and leaves <= (joins or 1):
        raise ValueError(f"site '{site}' leaves in round {leaves}, but it would join in round {joins or 1} only")


@dataclass(frozen=True)
class Split:
    """How one data set becomes a federation: `[data]`, `[labels]` and `[server]`."""

    partition: Mapping[str, Any]
    view: ViewDeclaration = field(default_factory=ExactView)
    views: Mapping[str, ViewDeclaration] = field(default_factory=dict)  # other views, by site name
    names: Sequence[str] | None = None
    classes: Sequence[str] | None = None
    seed: int = 0
    test: float = 0.2  # each site's share
    samples: int | None = None
    test_samples: int | None = None
    synonyms: Synonyms = field(default_factory=dict)  # of the data set's labels
    standardise: Standardise = "federation"
    clean: Callable[[Dataset], Array] | None = None  # predictions of a model trained on true classes
    test_file: Path | None = None  # of the server
    unlabelled: int | Path | None = None  # inputs that the server takes, or its file
    labelled: PerClass | Path | None = None  # samples that the server takes, or its file
    unseen: int | Sequence[str] | None = None  # sites that do not train and are the server's test

    def scales(self, dataset: Dataset) -> bool:
        """Return whether the features of a data set are standardised: pixels and hashed texts never are."""
        return self.standardise != "none" and not dataset.images and not dataset.scaled


@dataclass(frozen=True)
class SiteFiles:
    """How sites with their own files become a federation: `[[sites]]`, `[features]`, `[labels]` and `[server]`."""

    sections: Sequence[SiteSection]
    features: Features = field(default_factory=Features)
    base: Path = Path()  # relative paths start here
    classes: Sequence[str] | None = None
    test_file: Path | None = None  # of the server
    test_label: str | None = None  # column of true classes in the server's files
    seed: int = 0
    labelled: Path | None = None  # the server's file of labelled samples
    unlabelled: Path | None = None  # the server's file of inputs without labels
    groups_as_input: bool = False  # candidate groups are the last features of a table
    normalise_groups: bool = False  # each candidate counts as its share of 1
    server_read: Reading | None = None  # how the server's tables are written
    synonyms: Synonyms = field(default_factory=dict)  # of the federation's labels
    missing: Sequence[str] = ()  # words in a label column that mean: not annotated

    def by_name(self) -> dict[str, SiteSection]:
        """Return the sections with views in the federation's names, sorted so that the file's order has no effect."""
        sections = sorted(self.sections, key=lambda section: section.name)
        return {s.name: s.model_copy(update={"view": s.view.renamed(self._label_names(s))}) for s in sections}

    def names(self, section: SiteSection) -> Renaming:
        """Return the names of a site's words; the federation's synonyms are not for names that are the site's own."""
        own = section.view.own_names is not None
        return renaming(section.synonyms) if own else renaming(section.synonyms, self.synonyms)

    def _label_names(self, section: SiteSection) -> Renaming:
        """Return the names of labels in a site's view; its own synonyms are not for them if its names are its own."""
        return renaming(self.synonyms) if section.view.own_names is not None else self.names(section)

    def path(self, section: SiteSection) -> Path:
        """Return the path of a site's file or folder."""
        return locate(section.data, self.base)
