"""Finished cells in the repository: what is kept of them, and that a run starts from them."""

import json

import pytest
from rich.console import Console

from fedaccord.errors import UserError
from papers.harness.archive import Archive
from papers.harness.cells import Cell, FinishedCells
from papers.harness.registry import TABLES, archive_of, find_table
from papers.harness.reproduce import reproduce_table

METRICS = ("accuracy", "nll")


def cell(seed=0, row=("Lost, 4 sites", "fedavg")):
    return Cell(row, seed, {"method": {"rounds": 3}})


def result(accuracy):
    figures = {"accuracy": accuracy, "nll": 1 / 3, "macro_f1": 0.5}
    sites = {"mean": figures, "std": figures, "each": {"mean": figures, "b": figures}}
    return {"final": {"global": {}, "sites": sites}, "curve": [1, 2], "dropped": [], "seconds": 1.25}


def test_a_cell_keeps_the_metrics_of_its_page_rounded_and_no_curve(tmp_path):
    Archive(tmp_path, METRICS).write([(cell(), result(0.123456))])
    figures = {"accuracy": 0.12346, "nll": 0.33333}
    assert Archive(tmp_path, METRICS).find(cell()) == {
        "final": {"global": {}, "sites": {"mean": figures, "each": {"mean": figures, "b": figures}}},
        "dropped": [],
        "seconds": 1.25,
    }


def test_a_data_set_has_one_file_whatever_its_runs_are_judged_on(tmp_path):
    apart = cell(row=("rows apart", "Lost, 4 sites", "fedavg", "rate 0.1"))
    other = cell(row=("digits", "fedavg"))
    Archive(tmp_path, METRICS).write([(each, result(0.5)) for each in (cell(), cell(1), apart, other)])
    lines = {file.name: len(file.read_text().splitlines()) for file in tmp_path.iterdir()}
    assert lines == {"lost-4-sites.jsonl": 3, "digits.jsonl": 1}


def test_cells_of_another_experiment_are_not_found_and_written_files_replace_the_old_ones(tmp_path):
    Archive(tmp_path, METRICS).write([(cell(), result(0.5))])
    assert Archive(tmp_path, METRICS).find(cell(seed=1)) is None
    Archive(tmp_path, METRICS).write([(cell(row=("digits", "fedavg")), result(0.5))])
    assert [file.name for file in tmp_path.iterdir()] == ["digits.jsonl"]


def test_a_run_finds_archived_cells_but_prefers_its_own(tmp_path):
    archive = Archive(tmp_path / "archive", METRICS)
    archive.write([(cell(), result(0.5)), (cell(1), result(0.5))])
    finished = FinishedCells(tmp_path, archive)
    finished.add(cell(1), {"final": "own"})
    assert finished.find(cell())["final"]["sites"]["mean"]["accuracy"] == 0.5
    assert finished.find(cell(1)) == {"final": "own"}
    assert finished.find(cell(2)) is None


@pytest.mark.parametrize(("name", "size"), [("fedmt", "default"), ("accord", "quick")])
def test_a_table_without_a_place_in_the_repository_says_so_before_it_runs(tmp_path, name, size):
    with pytest.raises(UserError, match="--archive is for the default size"):
        reproduce_table(name, size, tmp_path, 1, Console(), archive=True)


def test_archived_cells_belong_to_experiments_of_their_table():
    for name in TABLES:
        archive = archive_of(find_table(name))
        if archive is None:
            continue
        lines = [line for file in archive.folder.iterdir() for line in file.read_text(encoding="utf-8").splitlines()]
        digests = [json.loads(line)["digest"] for line in lines]
        assert len(digests) == len(set(digests))
        known = {each.digest for each in find_table(name).cells("default")}
        assert known & set(digests), "no archived cell belongs to the table as it is now; run it again with --archive"
