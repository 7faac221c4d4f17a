"""Tables whose later cells depend on earlier results."""

import pytest
import staged_table
from rich.console import Console

from papers.harness import registry
from papers.harness.cells import Cell, FinishedCells, Results
from papers.harness.reproduce import reproduce_table, run_stages


@pytest.fixture(autouse=True)
def staged(monkeypatch):
    monkeypatch.setitem(registry.TABLES, "staged", registry.TableEntry("staged", "two stages", "staged_table"))


def reproduce(folder, console):
    return reproduce_table("staged", "quick", folder, 1, console)


def test_later_stages_run_with_files_that_the_table_made_and_a_second_run_finds_them_finished(tmp_path):
    console = Console(record=True, width=200)
    page, results = reproduce(tmp_path, console)
    assert results.failed == {}
    assert list(results.cells) == [("apart",), ("tested",)]
    assert "two runs in 1 processes" in console.export_text()
    assert "![a drawing](drawn.svg)" in (tmp_path / "table.md").read_text()
    assert (tmp_path / "drawn.svg").read_text() == "<svg/>"
    assert "<figure><svg/></figure>" in page.read_text()
    apart = results.cells["apart",][0]
    assert set(apart["figures"]["sites"]["each"]) == {"site-0", "site-1"}
    files = {file: file.stat().st_mtime_ns for file in (tmp_path / "cells").iterdir()}
    assert len(files) == 2
    assert reproduce(tmp_path, Console(quiet=True))[1].cells == results.cells
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "cells").iterdir()} == files


def test_a_failed_cell_ends_its_branch_and_not_the_table():
    def fail(cells):
        return Results(failed={cell.key: "broken" for cell in cells})

    planned = staged_table.cells("quick")
    results = run_stages(staged_table, "quick", planned, fail)
    assert results.failed == {"apart/seed-0": "broken"}
    assert len(planned) == 1


def test_the_runner_is_part_of_a_cells_digest(tmp_path):
    plain, other = Cell(("a",), 0, {}), Cell(("a",), 0, {}, "papers.harness.worker:run_apart")
    finished = FinishedCells(tmp_path)
    finished.add(plain, {"seconds": 1.0})
    assert finished.find(plain) == {"seconds": 1.0}
    assert finished.find(other) is None
