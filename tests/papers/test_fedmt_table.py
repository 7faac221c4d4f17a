"""The page of FedMT's table: which bars hold for which figures, and which runs it is made of."""

import json

import pytest

from papers.fedmt import cells as plan
from papers.fedmt import table
from papers.fedmt.cells import AT, FOUND, GAMMAS, KNOWN, LABELS, METHODS, PLUS, text_row
from papers.fedmt.findings import ERROR, matrix_error_by_round
from papers.harness.cells import Results
from papers.harness.pages import to_markdown
from papers.harness.worker import run_cell

# Made-up figures in which every bar holds; the baselines lie below.
MADE_UP = {KNOWN: 0.72, FOUND: 0.70, PLUS: 0.75, "SemiFL": 0.69, "Learnable": 0.66, "Learnable + Average": 0.65}


def results(figures=MADE_UP, size="default", error=lambda cell, round_: 4.0 - 0.1 * round_):
    made = Results()
    for cell in table.cells(size):
        accuracy = figures.get(cell.row[-1], 0.6) + 0.001 * cell.seed
        sites = {"accuracy": 0.9, "matrix_error": error(cell, 10), "confident": 0.5}
        curve = [{"round": r, "sites": {"matrix_error": error(cell, r)}} for r in (1, 10)]
        scopes = {"global": {"accuracy": accuracy}, "sites": {"mean": sites}}
        made.add(cell, {"final": scopes, "best": scopes, "curve": curve, "seconds": 1.0})
    return made


def smaller_with_more_samples(cell, round_):
    return 4.0 - 0.1 * round_ - 0.001 * cell.experiment["data"].get("samples", 0)


def bars(made, size="default"):
    chapter = next(c for c in table.chapters(made, size) if c.title == "Criteria")
    return {statement: (verdict, figures) for statement, verdict, figures in chapter.blocks[0].rows}


def test_all_bars_hold_where_the_figures_are_so():
    found = bars(results(error=smaller_with_more_samples))
    assert {verdict for verdict, _ in found.values()} == {"holds"}
    assert len([s for s in found if f"{FOUND} is better than every baseline" in s]) == 2 * len(LABELS) + 1
    assert found[f"CLINC150, n = {AT}: {PLUS} is at least 2 points better than {FOUND}"][1].startswith("+5.0")


@pytest.mark.parametrize(
    ("changed", "statement"),
    [
        ({KNOWN: 0.69}, "CLINC150, n = 3: FedMT (T) is at most 0.5 worse than FedMT (E)"),
        ({"Single": 0.71}, "CIFAR-100, n = 25: FedMT (E) is better than every baseline"),
        ({"Single": 0.701}, "CLINC150, n = 10: FedMT (E) is better than every baseline"),
        ({PLUS: 0.71}, "CLINC150, n = 5: fedmt+ is at least 2 points better than FedMT (E)"),
        (
            {"likelihood only (T)": 0.76},
            "CLINC150, gamma 0.99: fedmt+ is better than FedMT (E), likelihood only and SemiFL",
        ),
        ({"Learnable": 0.71}, "FedMT (E) is better than the learnable matrix, texts split evenly"),
        ({"Learnable": 0.71}, "FedMT (E) is better than the learnable matrix, texts split by gamma 0.9"),
        ({"Learnable + Average": 0.71}, "FedMT (E) is better than the learnable matrix, texts split by gamma 0.99"),
    ],
)
def test_a_bar_that_fails_is_told(changed, statement):
    assert bars(results())[statement][0] == "holds"
    assert bars(results(MADE_UP | changed))[statement][0] == "refuted"


def test_equal_figures_decide_nothing():
    statement = "CLINC150, n = 10: FedMT (E) is better than every baseline"
    assert bars(results(MADE_UP | {"Single": 0.70}))[statement][0] == "undecided"


def test_an_error_that_does_not_fall_is_told():
    found = bars(results(error=lambda cell, round_: 3.0))
    statement = "The error of the estimated matrix is lower in the last round than in the first"
    assert found[statement] == ("undecided", "lower by +0.00 (+0.00 to +0.00), 5 seeds")
    assert found["It is lower with more samples per site"][0] == "undecided"
    rising = bars(results(error=lambda cell, round_: 3.0 + 0.1 * round_))
    assert rising[statement] == ("refuted", "lower by -0.90 (-0.90 to -0.90), 5 seeds")


def test_a_study_compares_the_same_seeds():
    """What has its usual value ran on more seeds than the rest of a study, and these must not stand beside fewer."""
    chapter = next(c for c in table.chapters(results(), "default") if c.title.startswith("Sites, thresholds"))
    line = next(line for line in to_markdown("", [chapter]).splitlines() if line.startswith(f"| {KNOWN} |"))
    assert len(set(line.split(" | ")[1:-1])) == 1  # 10 sites ran on five seeds, 20 and more on two
    assert line.count("72.") == 4


def test_the_page_tells_what_differs_from_the_published_settings():
    page = to_markdown("", table.chapters(results(), "default"))
    assert "coarse labels of all samples (`project_on`) with a threshold of 0.3" in page
    assert "| FedTrans | 21.31 | 24.53 | 28.16 |" in page
    assert "SemiFL falls from 55.98 to 26.10" in page


def test_what_was_not_run_is_not_judged():
    assert {verdict for verdict, _ in bars(Results(), "quick").values()} == {"not measured"}


def test_every_comparison_has_all_its_runs():
    rows = {cell.row for cell in table.cells("default")}
    for labels in LABELS:
        assert {text_row(name, labels) for name in plan.MAIN} <= rows
        assert {text_row(name, labels, linear=True) for name in plan.WITHOUT_LAYER} <= rows
    for gamma in GAMMAS:
        assert {text_row(name, gamma=gamma) for name in plan.SKEWED} <= rows
    seeds = {cell.seed for cell in table.cells("default") if cell.row == text_row(FOUND)}
    assert seeds == {0, 1, 2, 3, 4}


def test_sites_hold_the_same_samples_whatever_the_server_has():
    """So that numbers of labels are compared on the same federation."""
    for cell in table.cells("full"):
        labelled = cell.experiment["server"]["labelled"]
        assert labelled["reserve"] == 25 >= labelled["per_class"]


def test_what_is_drawn_over_the_rounds_is_judged_in_each():
    judged = {cell.row: cell.experiment["run"]["evaluate_every"] for cell in table.cells("default")}
    assert {judged[text_row(name)] for name in plan.OVER_ROUNDS} == {1}
    assert judged[text_row("Single")] == plan.SCALES["default"].rounds


def test_the_texts_come_before_the_images_and_the_linear_control_between():
    kinds = [("linear" in cell.row, cell.experiment["data"]["dataset"]) for cell in table.cells("default")]
    order = [(False, "clinc150"), (True, "clinc150"), (False, "cifar100")]
    assert kinds == sorted(kinds, key=order.index)
    assert set(kinds) == set(order)


def test_all_contestants_are_given_the_same_choices():
    """What is no part of the search, such as batches, augmentation or clipping, is for all alike."""
    alone = {
        "epochs",
        "server_epochs",
        "warmup",
        "server_weight",
        "threshold",
        "server_lr",
        "weight_decay",
        "lr",
        "lambda2",
        "project_on",
    }
    for settings in (plan.ON_TEXTS, plan.ON_TEXTS_LINEAR, plan.ON_IMAGES):
        for name in METHODS:
            assert set(settings.own.get(name, {})) <= alone


@pytest.mark.realdata
@pytest.mark.parametrize("kind", ["clinc150", "cifar100"])
def test_a_shortened_cell_gives_the_figures_that_the_page_asks_for(kind):
    cell = next(c for c in table.cells("quick") if c.row[-1] == FOUND and c.experiment["data"]["dataset"] == kind)
    experiment = json.loads(json.dumps(cell.table))
    experiment["data"] |= {"samples": 300, "test_samples": 100}
    experiment["server"] = {"labelled": {"per_class": 1}}
    experiment["method"] |= {"rounds": 2, "warmup": 20, "threshold": 0.001, "server_epochs": 1}
    experiment["run"] = {"evaluate_every": 1}
    made = Results()
    made.add(cell, run_cell(experiment))
    for figure in ("global.accuracy", table.OWN_NAMES, ERROR, table.CONFIDENT):
        assert made.values(cell.row, figure), figure
    assert len(matrix_error_by_round(made, cell.row)) == 2
