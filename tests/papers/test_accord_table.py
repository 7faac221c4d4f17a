"""The table of accord: its stages, its verdicts, trees and the files that it makes."""

from xml.etree import ElementTree

import numpy as np
import pytest

from fedaccord.config import check_experiment
from fedaccord.evaluation.judge import Interval, mean_interval
from papers.accord import made_data
from papers.accord.cells import (
    SCALES,
    SEARCH_SEED,
    apart_cell,
    cells,
    chosen_rate,
    compared_cell,
    estimate,
    experiment,
    follow_ups,
    runner_up,
)
from papers.accord.compared import standing
from papers.accord.contestants import ACCORD, LOCAL, POOLED, REGULARISED, TREES, contestants, rates
from papers.accord.every_site import SiteDifference, SiteStatement, better_ways, site_statement
from papers.accord.flamby import flamby_blocks, pooled_accuracy
from papers.accord.forest import ForestRow, forest_plot
from papers.accord.sets import EVERY, FLAMBY_SETS, SETS
from papers.accord.table import chapters
from papers.accord.trees import class_chances, run_apart, run_cell
from papers.harness.cells import Results
from papers.harness.pages import pictures, to_html, to_markdown

DEFAULT = SCALES["default"]
SET = "heart, 4 hospitals"


def judged(nll):
    return {
        "figures": {"global": {}, "sites": {"mean": {"nll": nll}, "each": {"a": {"nll": nll}}}},
        "server_judges": False,
    } | {
        "not_judged": [],
        "dropped": 0,
        "seconds": 1.0,
    }


def figures_of(accuracy, sites=None):
    each = {site: {"accuracy": value, "samples": 10.0} for site, value in (sites or {"a": accuracy}).items()}
    return {"final": {"global": {}, "sites": {"mean": {"accuracy": accuracy}, "each": each}}, "seconds": 1.0}


def searched(best=1):
    """Return the results of a search on one set in which one of the rates is the best for everybody."""
    results = Results()
    for contestant in contestants(SETS[SET]):
        for place, rate in enumerate(rates(SETS[SET], contestant)):
            results.add(apart_cell(DEFAULT, SET, contestant, rate, SEARCH_SEED), judged(1.0 + abs(place - best)))
    return results


def compared(figures, seeds=5):
    """Return the results of a set after its first seeds; contestants without figures reach 0.5."""
    results = searched()
    for contestant in contestants(SETS[SET]):
        for seed in range(seeds):
            value = figures.get(contestant.name, [0.5] * seeds)[seed]
            results.add(
                compared_cell(DEFAULT, SET, contestant, rates(SETS[SET], contestant)[1], seed), figures_of(value)
            )
    return results


def test_there_are_sixteen_sets_of_every_kind_and_all_experiments_are_valid():
    assert len(SETS) >= 16
    assert {chosen.kind for chosen in SETS.values()} == {
        *("candidates", "exact", "few labels", "coarse", "tags", "mixture")
    }
    for name, chosen in EVERY.items():
        named = [contestant.name for contestant in contestants(chosen)]
        assert {ACCORD, LOCAL, "fedavg", POOLED} <= set(named), name
        for contestant in contestants(chosen):
            check_experiment(experiment(DEFAULT, chosen, contestant, rates(chosen, contestant)[0]))
            assert len(rates(chosen, contestant)) == 3  # the same budget for everybody
    assert TREES in [contestant.name for contestant in contestants(SETS[SET])]


def test_the_search_comes_first_and_its_rows_are_apart_from_the_test():
    first = cells("default")
    assert {cell.runner.rpartition(":")[2] for cell in first} == {"run_apart"}
    assert {cell.seed for cell in first} == {SEARCH_SEED}
    assert follow_ups(Results(), "default") == []


def test_what_is_compared_has_the_rate_that_the_search_chose():
    for best in range(3):
        results = searched(best)
        found = {c.row[-1]: c for c in follow_ups(results, "default") if c.row[0] == SET and c.seed == 4}
        assert found[ACCORD].table["method"]["lr"] == rates(SETS[SET], contestants(SETS[SET])[0])[best]
        assert found[TREES].table["method"]["lr"] == [0.0333, 0.1, 0.3][best]
    seeds = {name: {c.seed for c in follow_ups(results, "default") if c.row == (SET, name)} for name in found}
    assert seeds[ACCORD] == seeds[LOCAL] == seeds[REGULARISED] == set(range(10))
    assert seeds["fedavg"] == set(range(5))


def test_a_rate_that_fails_is_not_chosen():
    results, contestant = searched(0), contestants(SETS[SET])[0]
    first = apart_cell(DEFAULT, SET, contestant, rates(SETS[SET], contestant)[0], SEARCH_SEED)
    del results.cells[first.row]
    assert chosen_rate(results, DEFAULT, SET, contestant) is None  # the search is not finished
    results.failed[first.key] = "diverged"
    assert chosen_rate(results, DEFAULT, SET, contestant) == rates(SETS[SET], contestant)[1]


def test_the_runner_up_gets_further_seeds_and_pooled_training_is_not_ranked():
    results = compared({"fedprox": [0.9] * 5, POOLED: [1.0] * 5, ACCORD: [0.95] * 5})
    assert runner_up(results, DEFAULT, SET) == "fedprox"
    seeds = {c.seed for c in follow_ups(results, "default") if c.row == (SET, "fedprox")}
    assert seeds == set(range(10))


def test_within_one_standard_error_of_the_first_counts_as_first():
    # Differences to fedavg: -3, +1, -3, +1, -1: mean -1, standard error 2 / sqrt 5 = 0.894.
    ours = [0.70, 0.74, 0.70, 0.74, 0.72]
    behind = standing(compared({ACCORD: ours, "fedavg": [0.73] * 5}), SET)
    assert behind.rival == "fedavg"
    assert (behind.gap.mean, behind.error) == pytest.approx((-1.0, 0.8944), abs=1e-4)
    assert not behind.is_first
    assert standing(compared({ACCORD: ours, "fedavg": [0.728] * 5}), SET).is_first  # behind by 0.8
    assert standing(compared({ACCORD: ours}), SET).is_first


def test_a_site_chooses_its_way_of_training_alone_on_rows_apart():
    apart = {
        LOCAL: {"a": {"nll": 0.3}, "b": {"nll": 0.9}, "c": {}},
        REGULARISED: {"a": {"nll": 0.5}, "b": {"nll": 0.7}},
    }
    assert better_ways(apart) == {"a": LOCAL, "b": REGULARISED}
    assert better_ways({}) == {}


def test_sites_are_compared_with_the_way_chosen_apart_not_with_the_best_on_the_test():
    results = searched()
    for contestant in contestants(SETS[SET]):
        rate = rates(SETS[SET], contestant)[1]
        figures = {ACCORD: 0.8, LOCAL: 0.7, REGULARISED: 0.9}.get(contestant.name)
        for seed in range(3) if figures else ():
            # At "a" the plain way is better on rows apart, at "b" the regularised one.
            values = {"a": figures + 0.01 * seed * (contestant.name == ACCORD), "b": figures}
            results.add(compared_cell(DEFAULT, SET, contestant, rate, seed), figures_of(0.0, values))
            if contestant.name != ACCORD:
                cell, plain = judged(0.0), contestant.name == LOCAL
                losses = (0.1, 0.2) if plain else (0.2, 0.1)
                cell["figures"]["sites"]["each"] = {site: {"nll": nll} for site, nll in zip("ab", losses, strict=True)}
                results.add(apart_cell(DEFAULT, SET, contestant, rate, seed), cell)
    for contestant in contestants(SETS[SET]):  # the search was judged at the same sites
        for place in (0, 2):
            cell = results.cells[apart_cell(DEFAULT, SET, contestant, rates(SETS[SET], contestant)[place], 0).row][0]
            cell["figures"]["sites"]["each"] = {"a": {"nll": 1.0}, "b": {"nll": 1.0}}
    found = {each.site: each for each in site_statement(results, DEFAULT).sites}
    assert found["a"].interval.mean == pytest.approx(11.0)  # to 0.7, over +10, +11, +12
    assert found["b"].interval.mean == pytest.approx(-10.0)
    assert [each.site for each in site_statement(results, DEFAULT).losing] == ["b"]


def test_the_share_of_losing_sites_is_tested_against_chance():
    worse, better = mean_interval([-3.0, -2.0, -2.5]), mean_interval([1.0, 2.0, -1.0])
    sites = [SiteDifference("x", str(n), worse if n < 2 else better) for n in range(20)]
    statement = SiteStatement(sites)
    assert [each.site for each in statement.losing] == ["0", "1"]
    # 1 - 0.975^20 - 20 * 0.025 * 0.975^19
    assert statement.p_value == pytest.approx(1 - 0.975**20 - 0.5 * 0.975**19)
    assert not SiteDifference("x", "a", Interval(-9.0, -np.inf, np.inf, 1)).loses  # one seed decides nothing


def test_rows_are_pooled_over_hospitals_by_their_number():
    each = {"a": {"accuracy": 1.0, "samples": 30.0}, "b": {"accuracy": 0.5, "samples": 10.0}}
    assert pooled_accuracy({"final": {"sites": {"each": each}}}) == 0.875


def test_the_page_of_a_table_that_was_cut_says_what_is_missing():
    results = compared({ACCORD: [0.9, 0.8, 0.9, 0.8, 0.9]})
    made = chapters(results, "default")
    text = to_markdown("Title", made)
    assert "first, or within one standard error of the first, on 1 of 1 sets" in text
    assert "| Lost | accord, pfedpll+," in text
    assert "`python -m papers accord --data DIR` runs what is missing" in text
    assert "quick form" not in text
    assert "accord-grand.svg" in text
    assert "This is the quick form" in to_markdown("Title", chapters(Results(), "quick"))
    assert [picture.file for picture in pictures(made)] == ["accord-grand.svg"]
    assert "<svg" in to_html("Title", made)
    assert "–" in to_markdown("Title", [type(made[0])("x", flamby_blocks(Results()))])


def test_a_forest_plot_shows_every_interval_and_cuts_those_that_leave_the_axis():
    rows = [
        ForestRow("<a>", [Interval(-1.0, -2.0, 0.0, 5), Interval(1.0, -99.0, 99.0, 2)]),
        ForestRow("b", [Interval(2.0, 1.0, 3.0, 5), None]),
    ]
    root = ElementTree.fromstring(forest_plot("title", ("x", "y"), rows))
    lines = [line for line in root.iter("{http://www.w3.org/2000/svg}line") if "line" in line.get("class").split()]
    assert [line.get("class").split()[1:] for line in lines] == [["c0"], ["c1", "clipped"], ["c0"]]
    low, mid, high = (float(lines[0].get("x1")), 190 + 460 / 2, float(lines[0].get("x2")))
    assert low < high == mid  # an interval from -2 to 0 ends at the zero line


def test_the_estimate_counts_every_run():
    words = estimate("quick", 2)
    first = len(cells("quick"))
    flamby = sum(10 * len(contestants(chosen)) for chosen in FLAMBY_SETS.values())
    assert words.startswith(f"about {first + flamby} runs, ")


def test_trees_give_classes_that_a_site_has_not_seen_a_small_chance():
    x = np.repeat(np.array([[-1.0], [1.0]], dtype=np.float32), 20, axis=0)
    y = np.repeat([0, 2], 20)
    p = class_chances(x, y, np.array([[-1.0], [1.0]], dtype=np.float32), 3, 0.3, 0)
    assert p.argmax(1).tolist() == [0, 2]
    assert np.allclose(p.sum(1), 1)
    assert 0 < p[:, 1].min() <= p[:, 1].max() < 0.001
    assert class_chances(x, np.full(40, 1), x[:2], 3, 0.3, 0).argmax(1).tolist() == [1, 1]


def test_trees_are_trained_at_each_site_and_judged_on_test_rows_or_rows_apart(tmp_path):
    table = {
        "data": {"dataset": "digits", "samples": 300, "partition": {"kind": "iid", "sites": 2}},
        "method": {"name": "local", "lr": 0.1},
    }
    result = run_cell(table, "cpu", tmp_path)
    each = result["final"]["sites"]["each"]
    assert set(each) == {"site-0", "site-1"}
    assert result["final"]["sites"]["mean"]["accuracy"] > 0.4  # guessing gives 0.1
    apart = run_apart(table, "cpu", tmp_path)["figures"]["sites"]["each"]
    assert apart["site-0"]["nll"] != each["site-0"]["nll"]


@pytest.mark.realdata
def test_flambys_hospitals_have_its_rows_and_features():
    hospitals = [made_data.flamby_hospital(name) for name in made_data.HOSPITALS]
    assert sum(len(hospital["y"]) for hospital in hospitals) == 740
    assert {hospital["x"].shape[1] for hospital in hospitals} == {13}
    for hospital in hospitals:
        train = hospital["x"][~hospital["is_test"]]
        assert np.allclose(train.mean(0), 0, atol=1e-9)
        assert len(train) == int(0.66 * len(hospital["y"]))
        spread = train.std(0, ddof=1)
        assert (np.isclose(spread, 1) | np.isclose(spread, 0)).all()
