"""A simulated network: what is charged, what is free, and that nothing but the account changes."""

from __future__ import annotations

import json
import shutil
from unittest.mock import Mock

import pytest
import torch

from fedaccord.config import check_experiment, parse_experiment, to_toml
from fedaccord.engines.network import Link, SimulatedNetwork
from fedaccord.errors import ConfigError
from fedaccord.experiment import resume_experiment, run_experiment
from fedaccord.federation.network import NetworkSection, draw_links
from fedaccord.messages.message import Failure, Message, encoded_size
from fedaccord.runs.folder import RunFolder

SLOW, FAST = Link(speed=10, up=1, down=2, latency=0.5), Link(speed=1000, up=100, down=100, latency=0.0)


def brief(round_=1, values=1000):
    return Message({"model": torch.zeros(values)}, {"round": round_})


def inner(computed=20, fails=()):
    def ask(task, briefs, deadline=None):
        reply = Message({"model": torch.zeros(500)}, {"round": 1, "computed": computed})
        return {s: Failure(s, task, "gone") if s in fails else reply for s in briefs}

    return Mock(ask=ask, part=8)


class TestCharges:
    def test_a_question_takes_as_long_as_its_slowest_site(self):
        network = SimulatedNetwork(inner(), {"a": SLOW, "b": FAST})
        replies = network.ask("train", {"a": brief(), "b": brief()})
        down, up = encoded_size(brief()), encoded_size(replies["a"])
        expected = 2 * 0.5 + down * 8 / 2e6 + 20 / 10 + up * 8 / 1e6
        assert network.take_seconds() == pytest.approx(expected)
        assert network.take_seconds() == 0

    def test_parts_of_one_question_run_beside_each_other_and_two_questions_one_after_the_other(self):
        parts, whole, two = (SimulatedNetwork(inner(), {"a": SLOW, "b": SLOW}) for _ in range(3))
        whole.ask("train", {"a": brief(), "b": brief()})
        for site in "ab":
            parts.ask("train", {site: brief()})
        for task in ("gradient", "train"):
            two.ask(task, {"a": brief()})
        once = whole.take_seconds()
        assert parts.take_seconds() == pytest.approx(once)
        assert two.take_seconds() == pytest.approx(2 * once)

    @pytest.mark.parametrize("task", ["join", "evaluate"])
    def test_what_is_no_part_of_training_is_free(self, task):
        network = SimulatedNetwork(inner(), {"a": SLOW, "b": SLOW})
        network.ask(task, {"a": brief()})
        assert network.take_seconds() == 0

    def test_a_site_that_fails_costs_what_it_was_sent(self):
        network = SimulatedNetwork(inner(fails="a"), {"a": SLOW, "b": FAST})
        network.ask("train", {"a": brief()})
        assert network.take_seconds() == pytest.approx(1 + encoded_size(brief()) * 8 / 2e6)

    @pytest.mark.parametrize("computed", [-5, float("nan"), float("inf"), 10**400])
    def test_a_reply_that_tells_nonsense_stops_no_clock(self, computed):
        network = SimulatedNetwork(inner(computed), {"a": SLOW, "b": FAST})
        network.ask("train", {"b": brief()})
        assert 0 < network.take_seconds() < 0.01

    def test_a_place_that_is_no_site_has_no_link(self):
        network = SimulatedNetwork(inner(), {})
        network.ask("train", {"a": brief()})
        assert network.take_seconds() == 0


class TestLinks:
    def test_values_given_drawn_and_by_site(self):
        section = NetworkSection(speed=[10, 1000], up=2.0, latency=[0, 0.1], sites={"b": {"up": 9}})
        links = draw_links(section, ["a", "b", "c"], seed=1)
        assert [links[s].up for s in "abc"] == [2, 9, 2]
        assert len({link.speed for link in links.values()}) == 3
        assert all(10 <= link.speed <= 1000 and 0 <= link.latency <= 0.1 for link in links.values())
        assert draw_links(section, ["c", "a", "b"], seed=1) == links
        assert draw_links(section, ["a", "b", "c"], seed=2) != links

    def test_an_unknown_site(self):
        with pytest.raises(ConfigError, match="there is no site 'sita'; did you mean 'site'"):
            draw_links(NetworkSection(sites={"sita": {}}), ["site"], 0)

    @pytest.mark.parametrize(
        ("network", "said"),
        [
            ({"speed": 0}, "network.speed"),
            ({"up": [3]}, "a range such as"),
            ({"down": [9, 1]}, "a range such as"),
            ({"metric": "accuracy"}, "whose figure"),
            ({"spede": 1}, "did you mean 'speed'"),
        ],
    )
    def test_wrong_settings(self, network, said):
        data = {"dataset": "digits", "partition": {"kind": "iid", "sites": 2}}
        with pytest.raises(ConfigError, match=said):
            check_experiment({"data": data, "network": network})


TEXT = """
name = "edge"
[data]
dataset = "digits"
samples = 300
partition = { kind = "iid", sites = 3 }
[model]
hidden = [16]
[method]
name = "fednag"
rounds = 6
steps = 5
batch = 16
lr = 0.2
[run]
workers = 0
checkpoint_every = 1
"""
NETWORK = "[network]\nspeed = [50, 100]\nup = 1\ntarget = 0.6\nsites = { site-1 = { speed = 10 } }\n"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    def run(name, text):
        folder = RunFolder(tmp_path_factory.mktemp(name) / "run")
        summary = run_experiment(parse_experiment(text), folder.path, folder)
        folder.close()
        return folder.path, summary

    return run("plain", TEXT), run("edge", TEXT + NETWORK)


class TestRuns:
    def test_the_model_is_that_of_a_run_without_it(self, runs):
        (_, plain), (_, edge) = runs
        assert plain["model_sha256"] == edge["model_sha256"]
        assert "simulated" not in plain

    def test_the_summary_tells_time_and_target(self, runs):
        folder, summary = runs[1]
        told = summary["simulated"]
        assert told["sites_work"]
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        by_round = {line["round"]: line["simulated"] for line in lines if line["scope"] == "round"}
        assert told["seconds"] == pytest.approx(sum(by_round.values()), abs=0.01)
        assert all(seconds > 5 * 16 / 10 for seconds in by_round.values())  # the slow site computes 8 s alone
        accuracy = {line["round"]: line["metrics"]["accuracy"] for line in lines if line["scope"] == "global"}
        first = min(number for number, value in accuracy.items() if value >= 0.6)
        assert told["reached"]["round"] == first
        assert told["reached"]["seconds"] == pytest.approx(sum(by_round[n] for n in range(1, first + 1)), abs=0.01)
        assert told["sites"]["site-1"]["speed"] == 10
        assert summary["seconds"] < told["seconds"]  # nobody waited

    def test_the_report_tells_it(self, runs):
        assert "Simulated network" not in (runs[0][0] / "report.html").read_text()
        report = (runs[1][0] / "report.html").read_text()
        assert "Simulated network" in report
        assert "It reached global.accuracy 0.6 after" in report

    def test_where_the_server_alone_trains_no_time_is_told(self, tmp_path):
        table = {
            "data": {"dataset": "digits", "samples": 200, "partition": {"kind": "iid", "sites": 2}},
            "server": {"labelled": {"per_class": 4}},
            "model": {"name": "linear"},
            "run": {"workers": 0},
            "method": {"name": "representation", "rounds": 3, "steps": 4, "lr": 0.1},
            "network": {"speed": 10, "target": 0.2},
        }
        folder = RunFolder(tmp_path / "run")
        summary = run_experiment(check_experiment(table), tmp_path, folder)
        folder.close()
        assert summary["simulated"]["sites_work"] is False
        report = (folder.path / "report.html").read_text()
        assert "On the simulated network no site works" in report
        assert f"It reached global.accuracy 0.2 in round {summary['simulated']['reached']['round']}." in report

    def test_a_resumed_run_tells_the_same(self, runs, tmp_path):
        folder, summary = runs[1]
        again = tmp_path / "again"
        shutil.copytree(folder, again)
        for name in ("summary.json", "report.html"):
            (again / name).unlink()
        sorted((again / "checkpoints").iterdir())[-1].unlink()
        opened = RunFolder(again, reopen=True)
        resumed = resume_experiment(opened)
        opened.close()
        assert resumed["simulated"] == summary["simulated"]
        assert resumed["model_sha256"] == summary["model_sha256"]

    @pytest.mark.parametrize(
        ("old", "new", "told"),
        [
            ("target = 0.6", "target = 85", r"accuracy is a share from 0 to 1; write 85 % as 0\.85"),
            (
                "workers = 0",
                "workers = 0\nevaluate_every = 0",
                r"network\.target is given, but run\.evaluate_every = 0",
            ),
            ("target = 0.6", 'target = 0.6\nmetric = "acuracy"', "does not say whose figure it is"),
        ],
    )
    def test_a_target_that_can_never_be_reached_is_refused(self, old, new, told):
        with pytest.raises(ConfigError, match=told):
            parse_experiment((TEXT + NETWORK).replace(old, new))
        parse_experiment((TEXT + NETWORK).replace("target = 0.6", 'target = 85\nmetric = "global.nll"'))

    def test_a_figure_that_nobody_measures_is_told_at_the_first_evaluation(self, tmp_path):
        text = (TEXT + NETWORK).replace("target = 0.6", 'target = 0.6\nmetric = "global.acuracy"')
        folder = RunFolder(tmp_path / "run")
        with pytest.raises(ConfigError, match=r"network\.metric: unknown metric 'global\.acuracy'; did you mean"):
            run_experiment(parse_experiment(text), tmp_path, folder)
        folder.close()

    def test_the_section_is_written_back(self):
        text = to_toml(parse_experiment(TEXT + NETWORK))
        assert parse_experiment(text).network == parse_experiment(TEXT + NETWORK).network
