"""Ledgers of papers: every file is sound and names cells that exist, and verdicts follow from the results."""

from pathlib import Path

import pytest

from fedaccord.errors import ConfigError
from papers.fairfedpapl.table import OWN_FIGURES
from papers.harness.cells import Cell, Results
from papers.harness.claims import Ledger, load_ledger
from papers.harness.ledger import TITLE, claims_chapter, needed_rows
from papers.harness.pages import INTERVAL, Grid
from papers.harness.registry import TABLES, find_table
from papers.harness.troubles import troubles_chapter

ROOT = Path(__file__).parents[2]
PAPERS = [name for name in TABLES if name != "accord"]  # which is the table of no paper


def ledger_of(name):
    return load_ledger(ROOT / "papers" / name.replace("-", "_") / "claims.toml")


@pytest.mark.parametrize("name", PAPERS)
def test_every_row_of_a_ledger_is_a_row_of_its_table(name):
    ledger = ledger_of(name)
    rows = {cell.row for cell in find_table(name).cells("default")}
    assert needed_rows(ledger, {"model": "lenet5"}) - rows == set()
    assert len(ledger.claims) >= 15
    own = {"deviation", *OWN_FIGURES}
    assert {c.figure for c in ledger.comparisons()} <= own | {
        "global.accuracy",
        "global.map",
        "global.of1",
        "global.correlation_error",
        "sites.mean.accuracy",
        "sites.mean.matrix_error",
        "sites.matrix_error",
    }


@pytest.mark.parametrize("name", PAPERS)
@pytest.mark.parametrize("size", ["quick", "default", "full"])
def test_the_page_lists_every_claim_and_says_of_each_that_it_was_not_run(name, size):
    chapter = next(c for c in find_table(name).chapters(Results(), size) if c.title == TITLE)
    grid = chapter.blocks[-1]
    ledger = ledger_of(name)
    assert [row[0] for row in grid.rows] == [claim.claim for claim in ledger.claims]
    for claim, (_, place, run, verdict, _) in zip(ledger.claims, grid.rows, strict=True):
        assert place == claim.place
        assert run.startswith(claim.status)
        assert (verdict == "not run") == (claim.status == "not run")
        assert verdict in ("not run", "not judged", "not measured", "not run at this size")


@pytest.mark.parametrize(
    ("name", "claims"),
    [
        ("fedmt", ["baselines-better-than-single", "degrades-less", "better-than-average", "weight-best-small"]),
        ("fedmt", ["coarse-names", "eighty-sites-single"]),
        ("fedharmony", ["ablation-teacher", "ablation-weights", "correlations"]),
        ("pfedpll", ["component-order", "local-heads", "calibration"]),
        ("pfedmo", ["main-vgg", "main-tiny-imagenet", "fire-detection", "more-than-public", "proofs"]),
    ],
)
def test_what_our_tables_contradict_or_leave_out_is_in_the_ledger(name, claims):
    found = {claim.id: claim for claim in ledger_of(name).claims}
    for claim in claims:
        assert found[claim].compare or found[claim].why


LEDGER = """
paper = "A paper."
source = "All of it is at hand."
[[claims]]
id = "{id}"
place = "table 1"
claim = "A is better than B."
{rest}
"""
COMPARED = 'status = "run"\nsize = "3 seeds"\n[[claims.compare]]\nplaces = [["data"]]\nfirst = "A"\nagainst = ["B"]\n'


def written(folder, rest=COMPARED, id="order"):
    path = folder / "claims.toml"
    path.write_text(LEDGER.format(id=id, rest=rest))
    return path


def chapter_of(folder, first, second, more="", failed=()):
    """The verdict and the figures on a claim about two rows."""
    results = Results(failed={f"data/A/seed-{seed}": "broken" for seed in failed})
    cells = [Cell(("data", name), seed, {}) for name in "AB" for seed in range(3)]
    for cell, value in zip(cells, (*first, *second), strict=True):
        if value is not None:
            results.add(cell, {"final": {"global": {"accuracy": value}}})
    grid = claims_chapter(load_ledger(written(folder, COMPARED + more)), results, cells).blocks[-1]
    assert isinstance(grid, Grid)
    return grid.rows[0][3:]


@pytest.mark.parametrize(
    ("second", "more", "verdict", "figures"),
    [
        # Differences 2, 3 and 4 points: t(2) = 4.303, standard error 0.577.
        ((0.48, 0.57, 0.66), "", "holds", "A - B +3.0 (+0.5 to +5.5), 3 seeds"),
        ((0.52, 0.63, 0.74), "", "refuted", "A - B -3.0 (-5.5 to -0.5), 3 seeds"),
        ((0.48, 0.57, 0.70), "", "undecided", "A - B +1.7 (-2.1 to +5.5), 3 seeds"),
        ((0.48, 0.57, 0.66), 'judge = "equivalent"\nmargin = 6.0', "holds", "A - B +3.0 (+0.5 to +5.5), 3 seeds"),
        ((0.48, 0.57, 0.66), 'judge = "equivalent"\nmargin = 5.0', "undecided", "A - B +3.0 (+0.5 to +5.5), 3 seeds"),
        ((0.52, 0.63, 0.74), 'judge = "not worse"\nmargin = 0.1', "refuted", "A - B -3.0 (-5.5 to -0.5), 3 seeds"),
        ((0.48, 0.57, 0.66), 'judge = "at most"\nbound = 6.0', "holds", "A - B +3.0 (+0.5 to +5.5), 3 seeds"),
        ((0.52, 0.63, 0.74), "less_is_better = true", "holds", "A - B +3.0 (+0.5 to +5.5), 3 seeds"),
        ((0.48, 0.57, None), "", "not measured", "1 of 2 rows are not finished"),
        (
            (0.48, 0.57, float("nan")),
            "",
            "undecided",
            "A - B +2.5 (-3.9 to +8.9), 2 seeds, 1 of 3 without a figure",
        ),
    ],
)
def test_verdicts_are_those_of_the_judge(tmp_path, second, more, verdict, figures):
    assert chapter_of(tmp_path, (0.5, 0.6, 0.7), second, more) == (verdict, figures)


def test_a_cell_that_failed_is_finished_and_leaves_its_claim_undecided(tmp_path):
    verdict, figures = chapter_of(tmp_path, (0.5, 0.6, None), (0.4, 0.5, 0.6), failed=[2])
    assert (verdict, figures) == ("undecided", "A - B +10.0 (+10.0 to +10.0), 2 seeds, 1 of 3 without a figure")


@pytest.mark.parametrize(
    ("published", "verdict", "figures"),
    [
        (42.0, "holds", "A - B +10.0 (+10.0 to +10.0), 2 seeds"),
        (
            43.5,
            "undecided",
            "not calibrated: data, B reaches 40.0, published 43.5; A - B +10.0 (+10.0 to +10.0), 2 seeds",
        ),
    ],
)
def test_a_claim_is_undecided_while_its_baseline_is_not_calibrated(tmp_path, published, verdict, figures):
    calibration = f'[[claims.calibration]]\nrow = ["data", "B"]\npublished = {published}\nwithin = 3.0\n'
    rest = COMPARED.replace("[[claims.compare]]", f"{calibration}[[claims.compare]]")
    results, cells = Results(), [Cell(("data", name), seed, {}) for name in "AB" for seed in range(2)]
    for cell in cells:
        results.add(cell, {"final": {"global": {"accuracy": 0.4 + 0.1 * (cell.row[1] == "A")}}})
    row = claims_chapter(load_ledger(written(tmp_path, rest)), results, cells).blocks[-1].rows[0]
    assert row[3:] == (verdict, figures)


def test_names_of_comparisons_say_who_is_compared_with_whom(tmp_path):
    rest = COMPARED.replace('"A"', '["private", "FedAvg"]').replace('["B"]', '[["public", "FedAvg"]]')
    cells = [Cell(("data", regime, "FedAvg"), 0, {}) for regime in ("private", "public")]
    results = Results()
    for cell in cells:
        results.add(cell, {"final": {"global": {"accuracy": 0.5}}})
    row = claims_chapter(load_ledger(written(tmp_path, rest)), results, cells).blocks[-1].rows[0]
    assert row[4] == "FedAvg: private - public +0.0, one seed has no interval"


def test_a_change_is_compared_with_another(tmp_path):
    """A gains 1, 2 and 3 points where B gains 1, so A gains 0, 1 and 2 more."""
    rest = COMPARED.replace('"A"', '["late", "A"]').replace('["B"]', '[["late", "B"]]')
    rest += 'first_minus = ["early", "A"]\nagainst_minus = ["early", "B"]\n'
    late = {"A": (0.51, 0.52, 0.53), "B": (0.51, 0.51, 0.51)}
    results, cells = Results(), []
    for name in "AB":
        for when in ("early", "late"):
            cells += [Cell(("data", when, name), seed, {}) for seed in range(3)]
            for cell in cells[-3:]:
                results.add(cell, {"final": {"global": {"accuracy": late[name][cell.seed] if when == "late" else 0.5}}})
    row = claims_chapter(load_ledger(written(tmp_path, rest)), results, cells).blocks[-1].rows[0]
    assert row[3:] == ("undecided", "late, change: A - B +1.0 (-1.5 to +3.5), 3 seeds")


def test_a_claim_on_several_places_holds_if_it_holds_at_each(tmp_path):
    rest = COMPARED.replace('[["data"]]', '[["x", "one"], ["x", "two"]]')
    results, cells = Results(), []
    for place, lead in (("one", 0.1), ("two", -0.1)):
        for name in "AB":
            cells += [Cell(("x", place, name), seed, {}) for seed in range(2)]
            for cell in cells[-2:]:
                results.add(cell, {"final": {"global": {"accuracy": 0.5 + lead * (name == "A")}}})
    row = claims_chapter(load_ledger(written(tmp_path, rest)), results, cells).blocks[-1].rows[0]
    assert row[3] == "refuted"
    assert row[4] == (
        "one: A - B +10.0 (+10.0 to +10.0), 2 seeds, holds; two: A - B -10.0 (-10.0 to -10.0), 2 seeds, refuted"
    )
    anywhere = load_ledger(written(tmp_path, rest.replace('size = "3 seeds"', 'size = "3 seeds"\ncombine = "any"')))
    assert claims_chapter(anywhere, results, cells).blocks[-1].rows[0][3] == "holds"


@pytest.mark.parametrize(
    ("rest", "message"),
    [
        ('status = "maybe"', "claims[0].status is 'maybe'"),
        ('status = "run"\nsize = "3 seeds"', "add [[claims.compare]], or say in unjudged why there is none"),
        ('status = "not run"', "the claim 'order' is 'not run', so it needs a why"),
        ('status = "run smaller"\nwhy = "too large"', "so it needs a size"),
        (COMPARED + "margin = 1.0", "judge = 'better' takes no margin"),
        (COMPARED + 'judge = "equivalent"', "judge = 'equivalent' needs margin"),
        (COMPARED.replace('against = ["B"]', ""), "name the others in against"),
        (COMPARED + 'first_minus = "C"', "give both first_minus and against_minus"),
        (COMPARED + 'verdict = "holds"', "unknown key 'claims[0].compare[0].verdict'"),
        (
            COMPARED + LEDGER.partition("[[claims]]")[1] + LEDGER.partition("[[claims]]")[2],
            "two claims have the id 'order'",
        ),
    ],
)
def test_a_mistake_in_a_ledger_is_named(tmp_path, rest, message):
    rest = rest.replace("{id}", "order").replace("{rest}", 'status = "not run"\nwhy = "not at hand"')
    with pytest.raises(ConfigError) as caught:
        load_ledger(written(tmp_path, rest))
    assert str(tmp_path / "claims.toml") in str(caught.value)
    assert message in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot read .*claims\.toml"):
        load_ledger(tmp_path / "claims.toml")
    (tmp_path / "claims.toml").write_text("paper = ")
    with pytest.raises(ConfigError, match="is not valid TOML"):
        load_ledger(tmp_path / "claims.toml")


def test_a_ledger_without_claims_is_refused():
    with pytest.raises(ValueError, match="at least 1 item"):
        Ledger(paper="A paper.", source="All of it.", claims=[])


def test_dropped_sites_and_figures_that_are_not_finite_are_listed():
    cell = {"final": {"global": {"accuracy": 0.5, "nll": float("inf")}}, "dropped": ["a: NaN", "b: NaN", "c: late"]}
    results = Results({("x", "A"): {2: cell, 1: {"final": {"global": {}}}}}, {"x/B/seed-0": "out of memory"})
    assert troubles_chapter(results).blocks[1].rows == [
        ("x/B/seed-0", "failed", "out of memory"),
        ("x/A/seed-2", "3 dropped", "a: NaN; b: NaN; and 1 more"),
        ("x/A/seed-2", "not finite", "global.nll"),
    ]
    assert troubles_chapter(Results({("x",): {0: {"final": {"global": {"nll": 1.0}}, "dropped": []}}})) is None


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "results").glob("*.md")), ids=lambda page: page.stem)
def test_no_verdict_stands_on_a_page_without_an_interval(page):
    lines = [
        line
        for line in page.read_text(encoding="utf-8").splitlines()
        if {"holds", "refuted", "does not hold"} & {cell.strip() for cell in line.split("|")}
    ]
    assert [line for line in lines if not INTERVAL.search(line)] == []


@pytest.mark.parametrize("name", PAPERS)
def test_the_results_page_lists_every_claim(name):
    page = (ROOT / "docs" / "results" / f"{name}.md").read_text(encoding="utf-8")
    chapter = page.partition(f"## {TITLE}\n")[2].partition("\n## ")[0]
    assert [claim.id for claim in ledger_of(name).claims if f"| {claim.claim} | {claim.place} |" not in chapter] == []
