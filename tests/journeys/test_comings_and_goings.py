"""Sites that join late and leave, and robust rules, as a user meets them: check, log, run folder, report, Python."""

from __future__ import annotations

import json

import numpy as np
import pytest

from command_line import command, write
from fedaccord import Exact, Federation, LabelSpace, Site
from fedaccord.config import check_experiment, parse_experiment, to_toml
from fedaccord.errors import ConfigError
from fedaccord.federation.membership import Membership

pytestmark = pytest.mark.usefixtures("one_thread")

FILE = """
name = "coming"

[data]
dataset = "digits"
samples = 300
partition = { kind = "iid", sites = 5 }
joins = { site-3 = 3 }
leaves = { site-0 = 3, site-3 = 5 }

[data.view]
kind = "exact"
known = ["0", "1", "2", "3", "4", "5", "6", "7"]

[data.views.site-0]
kind = "exact"
known = ["8", "9"]

[model]
hidden = [8]

[method]
name = "private-labels"
aggregation = "median"
rounds = 6
steps = 2
lr = 0.1

[run]
workers = 0
checkpoint_every = 1
"""
GONE = "no site that knows '8', '9' takes part in rounds 3–6; nothing is learned about it then"
THIN = "too few sites in a round know '8', '9' for the rule 'median'"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("coming")
    write(folder, FILE)
    done = command("run", "experiment.toml", cwd=folder)
    assert (done.code, done.err.count("Traceback")) == (0, 0), done.err
    return folder / "runs" / "coming", done


def lines(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


class TestARun:
    def test_the_log_and_the_screen_say_who_comes_and_goes(self, run):
        folder, done = run
        log = (folder / "log.txt").read_text()
        said = [
            "site 'site-0' takes part from round 1 to round 2",
            "site 'site-3' takes part from round 3 to round 4",
            "round 3: site 'site-3' joins the federation",
            "round 3: site 'site-0' has left the federation",
            "round 5: site 'site-3' has left the federation",
            f"round 1: warning: {THIN}",
        ]
        for text in said:
            assert log.count(text) == 1, text
            assert text in done.out + done.err, text
        assert "round 3: no participating site knows 8, 9" in log

    def test_the_lines_of_the_rounds(self, run):
        rounds = [line for line in lines(run[0]) if line["scope"] == "round"]
        assert [line["absent"] for line in rounds] == [[], [], *[["8", "9"]] * 4]
        assert [line.get("joined") for line in rounds] == [None, None, ["site-3"], None, None, None]
        assert [line.get("left") for line in rounds] == [None, None, ["site-0"], None, ["site-3"], None]
        assert [len(line["asked"]) for line in rounds] == [4, 4, 4, 4, 3, 3]
        judged = [{x["site"] for x in lines(run[0]) if (x["round"], x["scope"]) == (r, "site")} for r in (1, 6)]
        assert judged == [{f"site-{i}" for i in (0, 1, 2, 4)}, {f"site-{i}" for i in (1, 2, 4)}]

    def test_summary_account_and_report(self, run):
        folder, _ = run
        summary = json.loads((folder / "summary.json").read_text())
        assert len(summary["warnings"]) == 1
        assert summary["warnings"][0].startswith(THIN)
        account = json.loads((folder / "federation.json").read_text())
        assert account["joined"] == ["site-0", "site-1", "site-2", "site-4"]
        assert (account["sites"]["site-3"]["joins"], account["sites"]["site-3"]["leaves"]) == (3, 5)
        assert "joins" not in account["sites"]["site-1"]
        report = (folder / "report.html").read_text()
        assert "takes part from round 3 to round 4" in report
        assert "Warning: too few sites in a round know" in report

    def test_a_site_that_left_is_still_in_the_model_folder(self, run):
        described = json.loads((run[0] / "model" / "model.json").read_text())
        assert sorted(described["sites"]) == [f"site-{i}" for i in range(5)]

    def test_the_written_file_can_be_run_again(self):
        written = to_toml(parse_experiment(FILE))
        assert parse_experiment(written).memberships == {"site-0": Membership(1, 3), "site-3": Membership(3, 5)}


class TestCheck:
    def test_it_tells_who_comes_and_goes_and_what_is_not_taught_then(self, tmp_path):
        done = command("check", write(tmp_path, FILE), cwd=tmp_path)
        assert done.code == 1
        assert "note: site 'site-3' takes part from round 3 to round 4" in done.out
        assert f"warning: {GONE}" in done.out

    def test_a_site_that_joins_after_the_last_round(self, tmp_path):
        text = FILE.replace("site-3 = 3 }", "site-3 = 99 }").replace(", site-3 = 5", "")
        done = command("check", write(tmp_path, text), cwd=tmp_path)
        assert "the run ends after round 6, before 'site-3' would join" in done.out
        assert "note: site 'site-3' never takes part: it joins in round 99 of 6" in done.out

    def test_a_rule_that_cannot_work_is_an_error(self, tmp_path):
        done = command("check", write(tmp_path, FILE.replace('"median"', '"krum"\nhostile = 2')), cwd=tmp_path)
        assert done.code == 2
        said = "error: method.aggregation: the rule 'krum' needs at least 7 sites against 2 hostile ones"
        assert said in done.out

    def test_nothing_is_said_where_all_sites_stay(self, tmp_path):
        text = FILE.replace("joins = { site-3 = 3 }\n", "").replace("leaves = { site-0 = 3, site-3 = 5 }\n", "")
        assert "takes part" not in command("check", write(tmp_path, text), cwd=tmp_path).out


class TestMistakes:
    @pytest.mark.parametrize(
        ("old", "new", "words"),
        [
            ("site-3 = 3 }", "site-7 = 3 }", "data.joins: there is no site 'site-7'; did you mean 'site-"),
            ("site-0 = 3,", "sit-0 = 3,", "data.leaves: there is no site 'sit-0'; did you mean 'site-0'?"),
        ],
    )
    def test_a_site_that_is_not_there(self, tmp_path, old, new, words):
        assert FILE.count(old) == 1
        done = command("run", write(tmp_path, FILE.replace(old, new)), cwd=tmp_path)
        assert done.code == 2
        assert words in done.err

    def test_leaving_before_joining(self):
        words = "data: site 'site-3' leaves in round 3, but it would join in round 3 only"
        with pytest.raises(ConfigError, match=words):
            parse_experiment(FILE.replace("site-3 = 5", "site-3 = 3"))
        own = {"name": "a", "data": "a.csv", "leaves": 1}
        with pytest.raises(ConfigError, match="site 'a' leaves in round 1, but it would join in round 1 only"):
            check_experiment({"sites": [own]})

    @pytest.mark.parametrize("key", ["joins", "leaves"])
    def test_a_round_is_a_whole_number_from_1(self, key):
        with pytest.raises(ConfigError, match=rf"sites\[0\].{key} is 0, but should be at least 1"):
            check_experiment({"sites": [{"name": "a", "data": "a.csv", key: 0}]})


class TestPython:
    SPACE = LabelSpace(["low", "high"])

    def site(self, name, **stay):
        x = np.random.default_rng(len(name)).normal(size=(40, 3))
        return Site(name, x, ["high" if row[0] > 0 else "low" for row in x], Exact(self.SPACE), **stay)

    def test_sites_in_memory_come_and_go(self):
        sites = [self.site("a"), self.site("bb", joins=2), self.site("ccc", leaves=2)]
        result = Federation(sites).train(method="fedavg", model={"name": "mlp", "hidden": [4]}, rounds=3, steps=1)
        asked = [line["asked"] for line in lines(result.folder) if line["scope"] == "round"]
        assert asked == [["a", "ccc"], ["a", "bb"], ["a", "bb"]]
