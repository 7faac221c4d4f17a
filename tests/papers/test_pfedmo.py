"""The table of pFedMo: every cell can be run, pairs are pairs, and the page says what the figures say."""

from __future__ import annotations

import pytest

from fedaccord.config import check_experiment
from fedaccord.methods.registry import METHODS
from papers.harness.cells import Results
from papers.harness.pages import Grid, to_html, to_markdown
from papers.harness.registry import find_table
from papers.harness.worker import run_cell
from papers.pfedmo import table
from papers.pfedmo.cells import CIFAR, HAR, LENET, LINEAR, LOGISTIC
from papers.pfedmo.published import DIRICHLET, LOST, MAIN, MARGINS, MINUTES_TO_TARGET, QUANTITY_SKEW


@pytest.mark.parametrize("size", ["quick", "default", "full"])
def test_every_cell_is_a_sound_experiment(size):
    cells = find_table("pfedmo").cells(size)
    assert len({cell.key for cell in cells}) == len(cells)
    for cell in {cell.row: cell for cell in cells}.values():
        settings = check_experiment(cell.table).settings
        assert settings.rounds * settings.steps == table.SCALES[size].iterations[_task(size, cell)]


def _task(size, cell):
    scale, part = table.SCALES[size], cell.row[0]
    if part == "main":
        return cell.row[1]
    return scale.skew if part == "classes" else scale.study


@pytest.mark.parametrize(("size", "tau"), [("default", 20), ("full", 40)])
def test_people_s_sites_take_the_published_steps_in_a_round_at_full_size(size, tau):
    steps = {cell.experiment["method"]["steps"] for cell in table.cells(size) if cell.row[:2] == ("main", HAR)}
    assert steps == {tau}


def test_methods_of_one_comparison_differ_in_the_method_alone():
    cells = [cell for cell in table.cells("default") if cell.row[:2] == ("classes", "3") and cell.seed == 0]
    assert {cell.row[-1] for cell in cells} == set(table.METHODS_RUN)
    for part in ("data", "server", "model", "run"):
        assert len({str(cell.experiment[part]) for cell in cells}) == 1
    common = ("rounds", "steps", "batch", "lr")
    assert len({tuple(cell.experiment["method"][key] for key in common) for cell in cells}) == 1


def test_everyone_whose_sites_have_nesterov_momentum_is_in_its_study():
    momentum = {name for name, method in table.METHODS_RUN.items() if "gamma" in method} - {table.ALONE}
    cells = [cell for cell in table.cells("default") if cell.row[0] == "gamma"]
    assert {(cell.row[-1], cell.experiment["method"]["gamma"]) for cell in cells} == {
        (name, gamma) for name in momentum for gamma in table.GAMMAS
    }
    assert {cell.experiment["method"].get("beta", 0.5) for cell in cells} == {0.5}
    page = to_markdown("t", table.chapters(filled(lambda row, seed: 0.5), "default"))
    study = page.split("## Nesterov momentum")[1].split("##")[0]
    assert all(f"| {name} | 50.0 ± 0.0 |" in study for name in momentum)
    assert "the server momentum of FastSlowMo stays at 0.5" in study


@pytest.mark.parametrize("size", ["quick", "default", "full"])
def test_on_the_edge_network_every_round_is_evaluated(size):
    edge = [cell for cell in table.cells(size) if cell.row[0] == "edge"]
    assert edge
    assert {cell.experiment["run"]["evaluate_every"] for cell in edge} == {1}


def test_people_are_judged_whom_no_site_and_no_choice_has_seen():
    cells = [cell for cell in table.cells("default") if cell.row[:2] == ("main", HAR)]
    assert cells
    for cell in cells:
        # Windows of one person overlap, so a share of everybody's would hold signal that was trained on.
        assert cell.experiment["data"]["test"] == 0.0
        assert cell.experiment["server"]["unseen"] == [str(n) for n in range(25, 31)]
    assert all("unseen" not in cell.experiment["server"] for cell in table.cells("default") if cell not in cells)


def test_all_nine_baselines_and_the_public_data_alone_are_there_and_nobody_unregistered():
    assert len(table.BASELINES) == 9
    assert table.ALONE in table.METHODS_RUN
    assert all(method["name"] in METHODS for method in table.METHODS_RUN.values())


def filled(accuracy, size="default"):
    """Results whose accuracy is a function of row and seed."""
    results = Results()
    for cell in table.cells(size):
        value = accuracy(cell.row, cell.seed)
        point = {"round": 1, "global": {"accuracy": value}, "sites": {}}
        if cell.row[0] == "edge":
            point["simulated"] = 120.0
        figures = {"global": {"accuracy": value}, "sites": {"mean": {}, "each": {}}}
        results.add(cell, {"final": figures, "best": figures, "curve": [point], "dropped": [], "seconds": 1.0})
    return results


def bars(results):
    grid = next(c for c in table.chapters(results, "default") if c.title == "Criteria").blocks[0]
    assert isinstance(grid, Grid)
    return [verdict for _, verdict, _ in grid.rows]


def test_bars_follow_the_figures():
    def good(row, seed):
        return {table.OURS: 0.9, table.ALONE: 0.85, table.PRINTED: 0.5}.get(row[-1], 0.6) + 0.01 * seed

    assert bars(filled(good)) == ["holds"] * 4
    assert bars(filled(lambda row, seed: 0.95 if row[-1] == "FedMom" else good(row, seed)))[0] == "refuted"
    assert bars(filled(lambda row, seed: good(row, seed) - 0.05 * (row[1] == "3")))[1] == "refuted"
    near = bars(filled(lambda row, seed: 0.91 if row[-1] == table.ALONE else good(row, seed)))
    assert near[2] == "undecided"  # differences of -1, 0 and +1 points
    assert bars(Results()) == ["not measured"] * 4


def test_the_page_says_what_is_smaller_and_when_the_target_was_reached():
    results = filled(lambda row, seed: 0.9 if seed else 0.8)
    text = to_markdown("t", table.chapters(results, "default"))
    assert "Smaller than `--full`" in text
    assert "1.0 rounds, 2.0 min, 2 of 3" in text
    assert "1.0 rounds, without sites, 2 of 3" in text  # the public data alone has nobody to wait for
    assert "after every fifth of their rounds" in text
    assert "DOMO and Mime are charged one more download of the model" in text
    assert "ours is i.i.d." in text
    assert "three classes per site and, unless pi is varied, pi = 1; the published" in text
    assert "5,000, 12,500, 17,500, 24,400: all 60,000 training images except the server's 600" in text
    assert "97.23" in text  # published, LeNet-5 on MNIST
    assert "<html" in to_html("t", table.chapters(results, "full"))
    assert "Smaller than" not in to_markdown("t", table.chapters(results, "full"))


def test_published_digits():
    """Check corners and column sums; sums alone would miss two swapped figures."""
    sums = {task: round(sum(of.values()), 2) for task, of in MAIN.items()}
    assert sums == {LINEAR: 849.14, LOGISTIC: 881.05, LENET: 949.45, CIFAR: 540.97, HAR: 787.97}
    corners = {
        LINEAR: (86.00, 83.57),
        LOGISTIC: (89.36, 86.89),
        LENET: (97.23, 93.31),
        CIFAR: (64.49, 37.79),
        HAR: (89.21, 53.31),
    }
    assert {task: (of["pFedMo"], of["FedAvg"]) for task, of in MAIN.items()} == corners
    inner = [MAIN[LINEAR]["FedProx"], MAIN[LENET]["FastSlowMo"], MAIN[CIFAR]["DOMO"], MAIN[HAR]["Mime"]]
    assert inner == [85.49, 95.90, 63.49, 76.75]
    assert all([*of] == ["pFedMo", *table.BASELINES] for of in MAIN.values())
    assert DIRICHLET == {1.0: 95.54, 0.1: 95.13, 0.05: 94.80}
    assert (QUANTITY_SKEW, LOST, MARGINS) == (95.71, 0.17, {3: 34.26, 6: 5.94, 9: 1.28})
    assert "180 and 137 min" in MINUTES_TO_TARGET
    assert "267 to 655 and 149 to 361" in MINUTES_TO_TARGET


def chapter(page, title):
    return page.split(f"## {title}")[1].split("\n## ")[0]


@pytest.mark.parametrize("size", ["quick", "default"])
def test_published_figures_of_lenet_say_so_beside_another_network(size):
    page = to_markdown("t", table.chapters(filled(lambda row, seed: 0.5, size), size))
    seeds = table.SCALES[size].seeds
    assert f"lost +0.0 (+0.0 to +0.0), {seeds} seeds; published, LeNet-5: 0.17" in chapter(page, "Criteria")
    margins = "| published, LeNet-5, over all nine baselines | 34.26 | 5.94 | 1.28 |"
    assert margins in chapter(page, "Classes per site")
    assert "| method | published, LeNet-5 |" in chapter(page, f"Main table: {HAR}")
    assert "| method | published |" in chapter(page, f"Main table: {LOGISTIC}")  # the paper's own logistic model
    if size == "default":
        quantity = chapter(page, "Quantity skew: Logistic, MNIST")
        assert "| method | published, LeNet-5 |" in quantity
        assert "| pFedMo | 95.71 |" in quantity
        dirichlet = chapter(page, "Dirichlet splits: Logistic, MNIST")
        assert "| pFedMo, published, LeNet-5 | 94.80 | 95.13 | 95.54 |" in dirichlet


def test_the_smallest_margin_is_told_with_who_ran():
    def accuracy(row, seed):
        return {table.OURS: 0.9, table.ALONE: 0.95, "FedNAG": 0.8 - 0.02 * seed, "FedADC": 0.85}.get(row[-1], 0.6)

    page = chapter(to_markdown("t", table.chapters(filled(accuracy), "default")), "Classes per site")
    few = "FedNAG: +12.0 (+7.0 to +17.0), better on 3 of 3"
    closest = f"FedADC: +5.0 (+5.0 to +5.0), better on 3 of 3 | {few} | {few}"
    assert f"| here, closest baseline that was run | {closest} |" in page
    some = "FastSlowMo, FedNAG, FedAvg"
    assert f"| baselines that were run | all nine | {some} | {some} |" in page
    nothing = to_markdown("t", table.chapters(Results(), "default"))
    assert "| baselines that were run | – | – | – |" in nothing


def about(size):
    return chapter(to_markdown("t", table.chapters(Results(), size)), "What was run")


def test_what_a_smaller_size_leaves_out_is_told_of_each():
    quick, default, full = map(about, ("quick", "default", "full"))
    for text, images in ((quick, 2000), (default, 5000)):
        assert f"; 20 steps per round on UCI-HAR; {images} test images of MNIST; " in text
        assert "At every size UCI-HAR has a 1-D CNN and CIFAR-10 is a subset" in text
    assert "other splits, steps, gamma, pi, numbers of sites and the edge network with `Logistic, MNIST`" in default
    assert "classes per site with `Logistic, MNIST`; the edge network with `Logistic, MNIST` and rounds of" in quick
    assert "(LeNet-5: 40)" in default
    assert "(LeNet-5 and UCI-HAR: 40)" in full


@pytest.mark.parametrize(
    ("size", "told"),
    [
        (
            "quick",
            [
                "all methods: 3 classes per site, main table.",
                "pFedMo; pFedMo, printed rule; FedNAG; public data alone: 6 classes per site, 9 classes per "
                "site, edge network.",
            ],
        ),
        (
            "default",
            [
                "all methods: 3 classes per site, main table, edge network.",
                "pFedMo; FastSlowMo; FedAvg; public data alone: quantity skew, Dirichlet splits, number of sites.",
                "pFedMo; pFedMo, printed rule; FastSlowMo; FedNAG: Nesterov momentum.",
            ],
        ),
        ("full", ["pFedMo; pFedMo, printed rule: temperature."]),
    ],
)
def test_who_ran_in_each_part_is_told(size, told):
    text = about(size)
    assert all(f"Run with {sentence}" in text for sentence in told)


def test_targets_are_told_of_the_tasks_that_ran():
    assert "N is 60 for `1-D CNN, UCI-HAR`, 85 elsewhere. These are round numbers" in about("quick")
    own = "80 for `Linear, MNIST`, 25 for `LeNet-5, CIFAR-10 subset`, 60 for `1-D CNN, UCI-HAR`"
    assert f"N is {own}, 85 elsewhere. These are round numbers at which methods differ" in about("default")


def test_how_many_samples_there_are_is_told():
    assert "40 public and 3,960 at the sites, and 1,000 test images" in about("default")
    assert "3,960" not in about("quick")  # which has no CIFAR-10
    assert "about 54,000 are used with three classes per site, 57,500 with six and 59,200 with nine" in about("quick")


def test_page_has_the_accuracy_after_two_fifths_and_the_time_to_the_target_of_the_task():
    results = filled(lambda row, seed: 0.3)
    for seed, result in results.cells["main", CIFAR, "FedNAG"].items():
        shares = zip((3, 6, 9, 12, 15), (0.1, 0.2, 0.25, 0.3, 0.3 + 0.01 * seed), strict=True)
        result["curve"] = [{"round": at, "global": {"accuracy": value}, "sites": {}} for at, value in shares]
    page = to_markdown("t", table.chapters(results, "default")).split(f"## Main table: {CIFAR}")[1]
    assert "| after 2/5 of T | after T | pFedMo - method | time to 25 % |" in page
    line = next(line for line in page.splitlines() if line.startswith("| FedNAG |"))
    assert "| 20.0 ± 0.0 | 30.0 ± 0.0 |" in line
    assert "9.0 rounds, 3 of 3" in line


def test_a_cell_on_a_network_has_a_timed_curve():
    result = run_cell(
        {
            "data": {"dataset": "digits", "samples": 200, "partition": {"kind": "iid", "sites": 2}},
            "model": {"name": "linear"},
            "method": {"name": "fednag", "rounds": 3, "steps": 2},
            "network": {"speed": 10},
        }
    )
    times = [point["simulated"] for point in result["curve"]]
    assert times == sorted(times)
    assert times[0] > 80 / 10  # a site's 80 samples, each once
