"""Prints the reports of a check: tables in a terminal, plain columns elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedaccord.checks.reports import Report, SiteReport
from fedaccord.data.column_uses import ColumnUse
from fedaccord.errors import are_lists_in_full, listed
from fedaccord.findings import Finding
from fedaccord.terminal import Terminal

MOST_SITES = 12  # as columns of the coverage matrix
WIDE = 10_000  # outside a terminal lines are not wrapped
MOST_COLUMNS = 30  # of tables
COLOURS = {"note": "cyan", "warning": "yellow", "error": "bold red"}


def print_report(report: Report, console: Console) -> None:
    """Print the report of every site, then that of the federation."""
    for site in report.sites:
        print_site(site, console)
    _heading("the federation", console)
    sizes = [[site.name, site.view, str(site.train), str(site.test), str(site.unannotated)] for site in report.sites]
    _table(["site", "view", "train", "test", "not annotated"], sizes, console, numbers=3)
    _columns(report.columns, console)
    _say("\nwho knows which label:", console)
    _coverage(report, console)
    for note in report.notes:
        _say(f"note: {note}", console)
    _findings(report.findings, console)
    levels = [finding.level for finding in report.all_findings()]
    counted = [f"{levels.count(level)} {level}{'s' * (levels.count(level) > 1)}" for level in ("error", "warning")]
    _say("\n" + (", ".join(text for text in counted if not text.startswith("0")) or "sound"), console)


def print_site(site: SiteReport, console: Console) -> None:
    """Print the report of one site."""
    _heading(f"site {site.name}", console)
    _say(f"view {site.view}; {site.train} rows for training, {site.test} for its own test", console)
    if site.read_as:
        _say(f"read as {site.read_as}", console)
    if site.set_size is not None:
        _say(f"candidate sets hold {site.set_size:.2f} labels on average", console)
    if site.labels:
        rows = [[name, str(number)] for name, number in site.labels.items()]
        if site.unannotated:
            rows.append([f"({site.unannotated_words})", str(site.unannotated)])
        _table(["label", site.counts_heading], rows, console, 1)
    if site.no_label:
        taken = [f"{word} {number}" for word, number in site.no_label.items()]
        _say(f"cells taken for 'not annotated': {listed(taken, quotes=False)}", console)
    if site.missing:
        counts = [f"{column} {number}" for column, number in site.missing.items()]
        _say(f"missing cells: {listed(counts, quotes=False)}", console)
    if site.cells:
        labels = list(next(iter(site.cells.values())))
        cells = [[group, *(str(row[label]) for label in labels)] for group, row in site.cells.items()]
        _say("rows by sensitive group and label:", console)
        _table(["group", *labels], cells, console, numbers=len(labels))
    _columns(site.columns, console)
    _findings(site.findings, console)


def _columns(columns: Sequence[ColumnUse], console: Console) -> None:
    if not columns:
        return
    shown = len(columns) if are_lists_in_full() else MOST_COLUMNS
    _say("\ncolumns of the tables:", console)
    _table(["column", "taken as", "why"], [[use.name, use.taken_as, use.why] for use in columns[:shown]], console)
    if len(columns) > shown:
        _say(f"and {len(columns) - shown} more; --all shows them", console)


def _coverage(report: Report, console: Console) -> None:
    names = [site.name for site in report.sites]
    if len(names) <= MOST_SITES:
        rows = [[label, *(knows.get(name, "-") for name in names)] for label, knows in report.coverage.items()]
        _table(["label", *names], rows, console)
    else:
        rows = [[label, listed(list(knows), quotes=False) or "-"] for label, knows in report.coverage.items()]
        _table(["label", "known at"], rows, console)


def _findings(findings: Sequence[Finding], console: Console) -> None:
    for finding in findings:
        console.print(Text.assemble((f"{finding.level}:", COLOURS[finding.level]), f" {finding.text}"), soft_wrap=True)


def _table(headings: list[str], rows: list[list[str]], console: Console, numbers: int = 0) -> None:
    """Print a table; the last `numbers` columns are right-aligned."""
    table = Table(box=None, pad_edge=False) if not console.is_terminal else Table()
    for place, heading in enumerate(headings):
        table.add_column(Text(heading), justify="right" if place >= len(headings) - numbers else "left")
    for row in rows:
        table.add_row(*map(Text, row))
    if console.is_terminal:
        console.print(table)
    else:
        Terminal(file=console.file, width=WIDE, color_system=None).print(table)  # `print` takes no width above its own


def _heading(title: str, console: Console) -> None:
    _say("", console)
    if console.is_terminal:
        console.rule(Text(title, "bold"), align="left")
    else:
        _say(f"== {title} ==", console)


def _say(text: str, console: Console) -> None:
    console.print(text, highlight=False, soft_wrap=True)
