"""What the FedHarmony table says of its results, also of those that are not whole."""

import pytest

from papers.fedharmony import table
from papers.harness.cells import Results
from papers.harness.pages import Grid

DELICIOUS = "delicious: fedharmony+ tuned is better than every baseline that was run on it"
EQUAL, EXCHANGES = "As published: blocks change less than 0.5", "One exchange is at most 0.5 worse than two"
AHEAD = {table.PLUS: 0.1, table.OURS: 0.05}  # of what all others have


def filled(kept=lambda cell: True, **gains):
    """Results of some cells of the table; `gains` are added to what a method has, a little more on odd seeds."""
    made = Results()
    for cell in filter(kept, table.cells("default")):
        name = cell.row[1]
        value = 0.5 + AHEAD.get(name, 0.0) + gains.get(name, 0.0) * (0.99 + 0.02 * (cell.seed % 2))
        figures = {"map": value, "of1": value, "correlation_error": 0.1}
        made.add(cell, {"final": {"global": figures, "sites": {"mean": figures}}, "seconds": 1.0})
    return made


def said(results):
    chapter = next(c for c in table.chapters(results, "default") if c.title == "Criteria")
    grid = chapter.blocks[0]
    assert isinstance(grid, Grid)
    return {row[0]: row[1] for row in grid.rows}


def test_of_a_whole_table_everything_is_said():
    found = said(filled(**{"FedHarmony, two exchanges": 0.05, "FedHarmony, no blocks": 0.05}))
    assert set(found.values()) == {"holds"}
    assert found["corel5k: fedharmony+ tuned is better than every baseline that was run on it"] == "holds"


def test_nothing_is_said_of_a_table_that_was_cut_after_some_seeds():
    assert set(said(filled(lambda cell: cell.seed < 3)).values()) == {"not measured"}
    assert set(said(Results()).values()) == {"not measured"}


@pytest.mark.parametrize(
    ("missing", "unsaid", "still"),
    [
        (
            ("scene", "FedCurv"),
            ["scene: fedharmony+ tuned is better than every baseline"],
            "scene: fedharmony+ tuned is better than FedAvg and tuned FedProx",
        ),
        (
            ("delicious", "FedProx 10"),
            [
                "delicious: fedharmony+ tuned is better than FedAvg and tuned FedProx",
                "delicious: fedharmony+ by default is better than FedAvg and tuned FedProx",
            ],
            "scene: fedharmony+ tuned is better than FedAvg and tuned FedProx",
        ),
        (
            ("delicious", "fedharmony+, mu 0.1"),
            ["delicious: fedharmony+ tuned is better than FedAvg and tuned FedProx", DELICIOUS],
            "delicious: fedharmony+ by default is better than FedAvg and tuned FedProx",
        ),
        (
            ("corel5k", table.OURS),
            ["As published: FedHarmony is better than FedAvg"],
            EQUAL,
        ),
        (
            ("emotions", table.CONTROL),
            ["Correlations matter: permuted tags are worse"],
            "The teacher helps in addition to the weights",
        ),
    ],
)
def test_a_statement_needs_everyone_it_names_on_every_seed(missing, unsaid, still):
    for kept in (lambda cell: cell.row != missing, lambda cell: cell.row != missing or cell.seed):
        found = said(filled(kept))
        assert {found[statement] for statement in unsaid} == {"not measured"}
        assert found[still] != "not measured"


def test_mu_is_chosen_by_what_sites_keep_apart_and_not_by_the_test_part():
    made = filled()
    for cell in table.cells("default"):
        if cell.row == ("scene", "fedharmony+, mu 1"):
            held, test = {"map": 0.9, "of1": 0.9, "correlation_error": 0.1}, {"map": 0.3, "of1": 0.3}
            made.add(cell, {"final": {"global": test, "sites": {"mean": held}}, "seconds": 1.0})
    assert table.tuned_plus(made, "scene") == "fedharmony+, mu 1"
    found = said(made)
    assert found["scene: fedharmony+ tuned is better than FedAvg and tuned FedProx"] == "refuted"
    assert found["scene: fedharmony+ by default is better than FedAvg and tuned FedProx"] == "holds"


@pytest.mark.parametrize(
    ("gain", "exchange", "blocks"),
    [(0.0, "holds", "refuted"), (0.05, "holds", "holds"), (0.1, "refuted", "refuted")],
)
def test_one_exchange_may_be_better_than_two_and_blocks_may_not_change_anything(gain, exchange, blocks):
    found = said(filled(**{"FedHarmony, two exchanges": gain, "FedHarmony, no blocks": gain}))
    assert found[EXCHANGES] == exchange
    assert found[EQUAL] == blocks


def test_the_page_counts_the_sets_on_which_the_defaults_lead():
    chapter = next(c for c in table.chapters(filled(), "default") if c.title == "Criteria")
    assert chapter.blocks[2] == "Number of sets, fedharmony+ by default against FedAvg and tuned FedProx: holds 5."
