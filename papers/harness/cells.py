"""A table consists of cells: one experiment of one method on one seed. Importable without torch."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol

from fedaccord.errors import RunFolderError
from papers.harness.statistics import Figures

Size = Literal["quick", "default", "full"]
When = Literal["final", "best", "first", "last"]
Row = tuple[str, ...]
Result = dict[str, Any]
# Part of every digest. It was the version of the first release, whose finished cells stay valid; change it when the
# same experiment gives other results.
_FORMAT = "0.1.0"


@dataclass(frozen=True)
class Cell:
    """One run of a table: its row, its seed, and the experiment as in a configuration file."""

    row: Row
    seed: int
    experiment: Mapping[str, Any]
    runner: str = ""  # "module:function" that runs the experiment; empty: `papers.harness.worker:run_cell`
    recipe: str = ""  # changed when the same settings of a method give other results, so that it runs again

    @property
    def key(self) -> str:
        """The cell's name."""
        return "/".join((*self.row, f"seed-{self.seed}"))

    @cached_property
    def table(self) -> dict[str, Any]:
        """The experiment with the cell's seed."""
        return {**self.experiment, "seed": self.seed}

    @cached_property
    def digest(self) -> str:
        """Digest of all that decides a result; a finished result is only used if its digest matches."""
        # Cells without a runner or a recipe keep the digest that they had before these existed.
        further = [part for part in (self.runner, self.recipe) if part]
        content = json.dumps([_FORMAT, self.table, *further], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:16]


class Finder(Protocol):
    """A further place of finished cells."""

    def find(self, cell: Cell) -> Result | None:
        """Return the result of a cell, if it is there."""


class FinishedCells:
    """Finished cells in a folder, one small file each, so that an interrupted run can continue."""

    def __init__(self, folder: Path, archive: Finder | None = None) -> None:
        self.folder, self.archive = folder / "cells", archive
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunFolderError(f"cannot write to {folder}: {error.strerror}") from None

    def find(self, cell: Cell) -> Result | None:
        """Return the result of a cell, or None if there is none of the same experiment and format."""
        try:
            stored = json.loads(self._file(cell).read_text(encoding="utf-8"))
            if stored["digest"] == cell.digest:
                return dict(stored["result"])
        except (OSError, ValueError, KeyError, TypeError):
            pass
        return None if self.archive is None else self.archive.find(cell)

    def add(self, cell: Cell, result: Result) -> None:
        """Write the result of a cell; the file appears complete or not at all."""
        content = {"key": cell.key, "digest": cell.digest, "experiment": cell.table, "result": result}
        partial = self._file(cell).with_suffix(".tmp")
        try:
            partial.write_text(json.dumps(content, indent=1), encoding="utf-8")
            partial.replace(self._file(cell))
        except OSError as error:
            raise RunFolderError(f"cannot write {self._file(cell)}: {error.strerror}") from None

    def _file(self, cell: Cell) -> Path:
        name = re.sub(r"[^\w.+-]+", "_", cell.key)
        short = hashlib.sha256(cell.key.encode()).hexdigest()[:6]  # the line above can give two keys the same name
        return self.folder / f"{name}-{short}.json"


@dataclass
class Results:
    """The finished cells of a table, by row and seed."""

    cells: dict[Row, dict[int, Result]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)  # cell -> reason

    def add(self, cell: Cell, result: Result) -> None:
        """Add a finished cell."""
        self.cells.setdefault(cell.row, {})[cell.seed] = result

    def values(self, row: Row, figure: str = "global.accuracy", when: When = "final") -> Figures:
        """Return a figure of a row by seed: `figure` as in "sites.mean.accuracy".

        `when` is the "final" or the "best" round, or the "first" or "last" that the curve has; a curve's figures of
        sites are means, as in "sites.accuracy". A seed has failed if its cell did, if the figure is not finite, or if
        only other seeds have it.
        """
        cells = self.cells.get(row, {})
        found = {seed: look_up(_at(result, when), figure) for seed, result in sorted(cells.items())}
        values = {seed: value for seed, value in found.items() if value is not None and math.isfinite(value)}
        is_known = any(value is not None for value in found.values())
        missing = set(found) - set(values) if is_known else set()
        dropped = [seed for seed, result in cells.items() if result.get("dropped")]
        return Figures(values, missing | self._failed_seeds(row), dropped)

    def _failed_seeds(self, row: Row) -> set[int]:
        start = "/".join((*row, "seed-"))
        return {int(key.removeprefix(start)) for key in self.failed if re.fullmatch(re.escape(start) + r"\d+", key)}

    def has(self, cell: Cell) -> bool:
        """Return whether a cell is finished or has failed."""
        return cell.seed in self.cells.get(cell.row, {}) or cell.key in self.failed

    def ran(self, rows: Iterable[Row], seeds: int) -> bool:
        """Return whether every row has results of at least `seeds` seeds."""
        return all(len(self.cells.get(row, {})) >= seeds for row in rows)

    def of_seeds(self, seeds: Collection[int]) -> Results:
        """Return only the cells of these seeds, to compare rows that ran on different numbers of seeds."""
        cells = {row: {seed: by[seed] for seed in by if seed in seeds} for row, by in self.cells.items()}
        failed = {key: why for key, why in self.failed.items() if int(key.rpartition("seed-")[2]) in seeds}
        return Results({row: by for row, by in cells.items() if by}, failed)

    def seconds(self) -> float:
        """Return the total time of all cells, on one core each."""
        return sum(result["seconds"] for by_seed in self.cells.values() for result in by_seed.values())

    def __len__(self) -> int:
        return sum(map(len, self.cells.values()))


def _at(result: Result, when: When) -> Mapping[str, Any]:
    if when in ("final", "best"):
        return dict(result[when])
    curve = result.get("curve") or [{}]
    return dict(curve[0 if when == "first" else -1])


def look_up(figures: Mapping[str, Any], path: str) -> float | None:
    """Return the number at a dotted path in nested figures, or None if there is none."""
    at: Any = figures
    for part in path.split("."):
        if not isinstance(at, Mapping) or part not in at:
            return None
        at = at[part]
    return float(at) if isinstance(at, int | float) else None


def in_order(*parts: Iterable[Cell]) -> list[Cell]:
    """Return the cells of a table's parts, each once, part by part.

    Within a part the seed is the outermost loop: an interrupted run then has complete pairs of the first seeds.
    """
    ordered = [cell for part in parts for cell in sorted(part, key=lambda cell: cell.seed)]
    return list({cell.key: cell for cell in ordered}.values())
