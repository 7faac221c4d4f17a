"""Reading a run folder back: the forms its files have, and one sentence where a file does not have its form."""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, Field, ValidationError

from fedaccord.errors import RunFolderError

Metrics = dict[str, float]
_Form = TypeVar("_Form", bound=BaseModel)


class Spread(BaseModel):
    """A round's figures of the sites: their mean, their standard deviation, and each site's own."""

    mean: Metrics = {}
    std: Metrics = {}
    each: dict[str, Metrics] = {}


class Figures(BaseModel):
    """The figures of one round, by scope; `round` and `metric` say which was best, and by what."""

    round: int | None = None
    metric: str = ""
    overall: Metrics = Field(default={}, alias="global")
    sites: Spread = Spread()


class Simulated(BaseModel):
    """A run's time on a simulated network, and when a figure first reached its target."""

    seconds: float
    metric: str = ""
    target: float | None = None
    reached: dict[str, float] | None = None
    sites_work: bool = True  # False: the method trains at the server alone, whose work is free
    sites: dict[str, dict[str, float]] = {}


class Summary(BaseModel):
    """`summary.json`."""

    name: str
    method: str
    engine: str = "unknown"
    seed: int | None = None
    rounds: int = 0
    seconds: float = 0.0
    stopped: str = ""  # why the run ended before its last round
    final: Figures = Figures()
    best: Figures = Figures()
    dropped: int = 0
    warnings: list[str] = []
    model_sha256: str = ""
    workers: int = 0
    settings: dict[str, Any] = {}
    simulated: Simulated | None = None
    fairness: dict[str, Any] = {}  # the group and the label in question
    hostile: list[str] = []  # of a study: the sites that attacked


class Site(BaseModel):
    """One site in `federation.json`."""

    view: dict[str, Any]
    train: int
    test: int
    informs: list[str]
    set_size: float | None = None  # mean size of the candidate sets it trains on
    joins: int = 1
    leaves: int | None = None  # the first round without it


class Federation(BaseModel):
    """`federation.json`."""

    labels: list[str]
    sites: dict[str, Site]
    groups: list[list[str]] = []
    correspondences: dict[str, list[list[float]]] = {}  # of coarse sites: P(name | class), a row for each name
    histogram: dict[str, dict[str, int]] = {}
    test: str = ""
    notes: list[str] = []


class Line(BaseModel):
    """A line of `metrics.jsonl`; which fields it has depends on its scope."""

    round: int
    scope: str
    site: str | None = None
    metrics: Metrics = {}
    mean: Metrics = {}
    min: Metrics = {}
    max: Metrics = {}
    pooled: Metrics = {}  # how a group was treated, over all sites' test rows together
    recall: Metrics = {}
    samples: dict[str, int] = {}
    asked: list[str] = []
    absent: list[str] = []  # labels that no site of the round could teach
    dropped: list[dict[str, Any]] = []
    seconds: Metrics = {}
    bytes: dict[str, tuple[int, int]] = {}  # by site: sent to it, received from it
    names: list[str] = []
    counts: list[list[int]] = []
    figures: Metrics = {}  # what the server's own steps measured
    simulated: float | None = None  # seconds on a simulated network
    matrix: list[list[float]] = []  # of a coarse site: P(name | class) as found out; of tags: their correlations
    blocks: list[int] = []  # of tags: the block of each


@dataclass
class Run:
    """What a finished run left in its folder; `lines` stand in the order of the rounds."""

    folder: Path
    summary: Summary
    federation: Federation
    lines: list[Line]

    def of(self, scope: str) -> list[Line]:
        """Return the lines of one scope."""
        return [line for line in self.lines if line.scope == scope]


def read_run(folder: Path) -> Run:
    """Read a run; raises RunFolderError where a file is missing, unreadable or not what a run writes."""
    summary, federation = read_summary(folder), _parsed_file(folder / "federation.json", Federation)
    path = folder / "metrics.jsonl"
    rows = _bytes(path).rstrip().split(b"\n")
    lines: dict[tuple[int, str, str | None], Line] = {}
    for number, row in enumerate(rows, start=1):
        try:
            line = _parsed(row, Line, f"{path}, line {number},")
        except _NotJson:
            if number < len(rows):
                raise
            break  # the run was cut off while writing its last line
        lines[line.round, line.scope, line.site] = line  # a resumed run writes a round again: the later line holds
    return Run(folder, summary, federation, sorted(lines.values(), key=lambda line: line.round))


def read_summary(folder: Path) -> Summary:
    """Read a run's summary alone."""
    return _parsed_file(folder / "summary.json", Summary)


def read_settings(folder: Path) -> dict[str, Any]:
    """Read what was run, complete, from the folder's config.toml, as plain tables."""
    path = folder / "config.toml"
    try:
        return tomllib.loads(_bytes(path).decode())
    except ValueError as problem:
        raise RunFolderError(f"{path} is not TOML: {problem}") from None


class _NotJson(RunFolderError):
    """A file or line that does not even parse."""


def _parsed_file(path: Path, form: type[_Form]) -> _Form:
    return _parsed(_bytes(path), form, str(path))


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise RunFolderError(f"there is no {path.name} in {path.parent}; name the folder of a finished run") from None
    except OSError as problem:
        raise RunFolderError(f"cannot read {path}: {problem.strerror}") from problem


def _parsed(raw: bytes, form: type[_Form], where: str) -> _Form:
    def known(pairs: dict[str, Any]) -> dict[str, Any]:  # null and NaN mean the same as absent
        return {key: value for key, value in pairs.items() if value is not None}

    try:
        return form.model_validate(json.loads(raw, object_hook=known, parse_constant=lambda _: None))
    except ValidationError as problems:
        first = problems.errors(include_url=False)[0]
        at = ".".join(str(part) for part in first["loc"]) or "the whole"
        raise RunFolderError(f"{where} is not what a run writes: '{at}': {first['msg'].lower()}") from None
    except ValueError:
        raise _NotJson(f"{where} is not JSON") from None
