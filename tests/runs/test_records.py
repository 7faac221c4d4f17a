"""What a round becomes in metrics.jsonl, a federation in federation.json and a run in summary.json."""

from __future__ import annotations

import json

import pytest
import torch

from fedaccord.data.site_data import Samples, SiteData
from fedaccord.data.sites import FederationData
from fedaccord.federation.round import Evaluation, RoundRecord
from fedaccord.federation.state import Dropped, SiteCard
from fedaccord.labels.space import LabelSpace
from fedaccord.labels.views import Candidates, Coarse, Exact, Unlabelled
from fedaccord.runs.records import Best, confusion_lines, describe_federation, round_lines, scopes

SPACE = LabelSpace(["ant", "bee", "cat"])


def evaluation(accuracy, sites=(0.5, 1.0), **changes):
    each = {f"site-{i}": {"accuracy": a, "nll": 1.0, "samples": 10} for i, a in enumerate(sites)}
    counts = torch.tensor([[3, 1, 0], [0, 0, 0], [0, 0, 2]])
    shown = {"global_": {"accuracy": accuracy, "nll": 0.5}, "confusion": counts, "sites": each}
    return Evaluation(**(shown | changes))


def federation():
    def site(name, view, train, test):
        x = torch.zeros(train + test, 2)
        target = torch.zeros(train + test, dtype=torch.long)
        return SiteData(name, view, Samples(x[:train], target[:train]), Samples(x[train:], target[train:]))

    views = {
        "b": Exact(SPACE, ["ant", "bee"]),
        "a": Coarse(SPACE, {"low": ["ant"], "high": ["bee"]}),
        "c": Unlabelled(SPACE),
    }
    return FederationData(SPACE, {name: site(name, view, 6, 2) for name, view in views.items()}, (2,))


class TestRoundLines:
    def test_a_round_without_figures_is_one_line(self):
        dropped = Dropped(3, "b", "train", "w", "is NaN", "trace")
        record = RoundRecord(3, ["a", "b"], 1, 0.25, [dropped], {"train": 1 / 3}, bytes={"a": (10, 7)})
        assert round_lines(record, SPACE, {}) == [
            {
                "round": 3,
                "scope": "round",
                "asked": ["a", "b"],
                "replied": 1,
                "loss": 0.25,
                "absent": [],
                "dropped": [{"round": 3, "site": "b", "task": "train", "tensor": "w", "reason": "is NaN"}],
                "bytes": {"a": [10, 7]},
                "seconds": {"train": 0.333333},
            }
        ]

    def test_figures_have_a_line_for_each_scope(self):
        lines = round_lines(RoundRecord(2, evaluation=evaluation(0.75)), SPACE, {})
        assert [(line["round"], line["scope"], line.get("site")) for line in lines] == [
            (2, "round", None),
            (2, "global", None),
            (2, "classes", None),
            (2, "sites", None),
            (2, "site", "site-0"),
            (2, "site", "site-1"),
        ]
        assert lines[1]["metrics"] == {"accuracy": 0.75, "nll": 0.5}
        assert lines[2]["recall"] == {"ant": 0.75, "bee": None, "cat": 1.0}
        assert lines[2]["samples"] == {"ant": 4, "bee": 0, "cat": 2}
        assert [lines[3][name]["accuracy"] for name in ("mean", "min", "max")] == [0.75, 0.5, 1]
        assert lines[4]["metrics"] == {"accuracy": 0.5, "nll": 1.0, "samples": 10}
        json.dumps(lines, allow_nan=False)

    def test_recall_without_a_server_test_is_that_of_the_sites_that_answer_in_classes(self):
        groups = Coarse(SPACE, {"insect": ["ant", "bee"], "mammal": ["cat"]})
        views = {"a": Exact(SPACE), "b": Exact(SPACE), "coarse": groups, "liar": Exact(SPACE)}
        counts = {
            "a": torch.tensor([[3, 1, 0], [0, 0, 0], [0, 0, 2]]),
            "b": torch.tensor([[1, 3, 0], [0, 0, 0], [1, 0, 1]]),
            "coarse": torch.tensor([[9, 0], [0, 9]]),
            "liar": torch.tensor([[7]]),  # not as many names as the federation
        }
        shown = evaluation(0.5, confusion=None, site_confusions=counts)
        (line,) = [x for x in round_lines(RoundRecord(1, evaluation=shown), SPACE, views) if x["scope"] == "classes"]
        assert line["recall"] == {"ant": 0.5, "bee": None, "cat": 0.75}
        assert line["samples"] == {"ant": 8, "bee": 0, "cat": 4}
        assert line["sites"] == ["a", "b"]

    def test_scopes_without_figures_have_no_line(self):
        lines = round_lines(RoundRecord(1, evaluation=Evaluation()), SPACE, {})
        assert [line["scope"] for line in lines] == ["round"]


class TestConfusionLines:
    def test_each_site_in_its_own_answers(self):
        counts = {"a": torch.tensor([[5, 1], [0, 2]]), "b": torch.zeros(3, 3, dtype=torch.long)}
        lines = confusion_lines(evaluation(0.5, site_confusions=counts), federation())
        assert lines == [
            {
                "scope": "confusion",
                "site": None,
                "names": ["ant", "bee", "cat"],
                "counts": [[3, 1, 0], [0, 0, 0], [0, 0, 2]],
            },
            {"scope": "confusion", "site": "a", "names": ["low", "high"], "counts": [[5, 1], [0, 2]]},
        ]

    def test_without_counts_there_is_none(self):
        assert confusion_lines(evaluation(0.5, confusion=None), federation()) == []


class TestFederationAccount:
    def test_it_says_who_there_was_and_what_each_could_teach(self):
        data = federation()
        data.notes.append("a note")
        data.partition, data.histogram = {"asked": {"kind": "iid"}}, {"a": {"ant": 6}}
        cards = {name: SiteCard(name, 6, "exact", torch.ones(3)) for name in ("b", "a")}
        account = describe_federation(data, cards)
        assert json.loads(json.dumps(account, allow_nan=False)) == account
        assert account["labels"] == ["ant", "bee", "cat"]
        assert account["joined"] == ["a", "b"]
        assert list(account["sites"]) == ["b", "a", "c"]
        assert account["sites"]["b"] == {
            "view": {"kind": "exact", "known": ["ant", "bee"]},
            "train": 6,
            "test": 2,
            "informs": ["ant", "bee"],
        }
        assert account["sites"]["a"]["view"]["correspondence"] == {"low": ["ant"], "high": ["bee"]}
        assert account["correspondences"] == {"a": [[1, 0, 0], [0, 1, 0]]}  # of the coarse site only
        assert account["sites"]["c"]["informs"] == []
        assert account["groups"] == [["ant", "bee"], ["cat"]]  # nobody compares cats with anything
        assert all("set_size" not in site for site in account["sites"].values())
        assert (account["notes"], account["test"]) == (["a note"], data.test_source)
        assert (account["partition"], account["histogram"]) == (data.partition, data.histogram)

    def test_the_mean_size_of_candidate_sets(self):
        data, sets = federation(), torch.tensor([[1, 1, 0], [1, 0, 0], [1, 1, 1]]).bool()
        x = torch.zeros(3, 2)
        data.sites["b"] = SiteData("b", Candidates(SPACE), Samples(x, sets), Samples(x[:1], ~sets[:1]))
        data.sites["c"] = SiteData("c", Candidates(SPACE), Samples(x[:0], sets[:0]), Samples(x, sets))
        sites = describe_federation(data, {})["sites"]
        assert {name: site.get("set_size") for name, site in sites.items()} == {"b": 2.0, "a": None, "c": None}


class TestBest:
    def look(self, *figures, headlines=("accuracy",)):
        best = Best(headlines)
        for round_, shown in enumerate(figures, start=1):
            best.look(round_, scopes(shown))
        return best.summary()

    def test_the_first_metric_that_was_measured_picks_the_round(self):
        figures = [Evaluation(sites={"a": {"in_set": share, "map": 1 - share}}) for share in (0.4, 0.7, 0.5)]
        account = self.look(*figures, headlines=("accuracy", "in_set"))
        assert (account["round"], account["metric"]) == (2, "sites.mean.in_set")
        assert self.look(*figures, headlines=("map",))["round"] == 1

    def test_the_best_round_is_kept_with_all_its_figures(self):
        account = self.look(
            evaluation(0.1, (0.2, 0.2)),
            evaluation(0.3, (0.6, 0.8)),
            evaluation(0.9, (0.5, 0.5)),
        )
        assert (account["round"], account["metric"]) == (2, "sites.mean.accuracy")
        assert account["global"]["accuracy"] == 0.3  # of the same round, though a later one was better there
        assert account["sites"]["mean"]["accuracy"] == pytest.approx(0.7)
        assert account["sites"]["each"]["site-1"]["accuracy"] == 0.8

    def test_of_equal_rounds_the_first(self):
        assert self.look(evaluation(0.1), evaluation(0.2), evaluation(0.3))["round"] == 1

    def test_the_first_round_counts_even_when_nothing_is_right(self):
        assert self.look(evaluation(0, (0, 0)))["round"] == 1

    def test_without_sites_figures_the_global_ones_count(self):
        account = self.look(evaluation(0.2, ()), evaluation(0.4, ()), evaluation(0.3, ()))
        assert (account["round"], account["metric"]) == (2, "global.accuracy")

    def test_two_metrics_are_never_mixed(self):
        account = self.look(evaluation(0.9, ()), evaluation(0.1, (1.0, 1.0)), evaluation(0.95, ()))
        assert (account["round"], account["metric"]) == (3, "global.accuracy")

    def test_nothing_was_judged(self):
        assert self.look() == {"round": 0, "metric": "", "global": {}, "sites": {}}


class TestScopes:
    def test_figures_by_scope(self):
        shown = scopes(evaluation(0.75))
        assert shown["global"] == {"accuracy": 0.75, "nll": 0.5}
        assert shown["sites"]["mean"] == {"accuracy": 0.75, "nll": 1.0}
        assert shown["sites"]["std"]["accuracy"] == pytest.approx(0.5**0.5 / 2)
        assert list(shown["sites"]["each"]) == ["site-0", "site-1"]

    def test_no_figures(self):
        assert scopes(None) == {"global": {}, "sites": {"mean": {}, "std": {}, "each": {}}}
