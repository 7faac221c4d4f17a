"""Run the missing cells of a table, show progress, and write its page."""

from __future__ import annotations

import datetime
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedaccord import __version__
from fedaccord.data.registry import DATA_VARIABLE, dataset_files
from fedaccord.durable import write_file
from fedaccord.errors import RunFolderError, UserError
from fedaccord.runs.folder import FolderLock
from fedaccord.runs.page import duration
from fedaccord.stopping import Stopped, signals_stop
from papers.harness.cells import Cell, FinishedCells, Results, Size
from papers.harness.pages import Chapter, pictures, to_html, to_markdown
from papers.harness.registry import Table, archive_of, as_staged, find_table
from papers.harness.runner import run_cells
from papers.harness.troubles import troubles_chapter
from papers.harness.verify import Verified, verify_cells

SECONDS_BETWEEN_LINES = 30.0


def reproduce_table(
    name: str,
    size: Size,
    out: Path,
    workers: int | None,
    console: Console,
    device: str = "cpu",
    archive: bool = False,
    verify: int = 0,
) -> tuple[Path, Results]:
    """Run a table, write table.html and table.md, and return the HTML file and the results.

    With `archive`, finished cells are also written into the repository, those of an interrupted run as well. `verify`
    is the number of cells that are run again by the path of `fedaccord run`.
    """
    table = find_table(name)
    if archive and (archive_of(table) is None or size != "default"):
        raise UserError("--archive is for the default size of a table that keeps cells in the repository; leave it out")
    if device != "cpu" and not torch.cuda.is_available():
        raise UserError(f"--device is '{device}', but torch finds no GPU here; use --device cpu")
    processes = workers or (os.cpu_count() if device == "cpu" else 1) or 1  # the cells would share one GPU
    start, cells = time.monotonic(), list(table.cells(size))
    if (staged := as_staged(table)) is not None:
        staged.prepare(out)
        console.print(staged.estimate(size, processes), highlight=False, soft_wrap=True)
    _check_data(cells, out)
    finished, lock = FinishedCells(out, archive_of(table)), FolderLock(out)
    try:
        with signals_stop(), _Progress(name, console) as progress:
            results = run_stages(table, size, cells, lambda more: progress.run(more, finished, processes, device))
            verified = verify_cells(cells, results, verify, processes, out, device) if verify else None
    except Stopped as stopped:
        results = _finished_results(table, size, cells, finished)
        write_table(table, name, size, out, results, len(cells), device)
        _archive(table, cells, finished, archive)
        stopped.args = (
            f"{stopped}: {len(results)} of {len(cells)} cells are kept in {out}; run the same command to continue",
        )
        raise
    finally:
        lock.release()
    page = write_table(table, name, size, out, results, len(cells), device, verified)
    _archive(table, cells, finished, archive)
    for key, problem in verified.problems.items() if verified is not None else ():
        console.print(f"cell {key}, run again: {problem}", highlight=False, markup=False, soft_wrap=True)
    for key, reason in results.failed.items():
        console.print(f"cell {key} failed: {reason}", highlight=False, markup=False, soft_wrap=True)
    console.print(f"{len(results)} of {len(cells)} cells in {duration(time.monotonic() - start)}", highlight=False)
    results.failed.update({} if verified is None else verified.problems)  # the command then ends with exit code 1
    return page, results


def write_table(
    table: Table,
    name: str,
    size: Size,
    out: Path,
    results: Results,
    planned: int,
    device: str = "cpu",
    verified: Verified | None = None,
) -> Path:
    """Write the page of the finished cells and return the HTML file."""
    options = ("" if size == "default" else f" --{size}") + ("" if device == "cpu" else f" --device {device}")
    command = f"python -m papers {name}{options}"
    unit = "core" if device == "cpu" else "process"
    about = Chapter(
        "How these figures were made",
        [
            f"Made by `{command}` with fedaccord {__version__} on {datetime.date.today():%Y-%m-%d}: torch "
            f"{torch.__version__.partition('+')[0]}, Python {platform.python_version()}, {os.cpu_count()} cores. "
            f"{len(results)} of {planned} cells are finished; they took {duration(results.seconds())} of one "
            f"{unit}'s time.",
        ],
    )
    troubles = troubles_chapter(results)
    further = [troubles, None if verified is None else verified.chapter()]
    chapters = [*table.chapters(results, size), *(each for each in further if each is not None), about]
    for picture in pictures(chapters):
        write_file(out / picture.file, picture.svg, RunFolderError)
    write_file(out / "table.md", to_markdown(table.TITLE, chapters), RunFolderError)
    return write_file(out / "table.html", to_html(table.TITLE, chapters), RunFolderError)


def run_stages(table: Table, size: Size, cells: list[Cell], run: Callable[[list[Cell]], Results]) -> Results:
    """Run the cells and those that their results call for, which are appended to `cells`; return all results."""
    results, staged, new = Results(), as_staged(table), list(cells)
    while new:
        found = run(new)
        for row, by_seed in found.cells.items():
            results.cells.setdefault(row, {}).update(by_seed)
        results.failed.update(found.failed)
        later = staged.follow_ups(results, size) if staged is not None else ()
        planned = {cell.key for cell in cells}
        new = [cell for cell in later if cell.key not in planned]
        cells += new
    return results


def _finished_results(table: Table, size: Size, cells: list[Cell], finished: FinishedCells) -> Results:
    """Return the finished cells of all stages that they reach; cells of these stages are appended to `cells`."""

    def find(among: list[Cell]) -> Results:
        results = Results()
        for cell in among:
            if (found := finished.find(cell)) is not None:
                results.add(cell, found)
        return results

    return run_stages(table, size, cells, find)


def _archive(table: Table, cells: list[Cell], finished: FinishedCells, wanted: bool) -> None:
    """Write the finished cells into the repository if that is wanted."""
    place = archive_of(table)
    if wanted and place is not None:
        found = [(cell, finished.find(cell)) for cell in cells]
        place.write((cell, result) for cell, result in found if result is not None)


def _check_data(cells: list[Cell], folder: Path) -> None:
    """Raise an error if a data set is missing, instead of failing cell by cell."""
    for dataset in {cell.experiment["data"]["dataset"] for cell in cells if "data" in cell.experiment}:
        dataset_files(dataset, folder, by=f"--data or {DATA_VARIABLE}")


class _Progress:
    """Show the number of finished cells: a bar in a terminal, otherwise a line from time to time."""

    def __init__(self, name: str, console: Console) -> None:
        self.name, self.total, self.console = name, 0, console
        self.done, self.ran, self.last, self.start = 0, 0, 0.0, time.monotonic()
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[cell]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self.task = self.bar.add_task(f"reproduce {name}", total=0, cell="")

    def __enter__(self) -> _Progress:
        self.bar.start()
        return self

    def __exit__(self, *problem: object) -> None:
        self.bar.stop()

    def run(self, cells: list[Cell], finished: FinishedCells, processes: int, device: str) -> Results:
        """Run the cells of a stage and count them."""
        self.total += len(cells)
        self.bar.update(self.task, total=self.total)
        return run_cells(cells, finished, processes, self.advance, device)

    def advance(self, cell: Cell, ran: bool) -> None:
        """Count a cell; `ran` is False if it was finished before this run."""
        self.done += 1
        self.ran += ran
        self.bar.update(self.task, advance=1, cell=cell.key)
        now = time.monotonic()
        is_due = now - self.last > SECONDS_BETWEEN_LINES or self.done == self.total
        if not self.console.is_terminal and ran and is_due:
            self.last = now
            left = (now - self.start) / self.ran * (self.total - self.done)
            self.console.print(
                f"reproduce {self.name}: {self.done} of {self.total} cells, about {duration(left)} left",
                highlight=False,
                soft_wrap=True,
            )
