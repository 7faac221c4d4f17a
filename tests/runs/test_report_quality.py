"""How good the model is, in the report: figures with intervals, gains, and a page that stays small."""

import json

import numpy as np
import pytest
import torch
from test_report import Page, make_run, report, summary

from command_line import command
from fedaccord.messages.message import Message, to_bytes
from fedaccord.runs.examined import recorded_alone
from fedaccord.runs.gains import find_gains, run_verdict
from fedaccord.runs.reading import RESAMPLES, read_federation, read_resamples, read_summary
from fedaccord.runs.report import write_report


def measure(value, low=None, high=None):
    return {"value": value, "low": low, "high": high}


def quality(value, rows=50, over=(0.1, 0.01, 0.2), head="accuracy"):
    measures = {head: measure(value, value - 0.05, value + 0.04), "guess": measure(0.4, 0.3, 0.5)}
    measures |= {"over_guess": measure(*over), "auroc": measure(1.0), "brier": measure(0.1234, 0.1, 0.15)}
    curve = [[25, 0.6, 0.5, 0.4, 0.7], [25, 0.9, 0.95, 0.9, 1.0]]
    return {"head": head, "rows": rows, "classes": 3, "resamples": 1000, "measures": measures, "calibration": curve}


def examined(**sites):
    return summary(quality={"global": quality(0.8), "sites": sites})


def test_figures_have_intervals_and_readings(tmp_path):
    told = examined(
        Cleveland=quality(0.845),
        Budapest=quality(0.9, over=(0.02, -0.05, 0.09)),
        Geneva=quality(0.9, rows=9),
        Basel={"rows": 4, "measures": {}},
        Zurich={"rows": 9, "classes": 1},
    )
    page = report(make_run(tmp_path / "run", summary_=told))
    rows = {row[0]: row[1:] for row in page.tables["How good the model is"]}
    assert rows[""][5:] == ["AUROC", "Brier score"]
    assert rows["Cleveland"] == [
        "50",
        "84.5% (79.5–88.5)accuracy",
        "40.0% (30.0–50.0)",
        "+10.0 (+1.0 to +20.0)",
        "better",
        "100.0%",
        "0.123 (0.100–0.150)",
    ]
    assert rows["Budapest"][3:5] == ["+2.0 (−5.0 to +9.0)", "cannot tell"]
    assert rows["Geneva"][3:5] == ["+10.0 (+1.0 to +20.0)", "cannot tell: too few rows"]
    assert rows["Basel"][1:5] == ["–", "–", "–", "not measured"]
    said = page.sections["How good the model is"]
    assert "Basel (fewer than 5 annotated test rows); Zurich (test rows of one class)" in said
    assert "from 1000 resamples" in said
    assert page.figures["calibration-0"]["data"][1]["error_y"]["array"] == pytest.approx([0.2, 0.05])
    assert page.sections[""].strip().removeprefix("five-hospitals").startswith("Better than guessing at 1 of 5 sites (")


class TestGains:
    """Both runs answered the same rows, so the same resamples are compared."""

    def runs(self, folder, resamples=True, seed=3):
        old, new = np.linspace(0.7, 0.9, 201), np.linspace(0.72, 0.92 + 1e-8, 201)
        for name, figures in (("alone", old), ("run", new)):
            told = examined(Cleveland=quality(float(figures.mean())))
            told["final"]["sites"]["each"] = {"Cleveland": {"accuracy": float(figures.mean())}}
            told["seed"] = seed if name == "alone" else 3
            made = make_run(folder / name, summary_=told)
            if resamples:
                (made / RESAMPLES).write_bytes(to_bytes(Message({"Cleveland": torch.from_numpy(figures)})))
        run = folder / "run"
        return run, find_gains(read_summary(run), read_federation(run), read_resamples(run), folder / "alone")

    def test_paired(self, tmp_path):
        run, found = self.runs(tmp_path)
        difference = found["Cleveland"].difference
        assert (difference.paired, difference.standing) == (True, "better")
        assert difference.estimate.low == pytest.approx(0.02)
        assert run_verdict(read_summary(run), read_federation(run), found)["alone"] == {"Cleveland": "better"}
        page = report(run, tmp_path / "alone")
        assert page.tables["What federation brought each site"][1][-2:] == ["+2.0 (+2.0 to +2.0)", "better"]
        assert "(paired: " in page.sections["What federation brought each site"]
        assert page.sections[""].count("Better than training alone at its only site.") == 1

    def test_a_report_that_is_written_again_still_compares(self, tmp_path):
        run, _ = self.runs(tmp_path)
        assert recorded_alone(run) is None  # an old run without run.json
        (run / "run.json").write_text(json.dumps({"alone": str(tmp_path / "alone")}), encoding="utf-8")
        assert command("report", run, cwd=tmp_path).code == 0
        assert "Better than training alone" in Page(run / "report.html").sections[""]

    @pytest.mark.parametrize("changes", [{"resamples": False}, {"seed": 4}], ids=str)
    def test_unpaired_if_the_rows_are_not_known_to_be_the_same(self, tmp_path, changes):
        run, found = self.runs(tmp_path, **changes)
        difference = found["Cleveland"].difference
        assert (difference.paired, difference.standing) == (False, "unclear")
        assert difference.estimate.low == pytest.approx(0.02 - np.hypot(0.05, 0.04))
        said = report(run, tmp_path / "alone").sections["What federation brought each site"]
        assert "not paired, and so wider than needed" in said


def test_tags_are_headed_by_precision_and_candidates_by_their_sets(tmp_path):
    views = {"a": {"kind": "tags"}, "b": {"kind": "candidates"}}
    sites = {name: {"view": view, "train": 9, "test": 9, "informs": ["x"]} for name, view in views.items()}
    each = {"a": {"accuracy": 0.738, "map": 0.621, "macro_f1": 0.5, "nll": 1.0}}
    for kind, shown, first in (("a", "mAP; macro-F1 50.0%", "62.1%"), ("b", "answers in the candidate set", "70.0%")):
        metrics = each.get(kind, {"in_set": 0.7, "nll": 1.0})
        final = {"global": {}, "sites": {"mean": metrics, "std": {}, "each": {kind: metrics}}}
        told = {"labels": ["x"], "sites": {kind: sites[kind]}}
        rows = [{"round": 1, "scope": "sites", "mean": metrics, "min": metrics, "max": metrics}]
        page = report(make_run(tmp_path / kind, rows, summary(final=final), told))
        assert f"Mean over sites, in the end{first}{shown}; nll 1.000" in page.sections[""]
        assert page.tables["Sites"][1][5] == first
        assert "accuracy" not in page.figures
        assert page.tables["Sites"][0][5].startswith(("mAP, ", "Answers "))
        before = json.loads((tmp_path / kind / "summary.json").read_text(encoding="utf-8"))
        name = "map" if kind == "a" else "in_set"
        before["final"]["sites"]["each"][kind] = {"accuracy": 0.9, name: 0.5} if kind == "a" else {name: 0.5}
        alone = make_run(tmp_path / f"{kind}-alone", [], before, told)
        gains = report(tmp_path / kind, alone).tables["What federation brought each site"]
        assert gains[1][2:4] == ["50.0%", first]


def test_the_page_of_many_sites_and_rounds_stays_below_a_megabyte_and_a_half(tmp_path):
    names, rng = [f"site-{i}" for i in range(40)], np.random.default_rng(0)
    views = {
        name: {"view": {"kind": "exact"}, "train": 90, "test": 30, "informs": list("0123456789")} for name in names
    }
    told = {"labels": list("0123456789"), "sites": views}
    rows = [
        {"round": r, "scope": "site", "site": name, "metrics": {"accuracy": float(a), "nll": float(1 - a)}}
        for r in range(1, 401)
        for name, a in zip(names, rng.random(40), strict=True)
    ]
    counts = rng.integers(0, 9, (40, 10, 10)).tolist()
    rows += [
        {"round": 400, "scope": "confusion", "site": name, "names": list("0123456789"), "counts": each}
        for name, each in zip(names, counts, strict=True)
    ]
    figures = examined(**{name: quality(0.8) for name in names})
    written = write_report(make_run(tmp_path, rows, figures, told))
    assert written.stat().st_size < 1_500_000
    curves = Page(written).figures["accuracy"]["data"]
    assert [len(curve["x"]) for curve in curves] == [200] * 40  # every second round
    assert {curve["x"][-1] for curve in curves} == {400}
