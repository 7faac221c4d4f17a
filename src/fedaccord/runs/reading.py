"""Reads a run folder: models of its files, and one sentence if a file does not match its model."""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, Field, ValidationError

from fedaccord.durable import read_bytes
from fedaccord.errors import RunFolderError

Metrics = dict[str, float]
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
    dropped: int = 0
    warnings: list[str] = []
    problems: list[RunProblem] = []
    model_sha256: str = ""
    workers: int = 0
    settings: dict[str, Any] = {}
    simulated: Simulated | None = None
    fairness: dict[str, Any] = {}  # the group and the label in question
    hostile: list[str] = []  # the attacking sites of a study


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


def read_federation(folder: Path) -> Federation:
    """Read only the description of the sites."""
    path = folder / "federation.json"
    return _parsed(_bytes(path), Federation, path)


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


def gains(alone: Summary, together: Summary) -> dict[str, tuple[float, float]]:
    """Return the accuracies of each site that has one in both runs."""
    before, after = (run.final.sites.each for run in (alone, together))
    both = {site: (before.get(site, {}).get("accuracy"), metrics.get("accuracy")) for site, metrics in after.items()}
    return {site: (old, new) for site, (old, new) in both.items() if old is not None and new is not None}


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


def _parsed(raw: bytes, form: type[_Form], where: Path | str) -> _Form:
    def known(pairs: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in pairs.items() if value is not None}

    # Fields that are null or NaN count as missing.
    return parse(raw, form, str(where), object_hook=known, parse_constant=lambda _: None)


def _bytes(path: Path) -> bytes:
    if not path.exists():
        raise RunFolderError(f"there is no {path.name} in {path.parent}; name the folder of a finished run")
    return read_bytes(path, RunFolderError)
