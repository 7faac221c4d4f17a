"""A table's bars say nothing of what was not run, on any seed or of any contestant they name."""

import pytest

from fedaccord.evaluation.judge import judge_better
from papers.harness.bars import ahead_of_all, combined_verdict, judged_finding, reaches
from papers.harness.cells import Results
from papers.harness.pages import INTERVAL, Finding, Grid, to_markdown
from papers.harness.registry import find_table
from papers.harness.statistics import Figures, by_seed, paired, spread

JUDGING = ["private-labels", "pfedpll", "fedmt", "pfedmo", "fairfedpapl", "fedharmony"]


def filled(name, kept=lambda cell: True):
    """Results of some cells of a table, with every figure that any page asks for."""
    made = Results()
    for cell in filter(kept, find_table(name).cells("default")):
        accuracy = 0.5 + 0.01 * (len(str(cell.row)) % 7) + 0.001 * cell.seed
        figures = {"accuracy": accuracy, "disambiguation": 0.5, "matrix_error": 1.0, "confident": 0.5}
        figures |= {"map": accuracy, "of1": accuracy, "correlation_error": 0.1}
        fair = {"eod": -0.1, "spd": -0.1, "members": 9, "members_with_label": 5}
        fair |= {f"{figure}_candidate": value for figure, value in fair.items()}
        scopes = {"global": figures | fair, "sites": {"mean": figures}, "set_size": 3.0}
        curve = [{"round": r, "global": figures, "sites": {"matrix_error": 1.0}} for r in (1, 2)]
        steps = [{"round": r, "excluded": 0.1, "hostile_excluded": 0.9, "false_exclusions": 0.1} for r in (1, 2, 3)]
        made.add(cell, {"final": scopes, "best": scopes, "curve": curve, "steps": steps, "seconds": 1.0})
    return made


def judged(name, results):
    chapters = find_table(name).chapters(results, "default")
    grids = [b for c in chapters for b in c.blocks if isinstance(b, Grid) and b.head[:2] == ("statement", "verdict")]
    return {row[0]: row[1] for grid in grids for row in grid.rows}


@pytest.mark.parametrize("name", JUDGING)
def test_nothing_is_said_of_a_table_cut_after_its_first_seed(name):
    results = filled(name, lambda cell: cell.seed == 0)
    assert set(judged(name, results).values()) == {"not measured"}
    assert "nan" not in to_markdown("t", find_table(name).chapters(results, "default"))


@pytest.mark.parametrize("name", JUDGING)
def test_everything_is_said_of_a_whole_table(name):
    assert "not measured" not in judged(name, filled(name)).values()


@pytest.mark.parametrize(
    ("name", "missing", "unsaid", "said"),
    [
        (
            "fedmt",
            "FedTrans",
            "CLINC150, n = 5: FedMT (E) is better than every baseline",
            "CLINC150, n = 5: FedMT (T) is at most 0.5 worse than FedMT (E)",
        ),
        (
            "fedmt",
            "likelihood only (T)",
            "CLINC150, gamma 0.9: fedmt+ is better than FedMT (E), likelihood only and SemiFL",
            "CLINC150, n = 5: FedMT (E) is better than every baseline",
        ),
        ("pfedpll", "Fed_RC", "Lost: pFedPLL is better than every baseline", "Lost: pFedPLL reaches at least 56.04"),
        ("pfedpll", "pfedpll+", "Lost: pfedpll+ reaches at least 68", "MNIST: pFedPLL is better than every baseline"),
        (
            "pfedpll",
            "local, pFedPLL's loss",
            "Lost: pfedpll+ is at least 3 points better than local training",
            "Lost: pfedpll+ reaches at least 68",
        ),
        (
            "pfedpll",
            "pFedPLL_LCP",
            "The full method is better than every ablation of its components",
            "All three loss terms are better than any subset",
        ),
        (
            "pfedmo",
            "Mime",
            "LeNet-5, MNIST, 3 classes per site: pFedMo is better than all nine baselines",
            "The default rule is better than the printed one, 3 classes per site",
        ),
        (
            "private-labels",
            "FedProx",
            "2. Private FedAvg and FedProx are within 3 points of their public forms",
            "4. Public: pairwise is better than MSE",
        ),
    ],
)
@pytest.mark.parametrize("seed", [None, 1])
def test_a_bar_is_silent_if_one_of_those_it_names_is_missing_or_lacks_a_seed(name, missing, unsaid, said, seed):
    found = judged(name, filled(name, lambda cell: cell.row[-1] != missing or seed not in (None, cell.seed)))
    assert found[unsaid] == "not measured"
    assert found[said] != "not measured"


@pytest.mark.parametrize(
    ("verdicts", "of_all", "of_any"),
    [
        (["holds", "holds"], "holds", "holds"),
        (["holds", "undecided"], "undecided", "holds"),
        (["holds", "refuted"], "refuted", "holds"),
        (["undecided", "refuted"], "refuted", "undecided"),
        (["refuted", "refuted"], "refuted", "refuted"),
        ([], "undecided", "undecided"),
    ],
)
def test_a_statement_on_several_comparisons(verdicts, of_all, of_any):
    assert combined_verdict(verdicts, "all") == of_all
    assert combined_verdict(verdicts, "any") == of_any


def test_a_small_gain_with_a_large_error_is_undecided_and_says_so():
    """Differences 2.4, 0.4 and -1.6 points: mean 0.4, standard error 1.155, t(2) = 4.303."""
    ours, theirs = Figures({0: 0.924, 1: 0.904, 2: 0.884}), Figures({0: 0.9, 1: 0.9, 2: 0.9})
    found = ahead_of_all("better", ours, {"DOMO": theirs}, 3)
    assert (found.verdict, found.figures) == ("undecided", "DOMO +0.4 (-4.6 to +5.4), 3 seeds")


def test_the_figures_of_an_unfinished_bar_name_what_is_missing():
    ours = Figures({0: 0.5, 1: 0.6})
    found = ahead_of_all("ahead", ours, {"A": Figures({0: 0.4, 1: 0.5}), "B": Figures()}, 2)
    assert (found.verdict, found.figures) == (None, "A +10.0 (+10.0 to +10.0), 2 seeds; not on all seeds: B")
    assert ahead_of_all("ahead", ours, {"B": Figures()}, 2).figures == "–"


def test_of_many_rivals_those_that_prevent_the_statement_are_shown():
    rivals = {name: Figures({0: 0.4, 1: 0.41}) for name in "ABCDE"}
    ours = Figures({0: 0.5, 1: 0.52})
    assert ahead_of_all("ahead", ours, rivals, 2).figures.startswith("closest: A +10.5 (")
    rivals["D"] = Figures({0: 0.6, 1: 0.62})
    found = ahead_of_all("ahead", ours, rivals, 2)
    assert (found.verdict, found.figures) == ("refuted", "D -10.0 (-10.0 to -10.0), 2 seeds")


def test_a_mean_comes_to_a_bar_only_on_all_seeds_and_by_its_interval():
    assert reaches("at 50", Figures({0: 0.52, 1: 0.53}), 50, 2).verdict == "undecided"  # 52.5 +- 6.4
    assert reaches("at 50", Figures({0: 0.52, 1: 0.52, 2: 0.53}), 50, 3).verdict == "holds"
    assert reaches("at 50", Figures({0: 0.4, 1: 0.4}), 50, 2).verdict == "refuted"
    assert reaches("at 50", Figures({0: 0.9}), 50, 2).verdict is None


def test_a_seed_without_a_figure_leaves_a_statement_undecided_and_is_counted():
    ours, theirs = Figures({0: 0.9, 1: 0.9}, failed=[2]), Figures({0: 0.1, 1: 0.1, 2: 0.1})
    found = ahead_of_all("ahead", ours, {"A": theirs}, 3)
    assert found.verdict == "undecided"
    assert found.figures == "A +80.0 (+80.0 to +80.0), 2 seeds, 1 of 3 without a figure"
    assert str(paired(ours, theirs)) == "+80.0 (+80.0 to +80.0), better on 2 of 2, 1 without a figure"


def test_a_verdict_without_an_interval_cannot_be_shown():
    for verdict in ("holds", "refuted"):
        with pytest.raises(ValueError, match="has no interval"):
            Finding("better", verdict, "+3.0, se 0.1")
    assert judged_finding("better", {"": judge_better([3.0])}, 1).figures == "+3.0, one seed has no interval"


@pytest.mark.parametrize("name", JUDGING)
def test_on_a_page_every_verdict_has_its_interval(name):
    page = to_markdown("t", find_table(name).chapters(filled(name), "default"))
    lines = [line for line in page.splitlines() if {"holds", "refuted"} & set(line.split(" | "))]
    assert len(lines) >= 3
    assert [line for line in lines if not INTERVAL.search(line)] == []
    assert "does not hold" not in page


def test_an_empty_mean_is_a_dash_and_digits_are_as_asked():
    assert spread({}, 1.0, digits=2) == "–"
    assert spread({0: 2.991, 1: 2.989}, 1.0, digits=2) == "2.99 ± 0.00"


def test_a_cell_shows_seeds_without_a_figure_and_dropped_sites():
    assert spread(Figures({0: 0.5, 1: 0.5}, failed=[2])) == "50.0 ± 0.0 (2 of 3 seeds)"
    assert spread(Figures({0: 0.5, 1: 0.5}, dropped=[1])) == "50.0 ± 0.0 †"
    assert spread(Figures(failed=[0])) == "– (0 of 1 seeds)"


def test_figures_are_those_of_the_cells_that_have_them():
    """Seed 0 is whole, 1 diverged, 2 lacks the figure, 3 dropped a site, 4 crashed."""
    cells = {seed: {"final": {"global": {"accuracy": 0.5}}, "dropped": []} for seed in range(4)}
    cells[1]["final"] = {"global": {"accuracy": float("nan")}}
    cells[2]["final"] = {"global": {}}
    cells[3]["dropped"] = ["site-1: its update is not finite"]
    results = Results({("a", "b"): cells}, {"a/b/seed-4": "broken", "a/b c/seed-0": "another row"})
    found = results.values(("a", "b"))
    assert (found, found.failed, found.dropped) == ({0: 0.5, 3: 0.5}, {1, 2, 4}, {3})
    nobody = results.values(("a", "b"), "global.map")  # nobody has this figure, so it did not fail
    assert (nobody, nobody.failed) == ({}, {4})
    assert by_seed(lambda a, b: a - b, found, found).failed == {1, 2, 4}


def test_a_curve_has_a_first_and_a_last_round():
    curve = [{"round": r, "sites": {"matrix_error": 4.0 - r}} for r in (1, 2, 3)]
    results = Results({("a",): {0: {"curve": curve}}})
    assert results.values(("a",), "sites.matrix_error", "first") == {0: 3.0}
    assert results.values(("a",), "sites.matrix_error", "last") == {0: 1.0}
