"""The section on what each site ends with: weights, figures, gains, whatever of them a run has."""

import io
import re

import pytest
from rich.console import Console
from test_report import VIEWS, make_run, report, summary

from fedaccord.display import show_outcome
from fedaccord.runs.gains import compared_gains
from fedaccord.runs.reading import read_federation, read_summary

SECTION = "What each site ends with"
WEIGHTS = {"shared": 0.5, "own head": 0.2, "alone": 0.3}


def experts(rows=24, **weights):
    return {"weights": WEIGHTS | weights, "alone": "plain", "rows": rows}


def gain(value, low=None, high=None, rows=50, alone=0.8, measure="accuracy"):
    difference = {"value": value, "low": low, "high": high}
    return {"measure": measure, "alone": alone, "together": alone + value, "difference": difference, "rows": rows}


def told(gains=None, **changes):
    found = summary(method="accord", **changes)
    found["final"]["shared"] = {"mean": {}, "std": {}, "each": {"Cleveland": {"accuracy": 0.83}}}
    return found | ({} if gains is None else {"gains": gains})


def rows_of(page):
    return {row[0]: row[1:] for row in page.tables[SECTION]}


def test_each_site_has_its_weights_its_figures_and_its_gain(tmp_path):
    gains = {
        "Cleveland": gain(0.045, 0.01, 0.08),
        "Budapest": gain(-0.05, -0.1, -0.01),
        "Long Beach": gain(0.02, -0.03, 0.07),
        "Basel": gain(0.3, 0.2, 0.4, rows=9),
    }
    found = told(gains, experts={name: experts() for name in gains} | {"Cleveland": experts(rows=0)})
    page = report(make_run(tmp_path, summary_=found))
    rows = rows_of(page)
    figures = ["80.0%", "83.0%", "84.5%accuracy", "+4.5 (+1.0 to +8.0)", "better"]
    assert rows["Cleveland"] == ["50 · 20 · 30", "plain", "none: usual", *figures]
    assert rows["Budapest"][4:] == ["–", "75.0%accuracy", "−5.0 (−10.0 to −1.0)", "worse"]
    assert rows["Long Beach"][-1] == "cannot tell"
    assert rows["Basel"][-1] == "cannot tell: too few rows"
    assert re.search('<i style="width:50.0%;background:#0072B2"></i><i style="width:20.0%', page.source)
    assert 'aria-label="shared 50.0%, own head 20.0%, alone 30.0%"' in page.source
    assert "Zürich University Hospital" not in rows  # it has no experts


def test_the_verdict_uses_the_gains(tmp_path):
    found = told({"Cleveland": gain(0.045, 0.01, 0.08), "Budapest": gain(0.02, -0.03, 0.07)})
    found["quality"] = {"sites": {"Cleveland": {"rows": 50}}}
    said = report(make_run(tmp_path, summary_=found)).sections[""]
    verdict = "Better than training alone at 1 of 2 sites (Cleveland); cannot tell at 1 (Budapest); no site is worse."
    assert verdict in said


def test_where_nobody_gains_the_verdict_says_what_is_missing(tmp_path):
    found = told({"Cleveland": gain(0.0, -0.03, 0.03), "Budapest": gain(-0.05, -0.1, -0.01)})
    found["quality"] = {"sites": {"Cleveland": {"rows": 50}}}
    said = report(make_run(tmp_path, summary_=found)).sections[""]
    assert "Better than training alone at no site; worse at 1 (Budapest); cannot tell at 1 (Cleveland). More" in said
    assert "More test rows would make the intervals narrower." in said


def test_sites_on_other_machines_keep_their_weights(tmp_path):
    page = report(make_run(tmp_path, summary_=told({"Cleveland": gain(0.045, 0.01, 0.08)})))
    assert rows_of(page)["Cleveland"][:4] == ["–", "–", "–", "80.0%"]
    assert "with weights of its own, which stay there" in page.sections[SECTION]


@pytest.mark.parametrize("site", ["Cleveland", "Basel"])
def test_a_site_that_was_not_compared_still_has_its_weights(tmp_path, site):
    found = told(experts={site: experts()})
    if site == "Basel":
        found["final"]["sites"]["each"].pop(site)  # it has no test rows
    shown = "84.5%accuracy" if site == "Cleveland" else "–"
    cells = rows_of(report(make_run(tmp_path, summary_=found)))[site]
    assert (cells[0], cells[5], cells[-1]) == ("50 · 20 · 30", shown, "not measured")


def test_each_site_is_judged_by_its_own_figure(tmp_path):
    found = told({"Zürich University Hospital": gain(0.1, 0.05, 0.2, measure="in_set")})
    assert rows_of(report(make_run(tmp_path, summary_=found)))["Zürich University Hospital"][5] == (
        "90.0%answers in the candidate set"
    )


def test_without_experts_the_report_is_as_before(tmp_path):
    page = report(make_run(tmp_path))
    assert SECTION not in page.sections
    assert "training alone" not in page.sections[""]


def test_a_run_without_federation_comes_first(tmp_path):
    """The user asked for that comparison; the table of experts says that it makes another one."""
    found = told({"Cleveland": gain(0.3, 0.2, 0.4)})
    run = make_run(tmp_path / "run", summary_=found)
    alone = make_run(tmp_path / "alone", summary_=summary(method="local"))
    gains = compared_gains(read_summary(run), read_federation(run), {}, alone)
    assert gains.keys() == VIEWS.keys()
    assert gains["Cleveland"].alone == pytest.approx(0.845)
    own = compared_gains(read_summary(run), read_federation(run), {}, None)
    assert own["Cleveland"].alone == pytest.approx(0.8)
    page = report(run, alone)
    assert "this table compares with the site's own expert alone" in page.sections[SECTION]
    assert "What federation brought each site" in page.sections
    assert "this table compares" not in report(run).sections[SECTION]


def printed(folder):
    screen = io.StringIO()
    show_outcome(folder, None, Console(file=screen, width=80, markup=False))
    return screen.getvalue().splitlines()


def test_the_terminal_has_a_table_for_each_figure(tmp_path):
    gains = {"Cleveland": gain(0.045, 0.01, 0.08), "Basel": gain(0.1, measure="in_set")}
    lines = printed(make_run(tmp_path, summary_=told(gains)))
    titles = [line for line in lines if line.startswith("What federation brought")]
    assert [title.partition("(")[2] for title in titles] == ["accuracy)", "answers in the candidate set)"]
    rows = {line.split()[0]: line.split(maxsplit=4)[1:] for line in lines if re.match(r" \w+ +\d", line)}
    assert rows["Cleveland"] == ["80.0%", "83.0%", "84.5%", "+4.5 (+1.0 to +8.0)   better      "]
    assert rows["Basel"] == ["80.0%", "–", "90.0%", "+10.0   cannot tell "]
    assert max(len(line) for line in lines[1:] if line not in titles) <= 80


def test_the_terminal_lists_some_of_many_sites(tmp_path):
    gains = {f"site-{number}": gain(0.045, 0.01, 0.08) for number in range(25)}
    lines = printed(make_run(tmp_path, summary_=told(gains)))
    assert sum(line.startswith(" site-") for line in lines) == 20
    assert lines[-1] == "and 5 more sites, see the report"
