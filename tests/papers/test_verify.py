"""Cells that are run again by the path of `fedaccord run`, with a stop halfway, a resume and a prediction."""

from pathlib import Path

import pytest
from rich.console import Console

from papers.harness import registry
from papers.harness.cells import Cell, Results
from papers.harness.reproduce import reproduce_table
from papers.harness.verify import Verified, chosen_cells, run_stopped_cell
from papers.harness.worker import run_cell

HERE = str(Path(__file__).parent)
EXPERIMENT = {
    "data": {"dataset": "digits", "samples": 120, "partition": {"kind": "iid", "sites": 3}},
    "model": {"name": "linear"},
    "seed": 3,
}


@pytest.mark.parametrize(
    "method",
    [
        {"name": "accord", "rounds": 3, "steps": 2},
        {"name": "private-labels", "rounds": 3, "steps": 2, "local": "scaffold"},
        {"name": "local", "rounds": 1, "steps": 2},  # one round cannot be stopped halfway
    ],
    ids=lambda method: method["name"],
)
def test_a_stopped_and_resumed_run_has_the_figures_of_its_cell(tmp_path, method):
    table = EXPERIMENT | {"method": method}
    again, before = run_stopped_cell(table, "cpu", tmp_path), run_cell(table)
    assert again["unsound"] == ""
    for scope in ("global", "sites"):
        assert again["final"][scope] == before["final"][scope]


def test_cells_are_spread_over_the_rows():
    cells = [Cell((row,), seed, {}) for row in "abcdef" for seed in (0, 1)]
    cells.append(Cell(("g",), 0, {}, "papers.harness.worker:run_apart"))
    results = Results()
    for cell in cells:
        if cell.key != "a/seed-0":
            results.add(cell, {})
    assert [cell.key for cell in chosen_cells(cells, results, 3)] == ["a/seed-1", "c/seed-0", "e/seed-0"]
    assert len(chosen_cells(cells, results, 99)) == 6
    assert chosen_cells(cells, Results(), 3) == []


def test_the_page_says_which_cells_were_run_again_and_which_differ(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(HERE)
    monkeypatch.setitem(registry.TABLES, "small", registry.TableEntry("small", "digits", "small_table"))
    reproduce_table("small", "quick", tmp_path, 1, Console(quiet=True), verify=2)
    assert "2 cells were run again" in (tmp_path / "table.md").read_text()
    assert "0 of them differ" in (tmp_path / "table.md").read_text()
    spoilt = next((tmp_path / "cells").glob("fedavg*.json"))
    spoilt.write_text(spoilt.read_text().replace('"accuracy": 0', '"accuracy": 1'))
    console = Console(record=True, width=300)
    reproduce_table("small", "quick", tmp_path, 1, console, verify=2)
    assert "cell fedavg/seed-0, run again: differs: " in console.export_text()
    assert "| fedavg/seed-0 | differs: " in (tmp_path / "table.md").read_text()


def test_without_problems_there_is_no_table_of_them():
    assert len(Verified(3, {}).chapter().blocks) == 1
