"""The table on fairness: its runs can be checked, and what its page says of figures is right."""

import pytest

from fedaccord.config import check_experiment
from fedaccord.reproduce.cells import Results
from fedaccord.reproduce.fairfedpapl import best_defence, cells, chapters
from fedaccord.reproduce.fairfedpapl_cells import ATTACKS, DEFENCES, NONE, SCORES, places, row_of
from fedaccord.reproduce.pages import to_html, to_markdown
from fedaccord.reproduce.registry import find_table

NAME = "COMPAS, African-American"


def result(eod, accuracy=0.64, **steps):
    figures = {"accuracy": accuracy, "eod": eod, "spd": eod / 2, "members": 600, "members_with_label": 160}
    late = [{"round": number, **steps} for number in (1, 2, 3)] if steps else []
    return {"final": {"global": figures}, "best": {"global": {}}, "steps": late, "seconds": 1.0}


@pytest.fixture
def results():
    """Attacks move EOD by 0.3; every defence but one leaves half of that."""
    found = Results()
    for seed in (0, 1):
        for attack in (NONE, *ATTACKS):
            for defence in DEFENCES:
                left = {NONE: 0.3, "group-update": 0.03}.get(defence, 0.15) if attack != NONE else 0.0
                told = {"excluded": 0.04} if attack == NONE else {"hostile_excluded": 0.95, "false_exclusions": 0.02}
                cell = result(-0.2 - left - 0.001 * seed, **(told if defence in SCORES else {}))
                for name, partition in places("quick"):
                    found.cells.setdefault(row_of(name, partition, attack, defence), {})[seed] = cell
    return found


@pytest.mark.parametrize("size", ["quick", "default", "full"])
def test_every_kind_of_run_is_an_experiment(size):
    runs = cells(size)
    assert len({cell.key for cell in runs}) == len(runs)
    for cell in runs:
        if cell.seed == 0:
            check_experiment(cell.table)
    assert find_table("fairfedpapl").TITLE


def test_runs_of_a_seed_are_paired(results):
    runs = [cell for cell in cells("default") if cell.seed == 3 and cell.row[0] == NAME and cell.row[1] == "iid"]
    data = {str(cell.experiment["data"]) for cell in runs if cell.row[2] == "10 sites"}
    assert len(data) == 1
    by_row = {cell.row: cell.experiment["method"] for cell in runs}
    alone = by_row[row_of(NAME, "iid", NONE, "honest sites only")]
    assert len(alone["sites"]) == 7


def test_the_page_tells_the_best_defence_and_the_bars(results):
    assert best_defence(results, places("quick")) == "group-update"
    page = to_markdown("t", chapters(results, "quick"))
    assert page.index("False exclusions") < page.index("Bars")
    lines = {line.split(" | ")[0].removeprefix("| "): line for line in page.splitlines() if line.startswith("| ")}
    assert "holds" in lines["group-update: delta EOD under plfa is lower than without defence"]
    assert (
        "-0.270, se 0.000, lower on 2 of 2 seeds"
        in lines["group-update: delta EOD under plfa is lower than without defence"]
    )
    assert "mean 95 %" in lines["group-update: hostile sites are excluded in at least 90 % of rounds"]
    assert "4.0" in lines[f"{NAME}, iid: group-update"]
    assert "inversion: delta EOD under mixup is lower than without defence" in lines
    assert "0.124 *" in page
    assert "<table" in to_html("t", chapters(results, "default"))


def test_an_unfinished_table_has_a_page():
    assert "not measured" in to_markdown("t", chapters(Results(), "default"))
