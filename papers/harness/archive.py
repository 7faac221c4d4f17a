"""Finished cells in the repository: a file for each first part of a row, a line for each cell.

A line has the digest of the cell and the figures that the page of its table needs, so that a run that was cut, or is
continued on another machine, starts from them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from fedaccord.durable import write_file
from fedaccord.errors import RunFolderError
from papers.harness.cells import Cell, Result

DIGITS = 5  # after the decimal point
PARTS = ("final", "figures", "server_judges", "not_judged", "dropped", "seconds")  # of a result; curves are left out
SCOPES = ("global", "sites", "shared", "mean", "each")


class Archive:
    """The finished cells of a table in a folder of the repository."""

    def __init__(self, folder: Path, metrics: Collection[str]) -> None:
        self.folder, self.metrics = folder, frozenset(metrics)

    def find(self, cell: Cell) -> Result | None:
        """Return the figures of a cell with the same digest."""
        return self._results.get(cell.digest)

    def write(self, finished: Iterable[tuple[Cell, Result]]) -> None:
        """Replace the files by those of these cells."""
        lines: dict[str, list[str]] = {}
        for cell, result in sorted(finished, key=lambda pair: pair[0].key):
            line = {"cell": cell.key, "digest": cell.digest, "result": self._slim(result)}
            lines.setdefault(_file_name(cell), []).append(json.dumps(line, separators=(",", ":")))
        self.folder.mkdir(parents=True, exist_ok=True)
        for old in self.folder.glob("*.jsonl"):
            old.unlink()
        for name, content in lines.items():
            write_file(self.folder / name, "\n".join(content) + "\n", RunFolderError)

    @cached_property
    def _results(self) -> dict[str, Result]:
        lines = [line for file in sorted(self.folder.glob("*.jsonl")) for line in file.read_text("utf-8").splitlines()]
        return {stored["digest"]: stored["result"] for stored in map(json.loads, lines)}

    def _slim(self, result: Result) -> Result:
        return {name: self._figures(result[name]) for name in PARTS if name in result}

    def _figures(self, value: Any) -> Any:
        """Return nested figures with the metrics of this table only, rounded."""
        if isinstance(value, float):
            return round(value, DIGITS)
        if not isinstance(value, Mapping):
            return value
        is_metrics = not set(value) & set(SCOPES) and all(isinstance(v, int | float) for v in value.values())
        names = [name for name in value if not is_metrics or name in self.metrics]
        return {name: self._figures(value[name]) for name in names if name != "std"}


def _file_name(cell: Cell) -> str:
    """Return the file of a cell, named by its data set: the part of the row that runs on rows apart have second."""
    name = cell.row[1] if len(cell.row) > 2 else cell.row[0]
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") + ".jsonl"
