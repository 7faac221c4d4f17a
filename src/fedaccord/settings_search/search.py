"""Search a grid of settings: run every setting with every seed and rank them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fedaccord.errors import FedAccordError
from fedaccord.settings_search.cells import Cell, cells_folder, is_finished, make_cells, run_cells
from fedaccord.settings_search.grid import Grid
from fedaccord.settings_search.ranking import Ranked, rank


@dataclass(frozen=True)
class Search:
    """A grid, its seeds, the folder that relative paths start from, and the folder of finished runs."""

    grid: Grid
    seeds: Sequence[int]
    base: Path
    folder: Path

    @cached_property
    def cells(self) -> list[Cell]:
        """The runs of the search, seed by seed."""
        return make_cells(self.grid.settings, self.seeds, self.base)

    def finished_before(self) -> int:
        """Return the number of runs that an earlier search has left in the folder."""
        return sum(is_finished(cell, self.folder / "cells") for cell in self.cells)

    def run(
        self, by: str, workers: int, done: Callable[[Cell, str], None] = lambda cell, error: None
    ) -> tuple[list[Ranked], list[str]]:
        """Run what is missing; return the settings, the best first, and the sites that could not judge.

        `done(cell, error)` is called after each run. Raise FedAccordError if no setting finished with every seed.
        """
        results, failed = run_cells(self.cells, cells_folder(self.folder), self.base, workers, done)
        found: list[dict[int, dict[str, Any]]] = [{} for _ in self.grid.settings]
        reasons: list[dict[int, str]] = [{} for _ in self.grid.settings]
        for number, cell in enumerate(self.cells):
            at = number % len(self.grid.settings)
            if cell.digest in results:
                found[at][cell.seed] = results[cell.digest]
            else:
                reasons[at][cell.seed] = failed[cell.digest]
        ranked = rank(self.grid.settings, found, reasons, by)
        if ranked[0].failures:
            raise FedAccordError(f"no setting finished with every seed: {ranked[0].failures[0]}")
        return ranked, sorted({site for each in results.values() for site in each["not_judged"]})
