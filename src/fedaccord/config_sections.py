"""The sections of the experiment file, validated; importable without torch."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from fedaccord.data.declarations import (
    Count,
    Fairness,
    Features,
    Partition,
    PerClass,
    Reading,
    Section,
    Sensitive,
    SiteSection,
    Standardise,
    check_stay,
)
from fedaccord.federation.admission import AdmitSection
from fedaccord.federation.membership import Membership
from fedaccord.federation.network import MetricName, NetworkSection
from fedaccord.labels.synonyms import check_own_synonyms, check_synonyms
from fedaccord.labels.views.exact import ExactView
from fedaccord.labels.views.registry import ViewConfig
from fedaccord.messages.names import POOL
from fedaccord.methods.registry import method_entry
from fedaccord.training.settings import Device, TrainingSettings

_ONE_SOURCE = "use [data] to split one data set, or [[sites]] for sites with their own files"
SiteName = Annotated[str, Field(min_length=1)]


class Labels(Section):
    """`[labels]`: the federation's classes or tags, by name."""

    classes: list[str] | None = Field(
        None, min_length=1, description="names of the labels; left out: taken from the data"
    )
    synonyms: dict[str, list[str]] = Field(
        default_factory=dict, description="words in the data that stand for a label: name = [words]"
    )
    missing: list[str] = Field(
        default_factory=list, description='words in label columns of tables that mean "not annotated"; empty cells do'
    )

    @field_validator("classes")
    @classmethod
    def _no_name_twice(cls, names: list[str] | None) -> list[str] | None:
        for name in names or []:
            if (names or []).count(name) > 1:
                raise ValueError(f"the label '{name}' is named twice")
        return names

    @model_validator(mode="after")
    def _every_word_has_one_meaning(self) -> Labels:
        check_synonyms(self.synonyms, self.classes)
        listed = [*(self.classes or []), *self.synonyms, *(word for words in self.synonyms.values() for word in words)]
        for word in self.missing:
            if word in listed:
                why = "so it cannot mean 'not annotated'"
                raise ValueError(f"missing: '{word}' is a label or one of its synonyms, {why}")
        return self


class Data(Section):
    """`[data]`: one data set, split into sites."""

    dataset: str = Field(description="a name of `fedaccord datasets`, or an .npz file")
    partition: Partition = Field(description="how samples are assigned to sites")
    view: ViewConfig = Field(default_factory=ExactView, description="how every site observes labels")
    views: dict[str, ViewConfig] = Field(default_factory=dict, description="views that differ, by site name")
    names: list[SiteName] | None = Field(None, description="names of the sites, in the partition's order")
    test: float = Field(0.2, ge=0, lt=1, description="fraction of each site's samples held out as its test set")
    samples: Count | None = Field(
        None, description="number of training samples to use, sampled at random; left out: all"
    )
    test_samples: Count | None = Field(None, description="number of published test samples to use; left out: all")
    standardise: Standardise = Field(
        "federation",
        description="standardise features by the moments of all sites or by each site's own, or not; images and hashed "
        "texts never are",
    )
    sensitive: Sensitive | None = Field(None, description="sensitive attribute, for `check` and [fairness]")
    joins: dict[str, Count] = Field(
        default_factory=dict, description="first round in which a site takes part, by site name"
    )
    leaves: dict[str, Count] = Field(
        default_factory=dict, description="first round in which a site no longer takes part, by site name"
    )

    @model_validator(mode="after")
    def _joins_before_it_leaves(self) -> Data:
        for site, leaves in self.leaves.items():
            check_stay(site, self.joins.get(site), leaves)
        return self


class ServerSection(Section):
    """`[server]`: what the server holds."""

    test: str | None = Field(None, description="file of test data with true classes, in the format of the sites' files")
    label: str | None = Field(
        None, description="its column of true classes; left out: the label column of the exact sites"
    )
    read: Reading | None = Field(None, description="how its tables are written; keys left out are recognised")
    unseen: Count | Annotated[list[SiteName], Field(min_length=1)] | None = Field(
        None, description="sites of [data] that do not train but serve as the server's test set: a number, or names"
    )
    unlabelled: Count | str | None = Field(
        None,
        description="inputs without labels that the server tunes or scores models on: a file like `test`, which needs "
        "no label column, or a number of samples taken from [data] (with `unseen`, from the sites that train)",
    )
    labelled: PerClass | str | None = Field(
        None, description="labelled samples that the server trains on: taken from [data], or a file like `test`"
    )

    @field_validator("unlabelled", mode="before")
    @classmethod
    def _refuse_no_inputs(cls, given: Any) -> Any:
        if given in (0, ""):
            raise ValueError(f"{given!r} gives the server no inputs; leave the key out")
        return given


class Stop(Section):
    """`[stop]`: early stopping."""

    metric: MetricName | None = Field(
        None, description='metric to monitor, such as "sites.mean.accuracy", "sites.median.nll" or "global.nll"'
    )
    patience: Count = Field(10, description="number of evaluations without improvement before the run stops")
    min_delta: float = Field(0.0, ge=0, description="smallest change that counts as an improvement")
    seconds: float | None = Field(None, gt=0, description="time budget of the whole run in seconds")

    def without_effect(self) -> list[str]:
        """Return a sentence on each key that needs a metric, if none is given."""
        default = Stop()
        changed = [key for key in ("patience", "min_delta") if getattr(self, key) != getattr(default, key)]
        return [f"stop.{key} has no effect without stop.metric" for key in changed if self.metric is None]


class Model(BaseModel):
    """`[model]`: the network; all other keys are settings of the model."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str = Field("mlp", description='a name, or "package.module:factory"')

    @property
    def settings(self) -> dict[str, Any]:
        """The model's own settings."""
        return dict(self.model_extra or {})


class Run(Section):
    """`[run]`: how the run is executed; these keys change the model only by rounding."""

    engine: Literal["embedded", "flower"] = Field(
        "embedded",
        description="engine that runs the sites: FedAccord's own processes, or Flower's simulation (an extra)",
    )
    workers: int | None = Field(
        None, ge=0, description="number of worker processes; 0: run in this process; left out: one per core"
    )
    device: Device = Field("cpu", description='device of sites and server: "cpu", or "cuda" (with workers = 0)')
    batched: Literal["auto", "always", "whole", "never"] = Field(
        "auto",
        description="train several sites with small models as one batch: from 20 sites (auto), from 3 sites (always), "
        "from 3 sites in as few batches as possible (whole, faster in a single process), or never",
    )
    deadline: float | None = Field(None, gt=0, description="maximum time in seconds that a round waits for its sites")
    evaluate_every: int = Field(1, ge=0, description="number of rounds between evaluations; 0: never")
    checkpoint_every: int = Field(
        10, ge=0, description="number of rounds between checkpoints; 0: only after the last round"
    )
    track: list[Literal["tensorboard", "mlflow"]] = Field(
        default_factory=list, description='trackers that metrics are also sent to: "tensorboard", "mlflow"'
    )

    @model_validator(mode="after")
    def _one_process_for_a_gpu(self) -> Run:
        if self.device != "cpu" and self.workers:
            raise ValueError(f'workers is {self.workers}, but device = "{self.device}" needs workers = 0')
        return self


class Experiment(Section):
    """A whole experiment, validated, with defaults filled in."""

    name: str = Field("federation", max_length=100, description="names the run folder")
    seed: int = Field(0, ge=0, description="seed of all random streams of the run")
    labels: Labels = Field(default_factory=Labels)
    data: Data | None = None
    sites: list[SiteSection] | None = Field(None, min_length=1)
    features: Features = Field(default_factory=Features)
    server: ServerSection = Field(default_factory=ServerSection)
    fairness: Fairness | None = None
    model: Model = Field(default_factory=Model)
    method: dict[str, Any] = Field(default_factory=dict)
    stop: Stop = Field(default_factory=Stop)
    admit: AdmitSection = Field(default_factory=AdmitSection)
    run: Run = Field(default_factory=Run)
    network: NetworkSection | None = None

    @field_validator("name")
    @classmethod
    def _fit_for_a_folder(cls, name: str) -> str:
        if not re.fullmatch(r"\w[\w.-]*", name):
            raise ValueError(f"'{name}' should be letters, digits, '.', '_' and '-', and not begin with '.' or '-'")
        return name

    @model_validator(mode="before")
    @classmethod
    def _not_two_sources_of_sites(cls, given: Any) -> Any:
        # Before the keys of [data] are checked, because the whole section is the mistake.
        if isinstance(given, dict) and given.get("data") is not None and given.get("sites") is not None:
            keys = "`test` and `view` are keys of each site, and `standardise` of [features]"
            raise ValueError(f"both [data] and [[sites]] are given; {_ONE_SOURCE}; without [data], {keys}")
        return given

    @model_validator(mode="after")
    def _one_source_of_sites(self) -> Experiment:
        if self.data is None and self.sites is None:
            raise ValueError(f"neither [data] nor [[sites]] is given; {_ONE_SOURCE}")
        names = [site.name for site in self.sites or []] or (self.data.names if self.data else None) or []
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two sites are named '{name}'")
            if name == POOL:
                raise ValueError(f"no site can be named '{name}': that is where a study pools all samples")
        return self

    @model_validator(mode="after")
    def _sites_name_labels(self) -> Experiment:
        classes = self.labels.classes
        for number, site in enumerate(self.sites or []):
            if classes is not None and site.view.own_names is None:
                try:
                    check_own_synonyms(site.synonyms, self.labels.synonyms, classes)
                except ValueError as error:
                    raise ValueError(f"sites[{number}].{error}") from None
        return self

    @model_validator(mode="after")
    def _sections_agree(self) -> Experiment:
        if isinstance(self.server.labelled, PerClass) and self.data is None:
            raise ValueError("server.labelled takes samples out of [data]; with [[sites]] it names a file")
        if isinstance(self.server.unlabelled, int) and self.data is None:
            raise ValueError(
                f"server.unlabelled = {self.server.unlabelled} takes samples out of [data], and sites with their own "
                'files give the server none; name a file of its own inputs, as in unlabelled = "public.csv"'
            )
        if self.server.unseen is not None and (self.data is None or self.server.test is not None):
            other = "[[sites]]" if self.data is None else "server.test"
            raise ValueError(f"server.unseen takes sites out of [data] for the test; it does not go with {other}")
        never = "but run.evaluate_every = 0 means that nothing is measured"
        if self.stop.metric is not None and self.run.evaluate_every == 0:
            raise ValueError(f"stop.metric is '{self.stop.metric}', {never}")
        if self.network is not None and self.network.target is not None and self.run.evaluate_every == 0:
            raise ValueError(f"network.target is given, {never}")
        return self

    @property
    def method_name(self) -> str:
        """The method's name."""
        return str(self.method.get("name", "accord"))

    @property
    def memberships(self) -> dict[str, Membership]:
        """The rounds of the sites that join late or leave, by name."""
        if self.data is not None:
            joins, leaves = self.data.joins, self.data.leaves
            return {site: Membership(joins.get(site, 1), leaves.get(site)) for site in sorted({*joins, *leaves})}
        temporary = [site for site in self.sites or [] if site.joins or site.leaves]
        return {site.name: Membership(site.joins or 1, site.leaves) for site in temporary}

    @property
    def settings(self) -> TrainingSettings:
        """The method's settings, checked."""
        given = {key: value for key, value in self.method.items() if key != "name"}
        return method_entry(self.method_name).settings(**given)
