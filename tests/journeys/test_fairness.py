"""A sensitive attribute in the sites' own files, from the check to the report, through the command line."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from command_line import command, write

pytestmark = pytest.mark.usefixtures("one_thread")

HEAD = """
name = "treated"

[labels]
classes = ["low", "high"]

[fairness]
group = "north"
label = "high"
{fairness}

[model]
hidden = [8]

[method]
name = "fedavg"
rounds = 3
steps = 4
{method}

[run]
workers = 0
"""


def own_files(folder, sites=2, rows=400, fairness="", method="", extra=""):
    """An experiment on tables of the sites' own, in which a cell of `region` may hold candidates."""
    rng = np.random.default_rng(0)
    text = HEAD.format(fairness=fairness, method=method)
    for number in range(sites):
        lines = ["size,region,dx"]
        for row in range(rows):
            size, region = rng.normal(), ("north", "south", "west", "north|south")[row % 4]
            lines.append(f"{size:.3f},{region},{'high' if size + 0.3 * rng.normal() > 0 else 'low'}")
        (folder / f"s{number}.csv").write_text("\n".join(lines) + "\n")
        text += f'\n[[sites]]\nname = "s{number}"\ndata = "s{number}.csv"\nlabel = "dx"\nsensitive = "region"\n'
        text += 'view = { kind = "exact" }\n'
    return write(folder, text + extra)


@pytest.mark.parametrize(("fairness", "told"), [("", "sensitive and input"), ("input = false", "sensitive")])
def test_own_files_with_a_sensitive_column_are_checked(tmp_path, fairness, told):
    done = command("check", own_files(tmp_path, fairness=fairness), cwd=tmp_path)
    assert (done.code, done.err) == (0, "")
    uses = [re.split(r"\s{2,}", line.strip())[:2] for line in done.out.splitlines()]
    assert ["region", told] in uses
    assert ["size", "number"] in uses


def test_own_files_with_a_sensitive_column_are_run(tmp_path):
    done = command("run", own_files(tmp_path), cwd=tmp_path)
    assert done.code == 0, done.err
    assert "equal opportunity" in (tmp_path / "runs/treated/report.html").read_text()


def test_the_report_adds_up_the_rows_of_sites_and_calls_certain_groups_by_their_name(tmp_path):
    path = own_files(tmp_path, rows=40)
    with (tmp_path / "s2.csv").open("w") as file:
        file.write("size,region,dx\n" + "0.5,south,low\n-0.5,west,low\n" * 5)
    path.write_text(path.read_text() + '[[sites]]\nname = "s2"\ndata = "s2.csv"\nlabel = "dx"\nsensitive = "region"\n')
    assert command("run", path, cwd=tmp_path).code == 0
    folder = tmp_path / "runs/treated"
    final = json.loads((folder / "summary.json").read_text())["final"]["sites"]
    each, pooled = final["each"].values(), final["pooled"]
    assert len(each) == 3
    for cell in ("members", "others", "others_with_label", "members_candidate"):
        assert pooled[cell] == sum(site[cell] for site in each)
    given, rows = pooled["members_given"], pooled["members"]
    assert pooled["spd"] == pytest.approx(pooled["others_given"] / pooled["others"] - given / rows)
    page = (folder / "report.html").read_text()
    assert "Of the test rows of 3 of 3 sites together" in page
    assert f'<td class="number">{rows:.0f}, at 2 of 3 sites</td>' in page
    assert "by groups that are certain" in page
    assert "by true groups" not in page


@pytest.mark.parametrize(
    ("attack", "told"), [('attack = { kind = "plfa", sites = 1 }', "Honest sites left out"), ("", "Sites left out")]
)
def test_a_report_begins_with_how_often_the_defence_left_sites_out(tmp_path, attack, told):
    path = own_files(tmp_path, sites=4, rows=80, method=f'{attack}\ndefence = {{ kind = "probe" }}')
    done = command("run", path, cwd=tmp_path)
    assert done.code == 0, done.err
    page = (tmp_path / "runs/treated/report.html").read_text()
    body = page[page.index("<h1>") :]
    assert body.index(told) < body.index("Global model, last round")
    assert body.index("Whom the defence left out") < body.index("Learning curves")


def test_a_report_without_a_defence_says_nothing_of_exclusions(tmp_path):
    command("run", own_files(tmp_path, rows=80), cwd=tmp_path)
    assert "left out" not in (tmp_path / "runs/treated/report.html").read_text()


def test_a_run_in_which_nobody_was_trusted_names_the_defence(tmp_path):
    told = 'defence = { kind = "probe", confidence = true, trust = 0.85 }'
    done = command("run", own_files(tmp_path, sites=4, rows=80, method=told), cwd=tmp_path)
    assert done.code == 1, done.err
    assert "because the defence excluded every site" in done.err
    in_a_round = "the defence 'probe' excluded every site of a round, so the model did not change"
    at_the_end = "the defence 'probe' excluded every valid reply, so the model is untrained"
    assert json.loads((tmp_path / "runs/treated/summary.json").read_text())["warnings"] == [in_a_round, at_the_end]
    assert at_the_end in done.out
    assert "no reply of a site was valid" not in done.out
