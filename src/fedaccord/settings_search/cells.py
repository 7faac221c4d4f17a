"""The runs of a search: one setting with one seed each, kept in a folder, so that a cut search goes on."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedaccord import __version__
from fedaccord.config import Experiment, to_toml, with_paths_from
from fedaccord.durable import write_file
from fedaccord.errors import RunFolderError
from fedaccord.extensions import trusted
from fedaccord.settings_search.grid import Setting
from fedaccord.settings_search.parallel_jobs import run_jobs

_SERVING = "fedaccord.settings_search.worker:main"
_FORMAT = 1  # of the digest; change it when the same cell gives other results


@dataclass(frozen=True)
class Cell:
    """A setting with a seed; its digest changes with the experiment, its files and the version of FedAccord."""

    setting: Setting
    seed: int
    text: str  # the complete experiment, with absolute paths
    digest: str


def make_cells(settings: Sequence[Setting], seeds: Sequence[int], base: Path) -> list[Cell]:
    """Return all cells; the seed is the outermost loop, so that a cut search has complete pairs."""
    texts = [to_toml(with_paths_from(setting.experiment, base)) for setting in settings]
    files = [_files(setting.experiment, base) for setting in settings]
    return [
        Cell(setting, seed, text, _digest([_FORMAT, __version__, text, read, seed]))
        for seed in seeds
        for setting, text, read in zip(settings, texts, files, strict=True)
    ]


def run_cells(
    cells: Sequence[Cell],
    folder: Path,
    base: Path,
    workers: int,
    done: Callable[[Cell, str], None] = lambda cell, error: None,
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Return results and reasons of failures by digest; `done(cell, error)` is called for each run that ends.

    Finished cells are read from the folder and not run again. An interrupt discards only the cells that are running.
    """
    results = {cell.digest: found for cell in cells if (found := _find(folder, cell)) is not None}
    missing, failed = [cell for cell in cells if cell.digest not in results], dict[str, str]()
    common = {"base": str(base), "trust": list(trusted())}
    jobs = [{"experiment": cell.text, "seed": cell.seed, **common} for cell in missing]
    with closing(run_jobs(jobs, workers, _SERVING)) as answers:
        for index, answer in answers:
            cell = missing[index]
            if "result" in answer:
                results[cell.digest] = answer["result"]
                content = {"experiment": cell.text, "seed": cell.seed, "result": answer["result"]}
                write_file(_file(folder, cell), json.dumps(content, indent=1), RunFolderError)
            else:
                failed[cell.digest] = answer["error"]
            done(cell, answer.get("error", ""))
    return results, failed


def is_finished(cell: Cell, folder: Path) -> bool:
    """Return whether the folder holds the result of a cell."""
    return _find(folder, cell) is not None


def cells_folder(folder: Path) -> Path:
    """Make the folder of a search's finished cells and return it."""
    cells = folder / "cells"
    try:
        cells.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(f"the folder '{cells}' cannot be created: {error.strerror}") from None
    return cells


def _find(folder: Path, cell: Cell) -> dict[str, Any] | None:
    with suppress(OSError, ValueError, KeyError, TypeError):  # a damaged cell is run again
        return dict(json.loads(_file(folder, cell).read_bytes())["result"])
    return None


def _file(folder: Path, cell: Cell) -> Path:
    return folder / f"{cell.digest}.json"


def _files(experiment: Experiment, base: Path) -> list[list[Any]]:
    """Return size and time of change of each file that the experiment names and that exists."""
    named = [site.data for site in experiment.sites or ()]
    named += [experiment.data.dataset] if experiment.data is not None else []
    named += [name for name in (experiment.server.labelled, experiment.server.unlabelled) if isinstance(name, str)]
    found = []
    for name in named:
        with suppress(OSError):
            stat = os.stat(base / name)
            found.append([name, stat.st_size, stat.st_mtime_ns])
    return found


def _digest(content: list[Any]) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]
