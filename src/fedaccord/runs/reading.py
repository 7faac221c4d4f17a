"""Reads a run folder: models of its files, and one sentence if a file does not match its model."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, Field, ValidationError

from fedaccord.durable import read_bytes
from fedaccord.errors import MessageError, RunFolderError
from fedaccord.evaluation.differences import Difference, Gain
from fedaccord.evaluation.intervals import Estimate
from fedaccord.lazy import Array

Metrics = dict[str, float]
RESAMPLES = "resamples.safetensors"
NO_VERDICT = "Whether the model is better than guessing was not measured."
_Form = TypeVar("_Form", bound=BaseModel)


class Spread(BaseModel):
    """Metrics of the sites in one round: mean, standard deviation and each site's own."""

    mean: Metrics = {}
    std: Metrics = {}
    each: dict[str, Metrics] = {}


class Figures(BaseModel):
    """Metrics of one round by scope; for the best round, `metric` is the one that picked it."""

    round: int | None = None
    metric: str = ""
    overall: Metrics = Field(default={}, alias="global")
    sites: Spread = Spread()
    shared: Spread | None = None  # of the shared model, if sites end with models of their own


class Interval(BaseModel):
    """A figure with its 95 % interval, if it has one."""

    value: float
    low: float | None = None
    high: float | None = None

    def estimate(self) -> Estimate:
        """Return the figure for computations."""
        return Estimate(self.value, self.low, self.high)


class Quality(BaseModel):
    """How good a model is on test rows; `head` names the first figure, and is empty if nothing could be measured."""

    head: str = ""
    rows: int = 0
    classes: int = 0
    resamples: int = 0
    measures: dict[str, Interval] = {}
    calibration: list[list[float]] = []  # by bin: rows, mean prediction, observed share, its interval

    def estimate(self, name: str) -> Estimate | None:
        """Return a figure, or None if it was not measured."""
        return self.measures[name].estimate() if name in self.measures else None


class Qualities(BaseModel):
    """The examination after the last round: of the global model, and of each site's."""

    overall: Quality | None = Field(default=None, alias="global")
    sites: dict[str, Quality] = {}


class Verdict(BaseModel):
    """The verdict in words."""

    text: str = NO_VERDICT


class Simulated(BaseModel):
    """The time of a run on a simulated network, and when a metric first reached its target."""

    seconds: float
    metric: str = ""
    target: float | None = None
    reached: dict[str, float] | None = None
    sites_work: bool = True  # False: the method trains only at the server, which takes no simulated time
    sites: dict[str, dict[str, float]] = {}


class RunProblem(BaseModel):
    """Something that went wrong in a run; a fatal problem means that its model should not be used."""

    text: str
    fatal: bool = False


class SiteExperts(BaseModel):
    """The experts that answer for a site."""

    weights: dict[str, float]
    alone: str  # how its model alone was trained
    rows: int  # rows kept apart that the weights were chosen by; 0: the usual weights


class SiteGain(BaseModel):
    """What a site's model is ahead of its model alone, on its test rows."""

    measure: str
    alone: float
    together: float
    difference: Interval
    rows: int = 0

    def read(self) -> Gain:
        """Return the gain for computations; both models answered the same rows."""
        difference = Difference(self.measure, self.difference.estimate(), self.rows, paired=True)
        return Gain(self.measure, self.alone, self.together, difference)


class Summary(BaseModel):
    """`summary.json`."""

    name: str
    method: str
    engine: str = "unknown"
    seed: int | None = None
    rounds: int = 0
    seconds: float = 0.0
    stopped: str = ""  # the reason for an early stop
    final: Figures = Figures()
    best: Figures = Figures()
    quality: Qualities = Qualities()
    verdict: Verdict = Verdict()
    dropped: int = 0
    warnings: list[str] = []
    problems: list[RunProblem] = []
    model_sha256: str = ""
    workers: int = 0
    settings: dict[str, Any] = {}
    simulated: Simulated | None = None
    fairness: dict[str, Any] = {}  # the group and the label in question
    hostile: list[str] = []  # the attacking sites of a study
    experts: dict[str, SiteExperts] = {}  # by site, if sites end with a mixture
    gains: dict[str, SiteGain] = {}  # by site, if sites have a model alone among their experts
    parts: list[str] = []  # parts of the method that were switched on, with the reason


class Site(BaseModel):
    """One site in `federation.json`."""

    view: dict[str, Any]
    train: int
    test: int
    informs: list[str]
    set_size: float | None = None  # mean size of its candidate sets
    joins: int = 1
    leaves: int | None = None  # the first round without it


class Federation(BaseModel):
    """`federation.json`."""

    labels: list[str]
    sites: dict[str, Site]
    groups: list[list[str]] = []
    correspondences: dict[str, list[list[float]]] = {}  # P(name | class) of coarse sites, one row per name
    histogram: dict[str, dict[str, int]] = {}
    test: str = ""
    notes: list[str] = []


class Line(BaseModel):
    """A line of `metrics.jsonl`; its fields depend on its scope."""

    round: int
    scope: str
    site: str | None = None
    metrics: Metrics = {}
    mean: Metrics = {}
    min: Metrics = {}
    max: Metrics = {}
    pooled: Metrics = {}  # treatment of a group, over the test rows of all sites
    recall: Metrics = {}
    samples: dict[str, int] = {}
    sites: list[str] = []  # whose test rows recall counts, if the server has none
    asked: list[str] = []
    replied: int = 0  # number of admitted replies
    loss: float | None = None  # mean training loss of the sites
    finite: bool = True  # whether the model after the round is finite
    warnings: list[str] = []
    absent: list[str] = []  # labels that no site of the round knows
    dropped: list[dict[str, Any]] = []
    seconds: Metrics = {}
    bytes: dict[str, tuple[int, int]] = {}  # by site: sent to it, received from it
    names: list[str] = []
    counts: list[list[int]] = []
    cells: list[list[int]] = []  # of more answers than a matrix can show: truth, prediction, count
    figures: Metrics = {}  # measured by the method's steps on the server
    simulated: float | None = None  # seconds on a simulated network
    matrix: list[list[float]] = []  # estimated P(name | class) of a coarse site, or correlations of tags
    blocks: list[int] = []  # the block of each tag


@dataclass
class Run:
    """The content of a run folder; `lines` are sorted by round."""

    folder: Path
    summary: Summary
    federation: Federation
    lines: list[Line]
    progress: str = ""  # how far the run is, if it is not finished

    def of(self, scope: str) -> list[Line]:
        """Return the lines of one scope."""
        return [line for line in self.lines if line.scope == scope]

    def curve(self, scope: str, field: str, name: str) -> list[tuple[int, float]]:
        """Return (round, value) of a metric, from a field of the lines of one scope."""
        return [(line.round, getattr(line, field)[name]) for line in self.of(scope) if name in getattr(line, field)]


def read_run(folder: Path) -> Run:
    """Read a run; raise RunFolderError for a file that is missing, unreadable or not written by a run."""
    return Run(folder, read_summary(folder), read_federation(folder), read_metrics(folder))


def read_metrics(folder: Path) -> list[Line]:
    """Read the lines of metrics.jsonl, sorted by round."""
    path = folder / "metrics.jsonl"
    rows = _bytes(path).rstrip().split(b"\n")
    lines: dict[tuple[int, str, str | None], Line] = {}
    for number, row in enumerate(rows, start=1):
        try:
            line = _parsed(row, Line, f"{path}, line {number},")
        except _NotJson:
            if number < len(rows):
                raise
            break  # the run was interrupted while writing its last line
        lines[line.round, line.scope, line.site] = line  # a resumed run may write a round again: the later line counts
    return sorted(lines.values(), key=lambda line: line.round)


def read_summary(folder: Path) -> Summary:
    """Read only the summary of a run."""
    path = folder / "summary.json"
    return _parsed(_bytes(path), Summary, path)


def read_federation(folder: Path) -> Federation:
    """Read only the description of a run's federation."""
    path = folder / "federation.json"
    return _parsed(_bytes(path), Federation, path)


def read_resamples(folder: Path) -> dict[str, Array]:
    """Read the first figure of each site for every resample; empty if the sites keep them, as in a deployment."""
    from fedaccord.messages.message import from_bytes  # imports torch

    path = folder / RESAMPLES
    if not path.is_file():
        return {}
    try:
        return {site: tensor.numpy() for site, tensor in from_bytes(read_bytes(path, RunFolderError)).tensors.items()}
    except MessageError as problem:
        raise RunFolderError(f"{path} is damaged: {problem}") from None


def read_settings(folder: Path) -> dict[str, Any]:
    """Read the complete experiment file of a run as nested tables."""
    path = folder / "config.toml"
    try:
        return tomllib.loads(_bytes(path).decode())
    except ValueError as problem:
        raise RunFolderError(f"{path} is not TOML: {problem}") from None


class _NotJson(RunFolderError):
    """A file or line that is not JSON."""


def parse(raw: bytes, form: type[_Form], where: str, **options: Any) -> _Form:
    """Decode and validate JSON; `options` are passed to json.loads."""
    try:
        return form.model_validate(json.loads(raw, **options))
    except ValidationError as problems:
        first = problems.errors(include_url=False)[0]
        at = ".".join(str(part) for part in first["loc"]) or "the whole"
        raise RunFolderError(f"{where} is not what a run writes: '{at}': {first['msg'].lower()}") from None
    except ValueError:
        raise _NotJson(f"{where} is not JSON") from None


def parse_table(table: Mapping[str, Any], form: type[_Form]) -> _Form:
    """Return a table that will be written as JSON in the form that it is read in."""
    return _parsed(json.dumps(table).encode(), form, "the table")


def _parsed(raw: bytes, form: type[_Form], where: Path | str) -> _Form:
    def known(pairs: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in pairs.items() if value is not None}

    # Fields that are null or NaN count as missing.
    return parse(raw, form, str(where), object_hook=known, parse_constant=lambda _: None)


def _bytes(path: Path) -> bytes:
    if not path.exists():
        raise RunFolderError(f"there is no {path.name} in {path.parent}; name the folder of a finished run")
    return read_bytes(path, RunFolderError)
