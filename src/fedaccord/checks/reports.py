"""The reports of a check: of one site, which it may see, and of the federation, for its coordinator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from fedaccord.data.column_uses import ColumnUse
from fedaccord.findings import Finding, note


@dataclass(frozen=True)
class SiteReport:
    """The report that one site may see: its sizes, its label names, and problems with its annotations."""

    name: str
    view: str
    train: int
    test: int
    labels: dict[str, int]  # number of rows by the site's own names
    unannotated: int
    set_size: float | None = None  # mean size of candidate sets
    cells: dict[str, dict[str, int]] = field(default_factory=dict)  # rows by sensitive group and label
    missing: dict[str, int] = field(default_factory=dict)  # missing cells by column
    no_label: dict[str, int] = field(default_factory=dict)  # cells taken for "not annotated", by their word
    columns: list[ColumnUse] = field(default_factory=list)  # of its own table, if it is checked alone
    read_as: str = ""  # how its text table is written
    findings: list[Finding] = field(default_factory=list)
    counts_heading: str = "rows"  # of the column of numbers in `labels`
    unannotated_words: str = "not annotated"


@dataclass(frozen=True)
class Report:
    """The reports of all sites, the coverage by label and site, and findings about several sites."""

    sites: list[SiteReport]
    coverage: dict[str, dict[str, str]]  # label -> site -> kind of its view
    findings: list[Finding]
    notes: list[str]
    columns: list[ColumnUse] = field(default_factory=list)  # of all tables, with their uses

    @property
    def exit_code(self) -> Literal[0, 1, 2]:
        """0 if nothing was found, 1 for warnings, 2 for errors."""
        return exit_code(self.all_findings())

    def all_findings(self) -> list[Finding]:
        """Return the findings on the sites, those on the federation, and the notes."""
        named = [(site.name, finding) for site in self.sites for finding in site.findings]
        of_sites = [replace(finding, text=f"site '{name}': {finding.text}") for name, finding in named]
        return [*of_sites, *self.findings, *map(note, self.notes)]


def exit_code(findings: Sequence[Finding]) -> Literal[0, 1, 2]:
    """Return 0 for no findings but notes, 1 for warnings, 2 for errors."""
    levels = {finding.level for finding in findings}
    return 2 if "error" in levels else 1 if "warning" in levels else 0
