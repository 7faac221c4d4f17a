"""Which setting is chosen, and what is said of failures, ties and the file's own setting."""

import pytest

from command_line import SMALL, write
from fedaccord.errors import FedAccordError, UserError
from fedaccord.settings_search.grid import Setting, read_grid
from fedaccord.settings_search.ranking import against_own, at_an_edge, rank
from fedaccord.settings_search.search import Search


def setting(lr, is_own=False):
    return Setting({"method.lr": lr}, None, is_own)


def cell(sites, metric="nll", server=None, dropped=0):
    """What a run measured: a figure for each site, None if it is not finite, and perhaps one of the server."""
    each = {name: {} if value is None else {metric: value} for name, value in sites.items()}
    known = [value for value in sites.values() if value is not None]
    mean = {metric: sum(known) / len(known)} if known else {}
    overall = {} if server is None else {metric: server}
    figures = {"global": overall, "sites": {"mean": mean, "each": each}}
    return {"figures": figures, "server_judges": server is not None, "dropped": dropped}


def ranked(rows, by="nll", failed=None, own=None):
    settings = [setting(lr, lr == own) for lr in rows]
    reasons = [(failed or {}).get(lr, {}) for lr in rows]
    return rank(settings, list(rows.values()), reasons, by)


def order(found):
    return [row.setting.values["method.lr"] for row in found]


def test_lower_nll_and_higher_accuracy_are_better():
    rows = {"1": {0: cell({"a": 0.5, "b": 0.3})}, "2": {0: cell({"a": 0.2, "b": 0.4})}}
    assert order(ranked(rows)) == ["2", "1"]
    assert ranked(rows)[0].values == {0: pytest.approx(0.3)}
    better = {"1": {0: cell({"a": 0.5}, "accuracy")}, "2": {0: cell({"a": 0.2}, "accuracy")}}
    assert order(ranked(better, "accuracy")) == ["1", "2"]
    signed = {"1": {0: cell({"a": -0.3}, "eod")}, "2": {0: cell({"a": 0.2}, "eod")}}
    assert order(ranked(signed, "eod")) == ["2", "1"]


def test_a_site_without_a_finite_figure_fails_the_run_instead_of_leaving_the_mean():
    rows = {"1": {0: cell({"a": 0.1, "b": None})}, "2": {0: cell({"a": 0.9, "b": 0.9})}}
    best, other = ranked(rows)
    assert order([best, other]) == ["2", "1"]
    assert (other.values, other.failures) == ({0: None}, ["seed 0: no nll at b"])


def test_a_failed_seed_puts_a_setting_last_and_its_reason_is_kept():
    rows = {"1": {0: cell({"a": 0.1})}, "2": {0: cell({"a": 0.8}), 1: cell({"a": 0.9}, dropped=2)}}
    found = ranked(rows, failed={"1": {1: "out of memory"}})
    assert order(found) == ["2", "1"]
    assert found[1].failures == ["seed 1: out of memory"]
    assert (found[1].interval.n, found[0].dropped) == (1, 2)


def test_the_server_counts_as_one_more_site_if_it_judged_every_setting():
    both = {"1": {0: cell({"a": 0.4}, server=0.2)}, "2": {0: cell({"a": 0.2}, server=0.8)}}
    assert order(ranked(both)) == ["1", "2"]  # 0.3 against 0.5
    one = {"1": {0: cell({"a": 0.4}, server=0.2)}, "2": {0: cell({"a": 0.2})}}
    assert order(ranked(one)) == ["2", "1"]
    assert order(ranked(both, "global.nll")) == ["1", "2"]
    assert order(ranked(both, "sites.each.a.nll")) == ["2", "1"]


def test_equal_settings_keep_their_order_after_the_files_own():
    rows = {lr: {0: cell({"a": 0.5})} for lr in "123"}
    assert order(ranked(rows, own="2")) == ["2", "1", "3"]


def test_an_unknown_metric_is_named_with_those_that_were_measured():
    with pytest.raises(UserError, match="--by acuracy: nobody measured it; did you mean 'accuracy'"):
        ranked({"1": {0: cell({"a": 0.5}, "accuracy")}}, "acuracy")


def test_the_judge_compares_with_the_files_own_setting_by_seed():
    rows = {
        "1": {0: cell({"a": 0.50}), 1: cell({"a": 0.62}), 2: cell({"a": 0.55})},
        "2": {0: cell({"a": 0.40}), 1: cell({"a": 0.51}), 2: cell({"a": 0.46})},
    }
    judged = against_own(ranked(rows, own="1"), "nll")
    assert (judged.verdict, judged.mean) == ("holds", pytest.approx(0.1))
    assert against_own(ranked(rows, own="2"), "nll") is None
    assert against_own(ranked(rows), "nll") is None
    one_seed = {lr: {0: by[0]} for lr, by in rows.items()}
    assert against_own(ranked(one_seed, own="1"), "nll").verdict == "undecided"


def test_a_chosen_value_at_the_edge_is_pointed_out():
    rows = {lr: {0: cell({"a": nll})} for lr, nll in {"0.01": 0.9, "1e-1": 0.5, "0.03": 0.7}.items()}
    assert at_an_edge(ranked(rows), ["method.lr"]) == ["method.lr"]
    rows["1.0"] = {0: cell({"a": 0.8})}
    assert at_an_edge(ranked(rows), ["method.lr"]) == []
    words = {lr: {0: cell({"a": 0.5})} for lr in ("sgd", "adam", "other")}
    assert at_an_edge(ranked(words), ["method.lr"]) == []


def test_a_search_in_which_every_setting_failed_says_why(tmp_path, monkeypatch):
    grid, base = read_grid(write(tmp_path, SMALL), ["method.lr=0.1,0.2"])
    search = Search(grid, [4], base, tmp_path / "tune")
    reasons = {cell.digest: f"broken {cell.seed}" for cell in search.cells}
    monkeypatch.setattr("fedaccord.settings_search.search.run_cells", lambda *_: ({}, reasons))
    with pytest.raises(FedAccordError, match="no setting finished with every seed: seed 4: broken 4"):
        search.run("nll", workers=1)
