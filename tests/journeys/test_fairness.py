"""A sensitive attribute in the sites' own files, from the check to the report, through the command line."""

from __future__ import annotations

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


@pytest.mark.parametrize(("fairness", "told"), [("", "region (3 groups)"), ("input = false", "size (a number)")])
def test_own_files_with_a_sensitive_column_are_checked(tmp_path, fairness, told):
    done = command("check", own_files(tmp_path, fairness=fairness), cwd=tmp_path)
    assert (done.code, done.err) == (0, "")
    assert told in done.out


def test_own_files_with_a_sensitive_column_are_run(tmp_path):
    done = command("run", own_files(tmp_path), cwd=tmp_path)
    assert done.code == 0, done.err
    assert "equal opportunity" in (tmp_path / "runs/treated/report.html").read_text()
