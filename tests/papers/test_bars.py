"""A table's bars say nothing of what was not run, on any seed or of any contestant they name."""

import pytest

from papers.harness.bars import ahead_of_all, is_ahead, reaches, verdict
from papers.harness.cells import Results
from papers.harness.pages import Grid, to_markdown
from papers.harness.registry import find_table
from papers.harness.statistics import Paired, spread

JUDGING = ["private-labels", "pfedpll", "fedmt", "pfedmo", "fairfedpapl"]


def filled(name, kept=lambda cell: True):
    """Results of some cells of a table, with every figure that any page asks for."""
    made = Results()
    for cell in filter(kept, find_table(name).cells("default")):
        accuracy = 0.5 + 0.01 * (len(str(cell.row)) % 7) + 0.001 * cell.seed
        figures = {"accuracy": accuracy, "disambiguation": 0.5, "matrix_error": 1.0, "confident": 0.5}
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
            "CLINC150, n = 5: FedMT (T) is not worse than FedMT (E)",
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
            "LeNet-5, MNIST, 3 classes per site: pFedMo is better than all nine baselines, mean over paired seeds",
            "The default rule is better than the printed one, 3 classes per site",
        ),
        (
            "private-labels",
            "FedProx",
            "2. Private FedAvg and FedProx perform similarly to their public forms (mean differences within 3 points)",
            "4. Public: pairwise is better than MSE (mean difference above 0)",
        ),
    ],
)
@pytest.mark.parametrize("seed", [None, 1])
def test_a_bar_is_silent_if_one_of_those_it_names_is_missing_or_lacks_a_seed(name, missing, unsaid, said, seed):
    found = judged(name, filled(name, lambda cell: cell.row[-1] != missing or seed not in (None, cell.seed)))
    assert found[unsaid] == "not measured"
    assert found[said] != "not measured"


def test_a_verdict_in_numbers():
    ahead, behind, short = Paired(1.0, 0.1, 5, 5), Paired(-1.0, 0.1, 5, 0), Paired(9.0, 0.1, 2, 2)
    assert verdict([ahead, ahead], 5, is_ahead) is True
    assert verdict([ahead, behind], 5, is_ahead) is False
    assert verdict([ahead, behind], 5, is_ahead, of=any) is True
    assert verdict([ahead, short], 5, is_ahead) is None
    assert verdict([behind, None], 5, is_ahead) is None
    assert verdict([], 5, is_ahead) is None


def test_the_figures_of_an_unfinished_bar_name_what_is_missing():
    gaps = {"A": Paired(1.0, 0.1, 5, 5), "B": None, "C": Paired(9.0, 0.1, 2, 2)}
    found = ahead_of_all("ahead", gaps, 5)
    assert found.holds is None
    assert found.figures == "closest: A, +1.0, se 0.1, better on 5 of 5; not on all 5 seeds: B, C"
    assert ahead_of_all("ahead", {"B": None}, 5).figures == "–"


def test_a_mean_comes_to_a_bar_only_on_all_seeds():
    assert reaches("at 50", {0: 0.5, 1: 0.5}, 50, 2).holds is True
    assert reaches("at 50", {0: 0.5, 1: 0.48}, 50, 2).holds is False
    assert reaches("at 50", {0: 0.9}, 50, 2).holds is None


def test_an_empty_mean_is_a_dash_and_digits_are_as_asked():
    assert spread({}, 1.0, digits=2) == "–"
    assert spread({0: 2.991, 1: 2.989}, 1.0, digits=2) == "2.99 ± 0.00"
