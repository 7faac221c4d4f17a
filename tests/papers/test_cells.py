"""Cells are told apart by what they run, and finished so that a cut run goes on."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedaccord.config import check_experiment
from fedaccord.data.registry import DATASETS
from fedaccord.errors import RunFolderError
from papers.harness.cells import Cell, FinishedCells, Results, in_order
from papers.harness.registry import TABLES, find_table
from papers.harness.statistics import Figures, paired, rank_correlation, spread


def cell(seed=0, rounds=3, row=("digits", "fedavg")):
    return Cell(row, seed, {"data": {"dataset": "digits"}, "method": {"rounds": rounds}})


def result(accuracy, best=None):
    scopes = {"global": {"accuracy": accuracy}, "sites": {"mean": {"accuracy": accuracy}}}
    return {"final": scopes, "best": {"global": {"accuracy": best or accuracy}}, "seconds": 1.5}


def test_a_kept_cell_is_found_again_but_not_for_another_experiment(tmp_path):
    finished = FinishedCells(tmp_path)
    finished.add(cell(), result(0.5))
    assert FinishedCells(tmp_path).find(cell()) == result(0.5)
    assert finished.find(cell(rounds=4)) is None
    assert finished.find(cell(seed=1)) is None


def test_cells_that_the_first_release_finished_are_still_found(tmp_path, monkeypatch):
    finished = FinishedCells(tmp_path)
    finished.add(cell(), result(0.5))
    (file,) = finished.folder.iterdir()
    assert json.loads(file.read_text())["digest"] == "fbc5700d06e8d1d3"  # as 0.1.0 wrote it
    monkeypatch.setattr("fedaccord.__version__", "9.9.9")
    assert finished.find(cell()) == result(0.5)


def test_a_torn_or_foreign_file_counts_as_missing(tmp_path):
    finished = FinishedCells(tmp_path)
    finished.add(cell(), result(0.5))
    (file,) = finished.folder.iterdir()
    for content in ("", file.read_text()[:40], "[]", json.dumps({"digest": cell().digest})):
        file.write_text(content)
        assert finished.find(cell()) is None


def test_rows_whose_names_look_alike_on_disk_stay_apart(tmp_path):
    finished = FinishedCells(tmp_path)
    finished.add(cell(row=("a b",)), result(0.1))
    finished.add(cell(row=("a?b",)), result(0.2))
    assert finished.find(cell(row=("a b",))) == result(0.1)


def test_a_folder_that_cannot_be_written_is_an_error_in_words(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="cannot write to"):
        FinishedCells(tmp_path / "file" / "below")


def test_values_are_by_seed_and_last_and_best_are_told_apart():
    results = Results()
    results.add(cell(1), result(0.6, 0.8))
    results.add(cell(0), result(0.5, 0.7))
    row = cell().row
    assert results.values(row) == {0: 0.5, 1: 0.6}
    assert results.values(row, when="best") == {0: 0.7, 1: 0.8}
    assert results.values(row, "sites.mean.accuracy") == {0: 0.5, 1: 0.6}
    assert results.values(row, "sites.mean.nll") == {}
    assert results.values(("nobody",)) == {}
    assert results.seconds() == 3.0


def test_seeds_are_outermost_so_that_a_cut_run_has_whole_pairs():
    a, b = ("a",), ("b",)
    ordered = in_order([cell(0, row=a), cell(1, row=a), cell(0, row=b)], [cell(1, row=b), cell(0, row=a)])
    assert [c.key for c in ordered] == ["a/seed-0", "b/seed-0", "a/seed-1", "b/seed-1"]


def test_a_paired_difference_uses_common_seeds_only():
    gap = paired(Figures({0: 0.5, 1: 0.7, 2: 0.9}), Figures({1: 0.6, 0: 0.5, 7: 0.0}))
    assert (round(gap.mean, 6), gap.interval.n, gap.wins) == (5.0, 2, 1)
    assert str(gap) == "+5.0 (-58.5 to +68.5), better on 1 of 2"  # gaps 0 and 10: standard error 5, t(1) = 12.706
    assert paired(Figures({0: 0.5}), Figures({1: 0.5})) is None
    assert str(paired(Figures({0: 0.5}), Figures({0: 0.4}))) == "+10.0, better on 1 of 1"


def test_spread_in_words():
    assert spread({0: 0.5, 1: 0.7}) == "60.0 ± 14.1"
    assert spread({0: 0.5}) == "50.0"
    assert spread({}) == "–"


def test_rank_correlation_of_worked_examples():
    assert rank_correlation([2, 3, 5, 7, 10], [1, 2, 3, 4, 5]) == pytest.approx(1.0)
    assert rank_correlation([1, 2, 3, 4], [1, 3, 2, 4]) == pytest.approx(0.8)
    assert math.isnan(rank_correlation([1, 2], [3, 3]))


@given(st.lists(st.floats(-10, 10), min_size=3, max_size=8))
def test_rank_correlation_agrees_with_scipy(values):
    from scipy.stats import spearmanr

    x = list(range(len(values)))
    if len(set(values)) > 1:
        assert rank_correlation(x, values) == pytest.approx(spearmanr(x, values).statistic)


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("size", ["quick", "default", "full"])
def test_every_cell_of_every_table_is_a_valid_experiment(name, size):
    cells = find_table(name).cells(size)
    assert len({c.key for c in cells}) == len(cells) > 0
    for one in {json.dumps(c.experiment, sort_keys=True): c for c in cells}.values():
        experiment = check_experiment(one.table, one.key)
        files = [site.data for site in experiment.sites or ()] or [experiment.data.dataset]
        assert all(file in DATASETS or file.endswith(".npz") for file in files)
        assert experiment.settings.lr_warning(experiment.method_name) is None


def test_one_seed_has_no_spread_and_decides_nothing_that_needs_one():
    """A table that was cut in its second seed."""
    table, results = find_table("private-labels"), Results()
    for one in table.cells("default"):
        if one.seed == 0:
            labels = one.experiment["data"]["partition"]["labels"]
            results.add(one, result(0.05 * labels + 0.1 * ("tuning" in one.experiment["method"])))
    rows = {row[0]: row[1:] for chapter in table.chapters(results, "default")[2:4] for row in chapter.blocks[0].rows}
    told = {statement.partition(" (")[0]: said for statement, said in rows.items()}
    assert told["3. Private: tuning is better than none"][0] == "not measured"
    assert told["5. Private: tuning increases the deviation over seeds"][0] == "not measured"
    assert told["Private with MSE tuning is at most 1 point worse than private FedAvg"][0] == "not measured"
    assert not any("nan" in figures for _, figures in rows.values())


def test_tuning_that_spreads_the_seeds_is_judged_by_the_distance_from_their_median():
    """Of accuracies 50 to 57 the distances are 3.5 to 0.5; doubled, they are 0.5 to 3.5 larger, 2 on average."""
    table, results = find_table("private-labels"), Results()
    for one in table.cells("default"):
        tuned = one.experiment["method"].get("tuning")
        results.add(one, result(0.5 + 0.01 * (one.seed % 8) * {"mse": 2, "pairwise": 1}.get(tuned, 1)))
    rows = {row[0]: row[1:] for row in table.chapters(results, "default")[2].blocks[0].rows}
    verdict, figures = rows["5. Private: tuning increases the deviation over seeds (from their median)"]
    assert verdict == "undecided"
    assert figures == "FedAvg + MSE +2.0 (+1.0 to +3.0), 8 seeds; FedAvg + pairwise +0.0 (+0.0 to +0.0), 8 seeds"


@pytest.mark.parametrize("name", TABLES)
def test_a_page_can_be_written_before_any_cell_is_finished(name):
    """A run that is cut in its first cell still ends with a page that says so."""
    assert find_table(name).chapters(Results(), "default")
