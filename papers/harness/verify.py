"""Repeat some cells as `fedaccord run` would: stop them halfway, resume, reload the model folder, predict, compare.

The worker of a table plays rounds without a run folder, which is faster; a fault of the folder would go unnoticed.
"""

from __future__ import annotations

import math
import signal
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fedaccord.config import check_experiment
from fedaccord.experiment import resume_experiment, run_experiment
from fedaccord.federation.round import RoundRecord
from fedaccord.recording import Watcher
from fedaccord.runs.folder import RunFolder
from fedaccord.runs.trained_model import TrainedModel
from fedaccord.settings_search.parallel_jobs import run_jobs
from fedaccord.stopping import Stopped
from papers.harness.cells import Cell, Result, Results
from papers.harness.pages import Chapter, Grid
from papers.harness.runner import CLONE, SERVING

SAMPLES = 4  # predicted with each model
TOLERANCE = 1e-6  # of a figure, relative


@dataclass(frozen=True)
class Verified:
    """The number of cells that were repeated, and what was wrong with some of them, by cell."""

    number: int
    problems: Mapping[str, str]

    def chapter(self) -> Chapter:
        """Return the chapter of the page."""
        about = (
            f"{self.number} cells were run again by the path of `fedaccord run`: stopped halfway, resumed from the "
            f"checkpoint, the model folder reloaded and used to predict. {len(self.problems)} of them differ from the "
            "table or fail."
        )
        rows = [(key, problem) for key, problem in self.problems.items()]
        return Chapter("Cells run again", [about, *([Grid(("cell", "what"), rows, words=True)] if rows else [])])


def verify_cells(
    cells: Sequence[Cell], results: Results, number: int, workers: int, base: Path, device: str
) -> Verified:
    """Repeat up to `number` finished cells, spread over the rows of a table, and compare their figures."""
    chosen = chosen_cells(cells, results, number)
    job = {"runner": "papers.harness.verify:run_stopped_cell", "device": device, "base": str(base.resolve())}
    problems = {}
    with closing(run_jobs([{**job, "table": cell.table} for cell in chosen], workers, SERVING, [CLONE])) as answers:
        for index, answer in answers:
            cell = chosen[index]
            problem = answer.get("error") or _problem(answer["result"], results.cells[cell.row][cell.seed])
            if problem:
                problems[cell.key] = problem
    return Verified(len(chosen), problems)


def chosen_cells(cells: Sequence[Cell], results: Results, number: int) -> list[Cell]:
    """Return the first finished cell of up to `number` rows, evenly spaced, without cells that name a runner."""
    first: dict[tuple[str, ...], Cell] = {}
    for cell in cells:
        if not cell.runner and cell.seed in results.cells.get(cell.row, {}):
            first.setdefault(cell.row, cell)
    rows = list(first.values())
    count = min(number, len(rows))
    return [rows[len(rows) * n // count] for n in range(count)]


def run_stopped_cell(table: dict[str, Any], device: str, base: Path) -> Result:
    """Run an experiment in a run folder that is stopped halfway and resumed; return its figures and what is wrong."""
    experiment = check_experiment(table)
    here = experiment.run.model_copy(update={"workers": 0, "device": device})
    experiment = experiment.model_copy(update={"run": here})
    half = experiment.settings.rounds // 2

    def stop(record: RoundRecord) -> None:
        if record.round == half:
            raise Stopped(signal.SIGINT)  # as Ctrl-C does

    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "run"
        with suppress(Stopped), closing(RunFolder(path)) as folder:
            summary = run_experiment(experiment, base, folder, Watcher(round=stop))
        if half:
            with closing(RunFolder(path, reopen=True)) as folder:
                summary = resume_experiment(folder)
        return {"final": summary["final"], "unsound": _unsound(TrainedModel.load(path))}


def _unsound(model: TrainedModel) -> str:
    """Return the models whose predictions are not finite."""
    x = torch.rand(SAMPLES, *model.description.model.input_shape, generator=torch.Generator().manual_seed(0))
    models = [*([None] if model.description.common else []), *model.sites]
    return ", ".join(name or "global" for name in models if not bool(torch.isfinite(model.predict(x, name)).all()))


def _problem(again: Result, before: Result) -> str:
    if again["unsound"]:
        return f"predictions are not finite: {again['unsound']}"
    found, expected = dict(_flat(again["final"])), dict(_flat(before["final"]))
    common = found.keys() & expected.keys()
    if not common:
        return "it has no figure of the finished cell"
    different = [name for name in common if not _equal(found[name], expected[name])]
    return f"differs: {', '.join(sorted(different)[:3])}" if different else ""


def _flat(figures: Mapping[str, Any], place: str = "") -> list[tuple[str, float]]:
    found = []
    for name, value in figures.items():
        if isinstance(value, Mapping):
            found += _flat(value, f"{place}{name}.")
        elif isinstance(value, int | float):
            found.append((f"{place}{name}", float(value)))
    return found


def _equal(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE) or (math.isnan(one) and math.isnan(other))
