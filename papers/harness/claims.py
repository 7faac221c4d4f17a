"""The ledger of a paper: `claims.toml` lists every claim, table, figure and ablation, and how our cells judge it.

    [[claims]]
    id = "order"
    place = "table 2"
    claim = "FedMT (E) is better than every baseline."
    status = "run smaller"                         # or "run", "not run"
    size = "texts, an MLP, 5 seeds"                # unless "not run"
    why = "the paper's network is too large"       # unless "run"

    [[claims.calibration]]                         # undecided while this baseline is too far below
    row = ["CLINC150", "5 labels", "Single"]
    published = 60.0
    within = 3.0

    [[claims.compare]]                             # rows are a place, then a method
    places = [["CLINC150", "5 labels"]]
    first = "FedMT (E)"
    against = ["SemiFL", "Single"]

Verdicts are not in the file: `papers.harness.ledger` computes them from the results.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedaccord.config_errors import sentence
from fedaccord.errors import ConfigError
from papers.harness.cells import When

Part = str | list[str]  # the last part or parts of a row
Judge = Literal["better", "not worse", "equivalent", "at least", "at most"]
Sentence = Annotated[str, Field(min_length=3)]
_MARGINS = ("not worse", "equivalent")
_BOUNDS = ("at least", "at most")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Comparison(_Strict):
    """Comparisons of one method with others, at one place or several.

    With `first_minus` and `against_minus` a row is subtracted from each side first, to compare changes. Without
    `against`, the figure of the first alone is judged.
    """

    first: Part
    against: list[Part] = []
    first_minus: Part | None = None
    against_minus: Part | None = None
    places: list[list[str]] = [[]]
    judge: Judge = "better"
    margin: float | None = Field(None, gt=0)  # in shown units, for "not worse" and "equivalent"
    bound: float | None = None  # in shown units, for "at least" and "at most"
    figure: str = "global.accuracy"
    when: When = "final"
    against_when: When | None = None  # None: as `when`
    less_is_better: bool = False
    scale: float = 100.0  # shown units per unit of the figure

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.judge in _MARGINS) != (self.margin is not None):
            raise ValueError(f"judge = '{self.judge}' {'needs' if self.judge in _MARGINS else 'takes no'} margin")
        if (self.judge in _BOUNDS) != (self.bound is not None):
            raise ValueError(f"judge = '{self.judge}' {'needs' if self.judge in _BOUNDS else 'takes no'} bound")
        if not self.against and self.judge not in _BOUNDS:
            raise ValueError(f"judge = '{self.judge}' compares two methods; name the others in against")
        if (self.first_minus is None) != (self.against_minus is None):
            raise ValueError("give both first_minus and against_minus, or neither")
        return self


class Calibration(_Strict):
    """A baseline that has to come within some points of its published figure before a claim is judged."""

    row: list[str]
    published: float
    within: float = Field(gt=0)
    figure: str = "global.accuracy"
    scale: float = 100.0


class Claim(_Strict):
    """A claim of a paper, whether it is run and at which size, and the comparisons that judge it."""

    id: Annotated[str, Field(pattern=r"^[a-z0-9-]+$")]
    place: Sentence  # in the paper
    claim: Sentence
    status: Literal["run", "run smaller", "not run"]
    size: str = ""  # of the default table
    why: str = ""  # it is not run, or smaller
    unjudged: str = ""  # why no comparison judges a claim that is run
    calibration: list[Calibration] = []  # a claim is undecided unless every baseline named here is calibrated
    combine: Literal["all", "any"] = "all"
    compare: list[Comparison] = []

    @model_validator(mode="after")
    def _check(self) -> Self:
        is_run = self.status != "not run"
        name = f"the claim '{self.id}' is '{self.status}'"
        if is_run != bool(self.size):
            raise ValueError(f"{name}, so it {'needs a' if is_run else 'has no'} size")
        if (self.status != "run") != bool(self.why):
            raise ValueError(f"{name}, so it {'has no' if self.why else 'needs a'} why")
        if self.compare and (not is_run or self.unjudged):
            raise ValueError(f"{name}; only a claim that is run and has no key unjudged has comparisons")
        if self.calibration and not self.compare:
            raise ValueError(f"{name}; only a claim with comparisons has a calibration")
        if is_run and not self.compare and not self.unjudged:
            raise ValueError(f"{name}; add [[claims.compare]], or say in unjudged why there is none")
        return self


class Ledger(_Strict):
    """All claims of a paper."""

    paper: Sentence
    source: Sentence  # what was at hand: the paper, a thesis, a summary
    claims: list[Claim] = Field(min_length=1)

    @model_validator(mode="after")
    def _check(self) -> Self:
        seen: set[str] = set()
        for claim in self.claims:
            if claim.id in seen:
                raise ValueError(f"two claims have the id '{claim.id}'")
            seen.add(claim.id)
        return self

    def calibrations(self) -> Iterator[Calibration]:
        """Yield the baselines that have to be calibrated."""
        for claim in self.claims:
            yield from claim.calibration

    def comparisons(self) -> Iterator[Comparison]:
        """Yield the comparisons of all claims."""
        for claim in self.claims:
            yield from claim.compare


def load_ledger(path: Path) -> Ledger:
    """Read a `claims.toml`; raise an error that names the file, the key and the mistake."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        return Ledger.model_validate(table)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
    except ValidationError as error:
        raise ConfigError(f"{path}: {sentence(error, Ledger)}") from None
