"""The table on fairness: its runs can be checked, and what its page says of figures is right."""

import math

import pytest

from fedaccord.config import check_experiment
from papers.fairfedpapl import published
from papers.fairfedpapl.cells import ATTACKS, DEFENCES, NONE, READINGS, SCENARIOS, SCORES, places, row_of
from papers.fairfedpapl.figures import late_mean
from papers.fairfedpapl.table import cells, chapters
from papers.harness.cells import Results
from papers.harness.pages import to_html, to_markdown
from papers.harness.registry import find_table

NAME = "COMPAS, African-American"


def result(eod, accuracy=0.64, **steps):
    figures = {"accuracy": accuracy, "eod": eod, "spd": eod / 2, "members": 600, "members_with_label": 160}
    figures |= {"others": 580, "others_with_label": 50}
    late = [{"round": number, **steps} for number in (1, 2, 3)] if steps else []
    return {"final": {"global": figures}, "best": {"global": {}}, "steps": late, "seconds": 1.0}


def table_lines(page):
    """A page's lines of tables, by their first cell."""
    return {line.split(" | ")[0].removeprefix("| "): line for line in page.splitlines() if line.startswith("| ")}


@pytest.fixture
def results():
    """Attacks move EOD by 0.3; every defence but one leaves half of that."""
    found = Results()
    for seed in (0, 1):
        for attack in (NONE, *ATTACKS):
            for defence in DEFENCES:
                left = {NONE: 0.3, "group-update": 0.03}.get(defence, 0.15) if attack != NONE else 0.0
                told = {"excluded": 0.04} if attack == NONE else {"hostile_excluded": 0.95, "false_exclusions": 0.02}
                told = told if defence in SCORES else {}
                for name, partition in places("quick"):
                    cell = result(-0.2 - left - 0.001 * seed, **told)
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


def test_studies_run_on_ten_seeds_and_read_labels_under_both_partitions():
    """The comparison comes first, and a cut run has complete seeds of it."""
    runs = cells("default")
    seeds = {}
    for cell in runs:
        seeds.setdefault(cell.row, set()).add(cell.seed)
    assert all(found == set(range(10)) for found in seeds.values())
    for name in READINGS:
        assert {row[1] for row in seeds if row[0] == name} == {"iid", "skewed"}
    main = [cell.row[0] in SCENARIOS and cell.row[4] in (NONE, *ATTACKS) for cell in runs[:3280]]
    assert all(main)


def test_more_sites_take_as_many_steps_in_a_round():
    """Of 4938 training rows, about; only these runs name the size of a batch."""
    batches = {cell.row[2]: cell.experiment["method"].get("batch") for cell in cells("default")}
    assert batches == {"10 sites": None, "50 sites": 6, "100 sites": 3}
    steps = [math.ceil(4938 // sites / (batches[f"{sites} sites"] or 32)) for sites in (10, 50, 100)]
    assert max(steps) - min(steps) <= 1


def test_more_sites_are_shown_by_both_figures(results):
    for sites, moved in ((50, 0.12), (100, 0.16)):
        for attack, eod in ((NONE, -0.2), ("plfa", -0.2 - moved)):
            results.cells[row_of(NAME, "iid", attack, NONE, sites=sites)] = {0: result(eod), 1: result(eod)}
    page = to_markdown("t", chapters(results, "default")).split("## More sites")[1]
    assert "6 with 50 sites, 3 with 100 sites instead of 32" in page
    line = next(line for line in page.splitlines() if line.startswith("| none |"))
    assert "0.120 ± 0.000 / 0.060 ± 0.000; –; – | 0.160 ± 0.000 / 0.080 ± 0.000; –; – |" in line


def test_runs_of_a_seed_are_paired(results):
    runs = [cell for cell in cells("default") if cell.seed == 3 and cell.row[0] == NAME and cell.row[1] == "iid"]
    data = {str(cell.experiment["data"]) for cell in runs if cell.row[2] == "10 sites"}
    assert len(data) == 1
    by_row = {cell.row: cell.experiment["method"] for cell in runs}
    alone = by_row[row_of(NAME, "iid", NONE, "honest sites only")]
    assert len(alone["sites"]) == 7


def test_the_page_tells_the_best_defence_and_the_bars(results):
    page = to_markdown("t", chapters(results, "quick"))
    assert page.index("False exclusions") < page.index("Criteria")
    assert "applied to the defence with the lowest value, `group-update`," in page
    lines = table_lines(page)
    assert "holds" in lines["group-update: delta EOD under plfa is lower than without defence"]
    assert (
        "lower by +0.270 (+0.270 to +0.270), 2 seeds"
        in lines["group-update: delta EOD under plfa is lower than without defence"]
    )
    assert (
        "mean % +95.0 (+95.0 to +95.0), 2 seeds; scenarios from 95.0 to 95.0"
        in lines["group-update: hostile sites are excluded in at least 90 % of the last third of the rounds"]
    )
    assert "4.0" in lines[f"{NAME}, iid: group-update"]
    assert "inversion: delta EOD under mixup is lower than without defence" in lines
    assert "0.124 *" in page
    assert "<table" in to_html("t", chapters(results, "default"))


def test_an_unfinished_table_has_a_page():
    assert "not measured" in to_markdown("t", chapters(Results(), "default"))


@pytest.mark.parametrize(
    ("attack", "defence"),
    [(NONE, NONE), ("mixup", NONE), ("mixup", "median"), ("mixup", "group-update"), ("pafa", "probe")],
)
def test_bars_are_silent_if_a_seed_lacks_a_figure_that_they_compare(results, attack, defence):
    """A run without a rate is as missing as one that was not run: whoever is best without it may not be so with it."""
    del results.cells[row_of(NAME, "iid", attack, defence)][1]["final"]["global"]["eod"]
    page = to_markdown("t", chapters(results, "quick"))
    assert "for the lowest of the defences" not in page
    assert "nan" not in page
    assert {line.split(" | ")[1] for name, line in table_lines(page).items() if name.startswith("The best")} == {
        "not measured"
    }


def test_shares_of_excluded_sites_are_judged_only_if_every_scenario_has_them(results):
    results.cells[row_of(NAME, "iid", "pafa", "group-update")][1]["steps"] = []
    lines = table_lines(to_markdown("t", chapters(results, "quick")))
    assert (
        "not measured"
        in lines["group-update: hostile sites are excluded in at least 90 % of the last third of the rounds"]
    )
    assert (
        "not measured"
        in lines["group-update: honest sites are excluded in at most 10 % of the last third of the rounds under attack"]
    )
    assert (
        "holds"
        in lines[
            "group-update: honest sites are excluded in at most 10 % of the last third of the rounds without attack"
        ]
    )


def test_accuracy_is_judged_only_if_every_scenario_has_it(results):
    del results.cells[row_of(NAME, "iid", "pafa", "group-update")][1]["final"]["global"]["accuracy"]
    lines = table_lines(to_markdown("t", chapters(results, "quick")))
    close = "group-update: accuracy at most 1 point below that of the run without attack"
    assert "| undecided | mean +0.0, one seed has no interval, 1 of 2 without a figure" in lines[close]
    assert "| undecided |" in lines[f"{close}, in every scenario under every attack"]


def test_a_scenario_without_its_calm_run_stays_on_the_page(results):
    del results.cells[row_of(NAME, "iid", NONE, NONE)]
    page = to_markdown("t", chapters(results, "quick"))
    assert f"## {NAME}, iid" in page
    assert "nan" not in page


@pytest.mark.parametrize(("rounds", "late"), [(6, 2), (20, 7), (21, 1), (24, 4), (50, 30)])
def test_exclusions_count_after_round_20_or_in_the_last_third_of_a_shorter_run(rounds, late):
    steps = [{"round": number, "excluded": float(number > rounds - late)} for number in range(1, rounds + 1)]
    row = row_of(NAME, "iid", NONE, "probe")
    assert late_mean(Results({row: {0: {"steps": steps}}}), row, "excluded") == {0: 1.0}
    steps[rounds - late - 1]["excluded"] = 99.0  # one round earlier does not count
    assert late_mean(Results({row: {0: {"steps": steps}}}), row, "excluded") == {0: 1.0}


@pytest.mark.parametrize(
    ("size", "rounds"),
    [
        ("quick", "90 % of the last third of the rounds"),
        ("default", "90 % of rounds after round 20"),
        ("full", "90 % of rounds after round 20, or the last third of the rounds of shorter runs"),
    ],
)
def test_a_bar_says_which_rounds_it_is_about(results, size, rounds):
    for name, partition in places(size):
        for attack in (NONE, *ATTACKS):
            for defence in DEFENCES:
                seen = results.cells[row_of(NAME, "iid", attack, defence)][0]
                figures = seen["final"]["global"]
                figures |= {f"{figure}_candidate": value for figure, value in list(figures.items())}
                results.cells[row_of(name, partition, attack, defence)] = dict.fromkeys(range(20), seen)
    page = to_markdown("t", chapters(results, size))
    assert f"group-update: hostile sites are excluded in at least {rounds} | holds" in page


def test_studies_compare_the_same_seeds(results):
    """A row of the comparison, which has more seeds, stands in a study with the study's own."""
    row = row_of(NAME, "iid", "plfa", "probe")
    found = {seed: result(-0.2, hostile_excluded=float(seed < 10), false_exclusions=0.0) for seed in range(20)}
    results.cells[row] = found
    page = to_markdown("t", chapters(results, "full")).split("## Settings of the defences")[1]
    assert "| 100 / 0 |" in next(line for line in page.splitlines() if line.startswith("| probe |"))


def test_a_figure_that_some_seeds_lack_says_how_many_have_it(results):
    seeds = results.cells[row_of(NAME, "iid", "pafa", "median")]
    del seeds[1]["final"]["global"]["eod"]
    lines = [line for line in to_markdown("t", chapters(results, "quick")).splitlines() if "| median | pafa |" in line]
    assert lines[0].count("(1 of 2 seeds)") == 2  # EOD and its delta
    assert "seeds)" not in lines[1]


def test_a_scenario_by_candidate_groups_shows_true_ones_beside():
    name, found = "COMPAS, Asian", Results()
    for seed in (0, 1):
        figures = {"eod_candidate": -0.1, "members_candidate": 120, "members_with_label_candidate": 23, "members": 6}
        figures |= {"others_candidate": 900, "others_with_label_candidate": 190, "others": 1014}
        figures |= {"others_with_label": 212}
        figures |= {"members_with_label": 1, "accuracy": 0.6} | ({} if seed else {"eod": -0.75})
        for attack in (NONE, "plfa"):
            cell = {"final": {"global": figures}, "best": {}, "seconds": 1.0}
            found.cells.setdefault(row_of(name, "iid", attack, NONE), {})[seed] = cell
    page = to_markdown("t", chapters(found, "default"))
    assert "120 ± 0 test rows in the group (23 ± 0 with the label) and 900 ± 0 others (190 ± 0 with it) by cand" in page
    assert "6 ± 0 test rows in the group (1 ± 0 with the label) and 1014 ± 0 others (212 ± 0 with it) by true" in page
    assert "| none | plfa | 60.0 ± 0.0 | -0.100 ± 0.000 | 0.000 ± 0.000 | – | -0.750 (1 of 2 seeds) |" in page


def test_general_attacks_stand_beside_no_attack_and_the_page_says_which_do_no_harm(results):
    for attack, accuracy in (("label-flip", 0.62), ("sign-flip", 0.3), ("scaling", 0.636)):
        row = row_of(NAME, "iid", attack, NONE)
        results.cells[row] = dict.fromkeys((0, 1), result(-0.2, accuracy))
    page = to_markdown("t", chapters(results, "default")).split("## General attacks")[1]
    changes = "label-flip -2.0 (-2.0 to -2.0), sign-flip -34.0 (-34.0 to -34.0), scaling -0.4 (-0.4 to -0.4)"
    assert f"(95 % intervals): {changes}; a loss of 1 or more is not shown for scaling. " in page
    assert "Strengths: sign-flip 4, scaling 100, alie 40, ipm 5;" in page
    lines = table_lines(page)
    assert lines["none"].startswith("| none | 64.0 ± 0.0 | 62.0 ± 0.0; – | 30.0 ± 0.0; – | 63.6 ± 0.0; – |")
    assert lines["probe"].startswith("| probe | 64.0 ± 0.0; 4.0 ± 0.0 |")


def test_precision_is_the_share_of_hostile_sites_among_the_excluded(results):
    """Of 3 hostile sites 2 are excluded, of 7 honest ones 1: two of three. Who excludes nobody has no precision."""
    row = row_of(NAME, "iid", "plfa", "probe")
    steps = [result(-0.3, hostile_excluded=2 / 3, false_exclusions=1 / 7)]
    steps.append(result(-0.3, hostile_excluded=0.0, false_exclusions=0.0))
    results.cells[row] = dict(enumerate(steps))
    lines = [line for line in to_markdown("t", chapters(results, "quick")).splitlines() if "| probe | plfa |" in line]
    assert lines[0].endswith("| 33 / 7 | 66.7 (1 of 2 seeds) |")
    assert "precision" in to_markdown("t", chapters(results, "quick")).split("## False exclusions")[0].lower()


def test_every_published_delta_but_the_marked_is_that_of_its_figures():
    calm = {"COMPAS": (-0.087, -0.078), "STUDENT": (-0.023, 0.014), "COMPAS_SPD": (-0.091,)}
    for table, without in calm.items():
        for method, *cells_ in getattr(published, table):
            for number, cell in enumerate(cells_):
                _, value, delta = cell.removesuffix(" *").split("/")
                right = abs(abs(float(value) - without[number // 3]) - float(delta)) < 0.0011
                assert right != cell.endswith("*"), (table, method, cell)
    assert "0.751/-0.094/0.003" in to_markdown("t", chapters(Results(), "quick"))


def test_published_figures_stand_beside_ours():
    found = Results()
    for name, attack, defence in (
        ("COMPAS, Asian", "mixup", NONE),
        ("COMPAS, Asian", "plfa", "probe"),
        ("COMPAS, Asian", NONE, NONE),
        ("Student, Asian", "pafa", "inversion"),
        (NAME, "plfa", NONE),
    ):
        found.cells[row_of(name, "skewed", attack, defence)] = {0: result(-0.2)}
    page = to_markdown("t", chapters(found, "default"))
    assert page.count("published delta EOD |") == 4  # two data sets, dealt alike and skewed

    def line(name, begin):
        part = page.split(f"## {name}, skewed")[1].split("##")[0]
        return next(line for line in part.splitlines() if line.startswith(begin))

    assert line("COMPAS, Asian", "| none | mixup").endswith("| 75.4 | 0.124 * |")
    assert line("COMPAS, Asian", "| none | none").endswith("| 75.9 | – |")
    assert line("COMPAS, Asian", "| probe | plfa").endswith("| – | – |")
    assert line("Student, Asian", "| inversion | pafa").endswith("| 58.5 | 0.003 |")


@pytest.mark.parametrize("size", ["quick", "default"])
def test_the_page_says_how_test_rows_were_drawn_and_which_flips_were_not_run(results, size):
    said = to_markdown("t", chapters(results, size))
    assert "holds out a fifth of its rows at random, regardless of label and group" in said
    assert "cyclic flips were not run" in said
    assert ("published test part" in said) == (size != "quick")
    assert "| multi-krum | plfa |" in said


@pytest.mark.parametrize(
    ("size", "rounds", "late"),
    [
        ("quick", "rounds: 6 (published: COMPAS 50, Student 20 iid and 60 skewed)", "after the 20th; for runs"),
        (
            "default",
            "rounds: 24 (published: COMPAS 50, Student 20 iid and 60 skewed)",
            "after the 20th, here 4 rounds, 21 to 24; for runs",
        ),
        ("full", "rounds: as published (COMPAS 50, Student 20 iid and 60 skewed)", "after the 20th; for runs"),
    ],
)
def test_the_page_says_how_far_runs_were_cut_short(size, rounds, late):
    said = to_markdown("t", chapters(Results(), size))
    assert rounds in said
    assert late in said
