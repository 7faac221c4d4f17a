"""Run the unfinished cells of a table in parallel processes, and store each result when it arrives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from fedaccord.settings_search.parallel_jobs import run_jobs
from papers.harness.cells import Cell, FinishedCells, Results

SERVING = "papers.harness.worker:main"
CLONE = str(Path(__file__).parents[2])  # so that workers can import `papers` from any folder


def run_cells(
    cells: Sequence[Cell],
    finished: FinishedCells,
    workers: int,
    advance: Callable[[Cell, bool], None] = lambda cell, ran: None,
    device: str = "cpu",
) -> Results:
    """Return the results of all cells; call `advance(cell, ran)` for each, `ran` False if it was finished before.

    The device is not part of a cell, so a result from another device is used. An interrupt discards the running cells
    and keeps the finished ones.
    """
    results, missing = Results(), []
    for cell in cells:
        found = finished.find(cell)
        if found is None:
            missing.append(cell)
        else:
            results.add(cell, found)
            advance(cell, False)
    base = str(finished.folder.parent.resolve())  # files that a table makes are there
    jobs = [{"table": cell.table, "runner": cell.runner, "device": device, "base": base} for cell in missing]
    with closing(run_jobs(jobs, workers, SERVING, [CLONE])) as answers:
        for index, answer in answers:
            cell = missing[index]
            if "result" in answer:
                finished.add(cell, answer["result"])
                results.add(cell, answer["result"])
            else:
                results.failed[cell.key] = answer["error"]
            advance(cell, True)
    return results
