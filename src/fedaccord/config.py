"""The experiment file: one TOML file describes a federation and what to do with it. Importable without torch."""

from __future__ import annotations

import datetime
import json
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from fedaccord.config_errors import sentence
from fedaccord.data.declarations import (
    Count,
    Fairness,
    Features,
    Partition,
    PerClass,
    Section,
    Sensitive,
    SiteSection,
    check_stay,
)
from fedaccord.data.registry import check_dataset, locate
from fedaccord.errors import ConfigError, UntrustedError, UserError, did_you_mean
from fedaccord.extensions import importable
from fedaccord.federation.declarations import NetworkSection
from fedaccord.federation.membership import Membership
from fedaccord.labels.views.exact import ExactView
from fedaccord.labels.views.registry import ViewConfig
from fedaccord.messages.names import POOL
from fedaccord.methods.registry import method_entry
from fedaccord.models.registry import MODELS, check_model, is_factory
from fedaccord.renamed import refuse_renamed
from fedaccord.training.settings import Device, TrainingSettings

SiteName = Annotated[str, Field(min_length=1)]


def check_figure(metric: str) -> str:
    """Return the dotted name of a figure, if it says whose it is."""
    if not re.fullmatch(r"(global|sites\.mean|sites\.each\..+)\.\w+", metric):
        figure = metric.rsplit(".", 1)[-1] or "accuracy"
        forms = [f"global.{figure}", f"sites.mean.{figure}", f"sites.each.SITE.{figure}"]
        raise ValueError(f"'{metric}' does not say whose figure it is; {did_you_mean(metric, forms)}")
    return metric


class Labels(Section):
    """`[labels]`: the federation's classes or tags, by name."""

    classes: list[str] | None = Field(
        None, min_length=1, description="names of the labels; left out: taken from the data"
    )

    @field_validator("classes")
    @classmethod
    def _no_name_twice(cls, names: list[str] | None) -> list[str] | None:
        for name in names or []:
            if (names or []).count(name) > 1:
                raise ValueError(f"the label '{name}' is named twice")
        return names


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
    standardise: Literal["auto", "site", "federation", "none"] = Field(
        "auto",
        description="standardise features by each site's own moments or by the federation's, or not; auto: site, but "
        "none for images",
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
    unseen: Count | Annotated[list[SiteName], Field(min_length=1)] | None = Field(
        None, description="sites of [data] that do not train but serve as the server's test set: a number, or names"
    )
    unlabelled: Count | None = Field(
        None,
        description="number of unlabelled inputs at the server, taken from [data]; with `unseen`, from the "
        "sites that train",
    )
    labelled: PerClass | str | None = Field(
        None, description="labelled samples that the server trains on: taken from [data], or a file like `test`"
    )


class Stop(Section):
    """`[stop]`: early stopping."""

    metric: str | None = Field(None, description='metric to monitor, such as "sites.mean.accuracy" or "global.nll"')
    patience: Count = Field(10, description="number of evaluations without improvement before the run stops")
    min_delta: float = Field(0.0, ge=0, description="smallest change that counts as an improvement")
    seconds: float | None = Field(None, gt=0, description="time budget of the whole run in seconds")

    @field_validator("metric")
    @classmethod
    def _scope_and_figure(cls, metric: str | None) -> str | None:
        return metric if metric is None else check_figure(metric)


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
    run: Run = Field(default_factory=Run)
    network: NetworkSection | None = None

    @field_validator("network")
    @classmethod
    def _a_timed_figure_says_whose_it_is(cls, network: NetworkSection | None) -> NetworkSection | None:
        if network is not None:
            check_figure(network.metric)
        return network

    @field_validator("name")
    @classmethod
    def _fit_for_a_folder(cls, name: str) -> str:
        if not re.fullmatch(r"\w[\w.-]*", name):
            raise ValueError(f"'{name}' should be letters, digits, '.', '_' and '-', and not begin with '.' or '-'")
        return name

    @model_validator(mode="after")
    def _one_source_of_sites(self) -> Experiment:
        if (self.data is None) == (self.sites is None):
            both = "both [data] and [[sites]] are given" if self.data else "neither [data] nor [[sites]] is given"
            raise ValueError(f"{both}; use [data] to split one data set, or [[sites]] for sites with their own files")
        names = [site.name for site in self.sites or []] or (self.data.names if self.data else None) or []
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two sites are named '{name}'")
            if name == POOL:
                raise ValueError(f"no site can be named '{name}': that is where a study pools all samples")
        return self

    @model_validator(mode="after")
    def _classes_are_taken_out_of_one_data_set(self) -> Experiment:
        if isinstance(self.server.labelled, PerClass) and self.data is None:
            raise ValueError("server.labelled takes samples out of [data]; with [[sites]] it names a file")
        return self

    @model_validator(mode="after")
    def _unseen_sites_are_of_one_data_set(self) -> Experiment:
        if self.server.unseen is not None and (self.data is None or self.server.test is not None):
            other = "[[sites]]" if self.data is None else "server.test"
            raise ValueError(f"server.unseen takes sites out of [data] for the test; it does not go with {other}")
        return self

    @model_validator(mode="after")
    def _a_watched_figure_is_measured(self) -> Experiment:
        if self.stop.metric is not None and self.run.evaluate_every == 0:
            raise ValueError(
                f"stop.metric is '{self.stop.metric}', but run.evaluate_every = 0 means that nothing is measured"
            )
        if self.network is not None and self.network.target is not None and self.run.evaluate_every == 0:
            raise ValueError("network.target is given, but run.evaluate_every = 0 means that nothing is measured")
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
            return {
                name: Membership(joins.get(name, 1), leaves.get(name)) for name in sorted(joins.keys() | leaves.keys())
            }
        return {
            site.name: Membership(site.joins or 1, site.leaves)
            for site in self.sites or []
            if site.joins or site.leaves
        }

    @property
    def settings(self) -> TrainingSettings:
        """The method's settings, checked."""
        given = {key: value for key, value in self.method.items() if key != "name"}
        return method_entry(self.method_name).settings(**given)


def load_experiment(path: Path, overrides: Sequence[str] = ()) -> tuple[Experiment, Path]:
    """Read and check an experiment file; returns it with the folder that relative paths start from.

    Modules that it names are also looked for in its folder, and for a run in the folder of the original file.
    """
    folder = path.resolve().parent
    with importable(folder), importable(_original_folder(folder)):
        return parse_experiment(read_text(path), overrides, str(path)), folder


def _original_folder(folder: Path) -> Path:
    """Return the folder of the file that the run in a run folder began with; other folders are their own."""
    try:
        return Path(json.loads((folder / "run.json").read_bytes())["base"])
    except (OSError, ValueError, KeyError, TypeError):
        return folder


def read_text(path: Path) -> str:
    """Return the text of an experiment file, with the line ends it has."""
    try:
        return path.read_bytes().decode("utf-8-sig")  # some editors put a mark at the beginning
    except FileNotFoundError:
        raise ConfigError(f"there is no file '{path}'") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise ConfigError(f"'{path}' cannot be read: {reason}") from None


def parse_experiment(text: str, overrides: Sequence[str] = (), where: str = "experiment") -> Experiment:
    """Check the text of an experiment file."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where} is not valid TOML: {error}") from None
    except RecursionError:
        raise ConfigError(f"{where} is nested too deeply") from None
    refuse_renamed(table, where, f"; run: fedaccord upgrade {where}")
    for override in overrides:
        _override(table, override)
    return check_experiment(table, where)


def check_experiment(table: Mapping[str, Any], where: str = "experiment") -> Experiment:
    """Validate a table as an experiment; raise ConfigError with a sentence for each of the first mistakes."""
    _check_values(table, where)
    refuse_renamed(table, where)
    try:
        experiment = Experiment(**table)
    except ValidationError as error:
        for problem in error.errors():
            if isinstance(problem.get("ctx", {}).get("error"), UntrustedError):
                raise problem["ctx"]["error"] from None
        raise ConfigError(f"{where}: {sentence(error, Experiment)}") from None
    try:
        check_model(experiment.model.name, experiment.model.settings)
    except UserError as error:
        raise ConfigError(f"{where}: model: {error}") from None
    try:
        if experiment.data is not None:
            check_dataset(experiment.data.dataset)
    except UserError as error:
        raise ConfigError(f"{where}: data.dataset: {error}") from None
    try:
        entry = method_entry(experiment.method_name)
    except UserError as error:
        raise ConfigError(f"{where}: {error}") from None
    try:
        settings = experiment.settings
    except ValidationError as error:
        raise ConfigError(f"{where}: {sentence(error, entry.settings, ('method',))}") from None
    if getattr(settings, "correspondence", "") == "known":
        _need_correspondences(experiment, where)
    _reach_last_step(experiment.stop, settings, where)
    # What is written down is complete: every default of method and model stands in the file.
    complete = {"name": entry.name} | settings.model_dump(mode="json", exclude_none=True)
    defaults = {} if is_factory(experiment.model.name) else MODELS[experiment.model.name].settings
    model = Model(**{"name": experiment.model.name, **defaults, **experiment.model.settings})
    return experiment.model_copy(update={"method": complete, "model": model})


def _need_correspondences(experiment: Experiment, where: str) -> None:
    for site in experiment.sites or []:
        if site.view.is_unexplained:
            known = f"method.correspondence is 'known', but site '{site.name}' has names alone"
            raise ConfigError(f"{where}: {known}; use 'estimated'")


def _reach_last_step(stop: Stop, settings: TrainingSettings, where: str) -> None:
    early = "metric" if stop.metric is not None else "seconds" if stop.seconds is not None else ""
    if early and settings.last_step:
        late = f"stop.{early} may end the run before its last round, after which alone {settings.last_step}"
        raise ConfigError(f"{where}: {late}; leave one of them out")


def _check_values(value: Any, where: str, place: str = "") -> None:
    """Refuse what TOML can write but no setting means; a model's own settings are checked nowhere else."""
    if isinstance(value, Mapping | list):
        for key, inner in value.items() if isinstance(value, Mapping) else enumerate(value):
            _check_values(inner, where, f"{place}[{key}]" if isinstance(key, int) else f"{place}.{key}".lstrip("."))
    elif isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{where}: {place} is {value}, but should be a finite number")
    elif isinstance(value, datetime.date | datetime.time):
        raise ConfigError(f"{where}: {place} is a date or a time; write it in quotes, as text")


def with_paths_from(experiment: Experiment, folder: Path) -> Experiment:
    """Return the experiment with every file named by its whole path, so that it can be run from anywhere."""
    update: dict[str, Any] = {}
    if experiment.data is not None and experiment.data.dataset.endswith(".npz"):
        update["data"] = experiment.data.model_copy(update={"dataset": str(locate(experiment.data.dataset, folder))})
    if experiment.sites is not None:
        update["sites"] = [s.model_copy(update={"data": str(locate(s.data, folder))}) for s in experiment.sites]
    files = {key: getattr(experiment.server, key) for key in ("test", "labelled")}
    found = {key: str(locate(name, folder)) for key, name in files.items() if isinstance(name, str)}
    if found:
        update["server"] = experiment.server.model_copy(update=found)
    return experiment.model_copy(update=update)


def _override(table: dict[str, Any], override: str) -> None:
    """Apply one `--set section.key=value` to a table."""
    key, equals, text = override.partition("=")
    path = key.strip().split(".")
    if not equals or not all(path):
        raise ConfigError(f"--set takes section.key=value, not '{override}'")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError as error:
        value = text.strip()  # a bare word is a string
        if value[:1] in ("[", "{", '"', "'"):
            raise ConfigError(f"--set {key}: {value} is not a TOML value ({error}); are its words in quotes?") from None
    for part in path[:-1]:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise ConfigError(f"--set {key}: '{part}' is not a table")
    table[path[-1]] = value


def to_toml(experiment: Experiment) -> str:
    """Write a complete experiment back as TOML."""
    table = experiment.model_dump(mode="json", exclude_none=True)
    sites = table.pop("sites", [])
    lines = [f"{key} = {_value(table.pop(key))}" for key in ("name", "seed")]
    for name, section in table.items():
        lines += ["", f"[{name}]", *(f"{_key(key)} = {_value(value)}" for key, value in section.items())]
    for site in sites:
        lines += ["", "[[sites]]", *(f"{_key(key)} = {_value(value)}" for key, value in site.items())]
    return "\n".join(lines) + "\n"


def _key(key: str) -> str:
    return key if key.replace("_", "").replace("-", "").isalnum() and key.isascii() else _value(key)


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items()) + " }" if value else "{}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # TOML allows it only escaped
    return json.dumps(value)
