"""The tables that can be reproduced. Importable without torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

from fedaccord.errors import ConfigError, did_you_mean
from papers.harness.archive import Archive
from papers.harness.cells import Cell, Results, Size
from papers.harness.pages import Chapter


class Table(Protocol):
    """The interface of a table's module."""

    TITLE: str
    cells: Callable[[Size], Sequence[Cell]]
    chapters: Callable[[Results, Size], Sequence[Chapter]]


class StagedTable(Table, Protocol):
    """The interface of a table whose later cells depend on the results of earlier ones."""

    prepare: Callable[[Path], None]  # writes the files that cells read into the table's folder
    estimate: Callable[[Size, int], str]  # a sentence on the time that this number of processes needs
    # All cells that the results so far call for; called again until there are no new ones.
    follow_ups: Callable[[Results, Size], Sequence[Cell]]


class ArchivedTable(Table, Protocol):
    """The interface of a table whose finished cells are in the repository."""

    ARCHIVE: Archive


@dataclass(frozen=True)
class TableEntry:
    """A table in the list of the command line."""

    name: str
    summary: str
    module: str


_ENTRIES = (
    TableEntry(
        "private-labels",
        "private and public label sets over labels per site, with central tuning (arXiv 2508.18774)",
        "papers.private_labels.table",
    ),
    TableEntry(
        "pfedpll",
        "candidate labels: pFedPLL, its ablations and baselines, local training, and pfedpll+",
        "papers.pfedpll.table",
    ),
    TableEntry(
        "fedmt",
        "mixed-type labels: FedMT, its baselines and estimators on texts and images, and fedmt+",
        "papers.fedmt.table",
    ),
    TableEntry(
        "pfedmo",
        "personalised momentum: pFedMo, nine baselines and training on public data alone; splits, edge network",
        "papers.pfedmo.table",
    ),
    TableEntry(
        "fairfedpapl",
        "attacks on a group: robust rules, FairFedPAPL's inversion defence, and four other defences",
        "papers.fairfedpapl.table",
    ),
    TableEntry(
        "fedharmony",
        "multi-label data: FedHarmony, its ablations and baselines, controls, and fedharmony+",
        "papers.fedharmony.table",
    ),
    TableEntry(
        "accord",
        "accord on data sets of every kind of label: rivals, training alone, every site, FLamby's heart disease",
        "papers.accord.table",
    ),
)
TABLES: dict[str, TableEntry] = {entry.name: entry for entry in _ENTRIES}


def as_staged(table: Table) -> StagedTable | None:
    """Return the table if it has stages."""
    return cast(StagedTable, table) if hasattr(table, "follow_ups") else None


def archive_of(table: Table) -> Archive | None:
    """Return the table's finished cells in the repository, if it has any."""
    return cast(ArchivedTable, table).ARCHIVE if hasattr(table, "ARCHIVE") else None


def find_table(name: str) -> Table:
    """Return the module of a table; raise an error with the closest name if there is none."""
    if name not in TABLES:
        raise ConfigError(f"there is no table '{name}'; {did_you_mean(name, TABLES)}")
    return cast(Table, import_module(TABLES[name].module))
