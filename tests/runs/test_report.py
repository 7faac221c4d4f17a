"""The report says what the run's files say, whatever they hold and whatever they lack."""

import json
import random
import re
import subprocess
import sys
import time
from html import unescape
from html.parser import HTMLParser

import pytest

from fedaccord.errors import RunFolderError
from fedaccord.runs import report_figures as draw
from fedaccord.runs.report import write_report

LABELS = ["T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"]
GROUPS = {"tops": LABELS[:5], "shoes": ["sandal", "sneaker", "ankle boot"], "shirts": ["shirt"], "bags": ["bag"]}
VIEWS = {
    "Cleveland": ({"kind": "exact"}, LABELS),
    "Budapest": ({"kind": "coarse", "correspondence": GROUPS}, LABELS),
    "Zürich University Hospital": ({"kind": "candidates"}, LABELS),
    "Long Beach": ({"kind": "exact", "known": LABELS[:3]}, LABELS[:3]),
    "Basel": ({"kind": "unlabelled"}, []),
}
ALONE = {"Cleveland": 0.812, "Budapest": 0.9004, "Zürich University Hospital": 0.701, "Long Beach": 0.95, "Basel": 0.5}
FINAL = {"Cleveland": 0.845, "Budapest": 0.931, "Zürich University Hospital": 0.803, "Long Beach": 0.938, "Basel": 0.5}
SECONDS = {"prepare": 0.01, "brief": 0.05, "train": 2.0, "admit": 0.1, "combine": 0.2, "refine": 0.04, "evaluate": 0.6}
DROP = {"site": "Long Beach", "task": "train", "tensor": "head.weight", "reason": "holds values that are not finite"}


def federation(views=VIEWS, **changes):
    sites = {
        name: {"view": view, "train": 1200 - 150 * i, "test": 300 - 30 * i, "informs": list(informs)}
        for i, (name, (view, informs)) in enumerate(views.items())
    }
    histogram = {name: {x: 17 * (i + 1) + 5 * j for j, x in enumerate(LABELS)} for i, name in enumerate(views)}
    return {
        "labels": LABELS,
        "sites": sites,
        "groups": [LABELS],
        "histogram": histogram,
        "notes": [],
        "test": "the published test part of fashion-mnist",
    } | changes


def summary(**changes):
    each = {site: {"accuracy": value, "nll": 1 - value, "samples": 100} for site, value in FINAL.items()}
    each["Budapest"]["accuracy_classes"] = 0.777
    return {
        "name": "five-hospitals",
        "method": "pfedpll",
        "engine": "embedded",
        "seed": 3,
        "rounds": 30,
        "seconds": 93.14,
        "final": {
            "global": {"accuracy": 0.8731, "nll": 0.4123},
            "sites": {"mean": {"accuracy": 0.8034, "nll": 0.2}, "std": {"accuracy": 0.1812}, "each": each},
        },
        "best": {
            "round": 24,
            "metric": "sites.mean.accuracy",
            "global": {"accuracy": 0.87},
            "sites": {"mean": {"accuracy": 0.8312}, "each": {"Cleveland": {"accuracy": 0.8555}}},
        },
        "dropped": 3,
        "model_sha256": "ab" * 32,
        "workers": 2,
        "settings": {"lr": 0.01, "model": {"hidden": [128]}},
    } | changes


def lines(rounds=30):
    draw = random.Random(0)
    for r in range(1, rounds + 1):
        dropped = [DROP] if r in (4, 11, 19) else []
        yield {"round": r, "scope": "round", "asked": list(VIEWS), "replied": 5, "dropped": dropped, "seconds": SECONDS}
        grown = 1 - 0.9 * 0.88**r
        each = {
            site: {"accuracy": FINAL[site] * grown + draw.uniform(-0.02, 0.02), "nll": (2 + 0.1 * i) * 0.94**r}
            for i, site in enumerate(VIEWS)
        }
        columns = {name: [metrics[name] for metrics in each.values()] for name in ("accuracy", "nll")}
        spread = {"mean": lambda x: sum(x) / 5, "std": lambda x: 0.1, "min": min, "max": max}
        yield {"round": r, "scope": "global", "metrics": {"accuracy": 0.88 * grown, "nll": 2.3 * 0.93**r}}
        yield {"round": r, "scope": "sites"} | {k: {n: f(x) for n, x in columns.items()} for k, f in spread.items()}
        yield from ({"round": r, "scope": "site", "site": site, "metrics": each[site]} for site in VIEWS)
    recall = {name: 0.95 - 0.05 * i for i, name in enumerate(LABELS)} | {"bag": None}
    samples = {name: 90 + i for i, name in enumerate(LABELS)} | {"bag": 0}
    yield {"round": 30, "scope": "classes", "recall": recall, "samples": samples}
    counts = [[800 if a == b else draw.randrange(60) for b in range(10)] for a in range(10)]
    yield {"round": 30, "scope": "confusion", "site": None, "names": LABELS, "counts": counts}
    own = [[90, 5, 3, 2], [4, 70, 0, 1], [9, 0, 30, 1], [0, 0, 0, 0]]
    yield {"round": 30, "scope": "confusion", "site": "Budapest", "names": list(GROUPS), "counts": own}


def make_run(folder, metrics=None, summary_=None, federation_=None):
    folder.mkdir(exist_ok=True, parents=True)
    (folder / "summary.json").write_text(json.dumps(summary_ or summary()), encoding="utf-8")
    (folder / "federation.json").write_text(json.dumps(federation_ or federation()), encoding="utf-8")
    rows = lines() if metrics is None else metrics
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return folder


def alone_run(folder, each=ALONE):
    final = {"sites": {"each": {site: {"accuracy": value} for site, value in each.items()}}}
    return make_run(folder, summary_=summary(name="each-alone", method="local", seed=7, final=final))


class Page(HTMLParser):
    """The page as a browser takes it apart, and its text and tables under each heading."""

    def __init__(self, path):
        super().__init__()
        self.tags, self.attributes = [], []
        self.source = path.read_text(encoding="utf-8")
        self.feed(self.source)
        data = re.search(r'id="figures">(.*?)</script>', self.source, re.S)
        self.figures = json.loads(data.group(1)) if data else {}
        shown = re.sub(r"<(script|style)\b.*?</\1>", "", self.source, flags=re.S)
        parts = ["", *re.split(r"<h2>(.*?)</h2>", shown)]
        by_title = dict(zip(map(unescape, parts[::2]), parts[1::2], strict=True))
        self.sections = {title: _plain(part) for title, part in by_title.items()}
        rows = {title: re.findall("<tr>(.*?)</tr>", part) for title, part in by_title.items()}
        cell = re.compile("<t[dh][^>]*>(.*?)</t[dh]>")
        self.tables = {title: [[*map(_plain, cell.findall(row))] for row in found] for title, found in rows.items()}

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += [(tag, *attribute) for attribute in attributes]


def _plain(markup):
    return unescape(re.sub("<[^>]*>", "", markup))


def report(folder, alone=None):
    return Page(write_report(folder, alone))


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("full")
    return report(make_run(folder), alone_run(folder / "alone"))


def test_the_sections_stand_in_order_and_the_headline_gives_the_last_round(page):
    assert list(page.sections) == [
        "",
        "What federation brought each site",
        "How good the model is",
        "Learning curves",
        "Sites",
        "Classes",
        "Confusion",
        "Who can teach which label",
        "Dropped replies",
        "Time",
        "Bytes",
        "Settings",
        "Model",
    ]
    facts = "30 rounds · 93.1 s · seed 3 · 5 sites · engine embedded · 2 workers"
    for said in (
        facts,
        "87.3%",
        "80.3% ± 18.1",
        "Best, not last: round 24",
        "83.1%",
        "of 150 asked for",
        "the published test part of fashion-mnist",
    ):
        assert said in page.sections[""]
    assert "ab" * 32 in page.sections["Model"]
    assert '"lr": 0.01' in page.sections["Settings"]


def test_gains_are_exact_ranked_and_said_in_words(page, tmp_path):
    assert page.tables["What federation brought each site"][1:] == [
        ["Zürich University Hospital", "accuracy", "70.1%", "80.3%", "+10.2", "better"],
        ["Cleveland", "accuracy", "81.2%", "84.5%", "+3.3", "better"],
        ["Budapest", "accuracy", "90.0%", "93.1%", "+3.1", "better"],
        ["Basel", "accuracy", "50.0%", "50.0%", "0.0", "same"],
        ["Long Beach", "accuracy", "95.0%", "93.8%", "−1.2", "worse"],
    ]
    said = page.sections["What federation brought each site"]
    assert "3 of 5 sites do better than alone, 1 worse: +3.1 points on average" in said
    assert "run 'each-alone', method local, seed 7" in said
    unlike = report(make_run(tmp_path / "run"), alone_run(tmp_path / "alone", {"elsewhere": 0.9}))
    assert "No site has a figure both" in unlike.sections["What federation brought each site"]


def test_sites_are_described_in_words_with_last_and_best_figures(page):
    rows = page.tables["Sites"]
    best = {x["site"]: x["metrics"]["accuracy"] for x in lines() if x["scope"] == "site" and x["round"] == 24}
    assert rows[0][7] == "Accuracy, best round (24)"
    assert rows[1] == ["Cleveland", "labels exactly", "1200", "300", "10 of 10", "84.5%", "0.155", "85.5%", "–"]
    assert rows[2][7:] == [f"{100 * best['Budapest']:.1f}%", "77.7%"]  # from that round's line
    assert [rows[2][1], rows[3][1]] == ["labels in 4 groups", "candidate sets"]
    assert rows[4][1:5] == ["labels 3 of 10 classes", "750", "210", "3 of 10"]
    assert rows[5][1:5] == ["no labels", "600", "180", "0 of 10"]


def test_sites_with_candidate_sets_have_their_size_and_what_became_of_them(tmp_path):
    described, figures = federation(), summary()
    described["sites"]["Zürich University Hospital"]["set_size"] = 2.2345
    figures["final"]["sites"]["each"]["Zürich University Hospital"]["disambiguation"] = 0.876
    rows = report(make_run(tmp_path / "run", summary_=figures, federation_=described)).tables["Sites"]
    assert rows[0][-1] == "True candidate most likely, training samples"
    assert rows[3][1] == "candidate sets, 2.23 labels on average"
    assert [row[-1] for row in rows[1:]] == ["–", "–", "87.6%", "–", "–"]


def test_curves_carry_the_figures_of_the_files_and_leave_out_nan_and_null(page, tmp_path):
    traces = {trace["name"]: trace for trace in page.figures["accuracy"]["data"]}
    by_scope = [line for line in lines() if line["scope"] in ("global", "sites")]
    assert traces["global model"]["y"] == [x["metrics"]["accuracy"] for x in by_scope if x["scope"] == "global"]
    assert traces["weakest site"]["y"] == [x["min"]["accuracy"] for x in by_scope if x["scope"] == "sites"]
    assert traces["strongest site"]["fill"] == "tonexty"
    assert [name for name, trace in traces.items() if trace.get("visible") is False] == list(VIEWS)
    rows = [{"round": r, "scope": "global", "metrics": {"nll": v}} for r, v in enumerate([1.5, float("nan"), None])]
    assert report(make_run(tmp_path, rows)).figures["nll"]["data"][0]["x"] == [0]


def test_classes_time_and_drops_are_tabled_and_many_drops_counted(page, tmp_path):
    classes = {row[0]: row[2:] for row in page.tables["Classes"]}
    assert classes["T-shirt"] == ["95.0%", "90"]
    assert classes["bag"] == ["–", "0"]
    assert ["train", "", "60.00", "66.7%"] in page.tables["Time"]
    for row, at in zip(page.tables["Dropped replies"][1:], ("4", "11", "19"), strict=True):
        assert row == ["Long Beach", at, "train", "head.weight", "holds values that are not finite"]
    rows = [{"round": r, "scope": "round", "dropped": [DROP | {"tensor": None}], "seconds": {}} for r in range(51)]
    many = report(make_run(tmp_path, rows)).tables["Dropped replies"]
    assert many[1:] == [["Long Beach", "51", "train", "–", "holds values that are not finite"]]


@pytest.mark.parametrize(("classes", "numbers"), [(30, "%{text}"), (31, "")])
def test_confusion_counts_are_written_into_cells_up_to_thirty_classes(tmp_path, classes, numbers):
    names = [str(i) for i in range(classes)]
    counts = [[3 if a == b else 1 for b in names] for a in names]
    line = {"round": 2, "scope": "confusion", "site": "Basel", "names": names, "counts": counts}
    page = report(make_run(tmp_path, [line]))
    trace = page.figures["confusion-0"]["data"][0]
    assert trace.get("texttemplate", "") == numbers
    assert trace["z"][0][0] == 3 / (classes + 2)
    assert "site Basel, round 2" in page.sections["Confusion"]


@pytest.mark.parametrize("form", ["counts", "cells"])
def test_the_confusions_of_2000_classes_are_a_short_table(tmp_path, form):
    """A drawn matrix of 2,000 classes took 75 seconds and megabytes; versions before 0.2 wrote one."""
    names, wrong = [f"class {i}" for i in range(2000)], [[5, 6, 4], [1999, 0, 9]]
    counts = [[0] * 2000 for _ in names]
    for truth, predicted, count in wrong:
        counts[truth][predicted] = count
    line = {"round": 2, "scope": "confusion", "names": names, form: counts if form == "counts" else wrong}
    small = {"round": 2, "scope": "confusion", "site": "Bonn", "names": ["a", "b"], "counts": [[1, 0], [0, 1]]}
    start = time.process_time()
    page = report(make_run(tmp_path, [line, small]))
    assert time.process_time() - start < 10
    assert page.tables["Confusion"][1:] == [
        ["global model", "class 1999", "class 0", "9"],
        ["global model", "class 5", "class 6", "4"],
    ]
    assert [key for key in page.figures if key.startswith("confusion")] == ["confusion-1"]


def test_lonely_untaught_and_unconnected_labels_are_called_out(tmp_path):
    taught = {"A": LABELS[:4], "B": LABELS[:3], "C": LABELS[4:9]}
    views = {name: ({"kind": "exact"}, labels) for name, labels in taught.items()}
    account = federation(views, groups=[LABELS[:4], LABELS[4:9], LABELS[9:]])
    said = report(make_run(tmp_path, federation_=account)).sections["Who can teach which label"]
    assert "No site teaches ankle boot:" in said
    assert "Taught by one site only: dress (A), coat (C)," in said
    assert "No site connects these 2 groups of labels: (T-shirt, trouser, pullover, dress) and (coat, " in said
    assert "Softmax scores can only be compared within a connected group" in said
    tags = federation({name: ({"kind": "tags"}, LABELS) for name in "AB"}, groups=[[x] for x in LABELS], histogram=None)
    said = report(make_run(tmp_path, federation_=tags)).sections["Who can teach which label"]
    assert "Every label is taught by at least two sites." in said
    assert "Softmax" not in said  # tags are decided one by one


class TestCorrespondences:
    """What the names of coarse sites stand for is drawn, and only for coarse sites."""

    def drawn(self, folder, **correspondences):
        views = {site: ({"kind": "coarse", "correspondence": GROUPS}, LABELS) for site in correspondences}
        account = federation(VIEWS | views, correspondences=correspondences)
        return report(make_run(folder, federation_=account))

    def test_none_without_coarse_sites(self, page):
        assert "What coarse names stand for" not in page.sections

    def test_rows_are_the_names_and_columns_the_classes(self, tmp_path):
        matrix = [[float(label in members) for label in LABELS] for members in GROUPS.values()]
        matrix[0][1], matrix[1][1] = 0.25, 0.75
        page = self.drawn(tmp_path, Budapest=matrix)
        drawn = page.figures["correspondence-0"]
        (trace,) = drawn["data"]
        assert (trace["y"], trace["x"], trace["z"]) == (list(GROUPS), LABELS, matrix)
        assert trace["text"][0] == ["1", "0.25", "1", "1", "1", "", "", "", "", ""]
        assert drawn["layout"]["title"]["text"] == "Names used by Budapest"
        assert ("div", "id", "box-correspondence-0") in page.attributes
        assert ("select", "data-for", "box-correspondence-0") not in page.attributes  # there is no other one

    def test_sites_that_declare_the_same_share_a_figure(self, tmp_path):
        one, other = [[1.0] * 10] * 4, [[0.25] * 10] * 4
        page = self.drawn(tmp_path, Budapest=one, b=other, c=one, d=one, e=one, f=one, g=one)
        assert [key for key in page.figures if key.startswith("corr")] == ["correspondence-0", "correspondence-1"]
        assert "Budapest, c, d, e and 2 moreb" in page.sections["What coarse names stand for"]  # the two options


class TestMatrixFigure:
    def trace(self, values, title="t", rows=None):
        drawn = draw.matrix_figure(rows or [f"r{i}" for i in range(len(values))], ["a", "b"], values, title)
        return drawn["data"][0], drawn["layout"]

    def test_correlations_have_two_colours(self):
        trace, _ = self.trace([[1.0, -0.5], [None, 0.0]])
        assert (trace["zmin"], trace["zmax"], trace["text"]) == (-1, 1, [["1", "-0.5"], ["", ""]])
        assert len({colour for _, colour in trace["colorscale"]}) == 3
        assert self.trace([[1.0, 0.5]])[0]["zmin"] == 0

    def test_its_height_grows_with_its_rows_and_its_title(self):
        low, high = (self.trace([[0.5, 0.5]] * n)[1]["height"] for n in (2, 8))
        assert high - low == 6 * 34
        titled = self.trace([[0.5, 0.5]] * 2, "word " * 30)[1]
        assert titled["title"]["text"].count("<br>") == 3
        assert titled["height"] - low == 3 * 18 == titled["margin"]["t"] - self.trace([[0.5, 0.5]])[1]["margin"]["t"]

    def test_of_many_cells_no_number_is_written(self):
        assert self.trace([[0.5, 0.5]] * 31)[0].get("texttemplate", "") == ""

    def test_names_stay_text(self):
        trace, layout = self.trace([[1.0, 0.0]], "<img src=x>", rows=["<b>"])
        assert (trace["y"], layout["title"]["text"]) == (["&lt;b&gt;"], "&lt;img src=x&gt;")


def test_labels_that_no_site_of_a_round_could_teach_are_tabled(page, tmp_path):
    assert "Labels absent from rounds" not in page.sections
    absent = {1: ["coat", "bag"], 2: ["coat"], 3: ["coat"], 5: ["bag", "coat"], 6: []}
    rows = [{"round": r, "scope": "round", "absent": labels, "seconds": {}} for r, labels in absent.items()]
    told = report(make_run(tmp_path, rows))
    assert told.tables["Labels absent from rounds"] == [
        ["Label", "Rounds, of 5", "Which"],
        ["coat", "4", "1–3, 5"],
        ["bag", "2", "1, 5"],
    ]
    assert "no site that took part could teach the label" in told.sections["Labels absent from rounds"]


def test_the_bytes_of_each_site_in_a_mean_round_it_took_part_in(tmp_path):
    rows = [
        {"round": 1, "scope": "round", "bytes": {"a": [1000, 500], "b": [2_000_000, 10]}},
        {"round": 2, "scope": "round", "bytes": {"a": [3000, 500]}},
    ]
    assert report(make_run(tmp_path, rows)).tables["Bytes"][1:] == [
        ["a", "2", "2 kB", "500 B", "5 kB"],
        ["b", "1", "2 MB", "10 B", "2 MB"],
    ]


def test_names_from_files_stay_text(tmp_path):
    evil = "<script>alert('x')</script><img src=http://evil.example/x>\"&"
    views = {evil: ({"kind": evil}, [evil])}
    rows = [
        {
            "round": 1,
            "scope": "round",
            "dropped": [dict.fromkeys(DROP, evil)],
            "seconds": {evil: 1.0},
            "bytes": {evil: [1, 2]},
        },
        {"round": 1, "scope": "site", "site": evil, "metrics": {"accuracy": 0.5}},
        {"round": 1, "scope": "classes", "recall": {evil: 0.5}, "samples": {evil: 1}},
        {"round": 1, "scope": "confusion", "site": evil, "names": [evil], "counts": [[1]]},
    ]
    best = {"round": 1, "metric": f"global.{evil}", "global": {}, "sites": {}}
    told = summary(name=evil, method=evil, engine=evil, best=best, model_sha256=evil, settings={evil: evil})
    told["final"]["sites"]["each"] = {evil: {"accuracy": 0.5}}
    told["quality"] = {"sites": {evil: {"rows": 2}}}
    account = federation(views, labels=[evil, "b"], groups=[[evil], ["b"]], test=evil, notes=[evil])
    page = report(make_run(tmp_path, rows, told, account), alone=tmp_path)
    assert page.tags.count("script") == 3  # plotly.js, the figures' data, our few lines
    assert "img" not in page.tags
    assert all("<script>alert('x')</script>" in said for said in page.sections.values())
    assert page.figures["accuracy"]["data"][0]["name"].startswith("&lt;script&gt;")  # plotly reads tags, too


def test_the_page_asks_for_nothing_outside_itself(page):
    assert not [a for a in page.attributes if a[1] in ("src", "href", "srcset", "data", "action", "poster")]
    assert "link" not in page.tags
    assert ("meta", "http-equiv", "Content-Security-Policy") in page.attributes
    assert any(value.startswith("default-src 'none'") for _, name, value in page.attributes if name == "content")
    assert page.source.count('id="plotly"') == 1


def test_a_cut_off_last_line_is_ignored_and_a_broken_one_before_is_not(tmp_path):
    metrics = make_run(tmp_path) / "metrics.jsonl"
    whole = report(tmp_path).sections
    metrics.write_bytes(metrics.read_bytes() + '{"round": 31, "scope": "site", "site": "Zü'.encode()[:-1])
    assert report(tmp_path).sections == whole
    metrics.write_bytes(b'{"round": 1, "sco\n' + metrics.read_bytes())
    with pytest.raises(RunFolderError, match=r"metrics.jsonl, line 1, is not JSON"):
        write_report(tmp_path)


def test_a_round_written_again_by_a_resumed_run_counts_once(tmp_path):
    line = {"round": 2, "scope": "round", "asked": ["A"], "dropped": [DROP]}
    page = report(make_run(tmp_path, [line | {"seconds": {"train": seconds}} for seconds in (9.0, 4.0)]))
    assert page.tables["Time"][1] == ["train", "", "4.00", "100.0%"]
    assert len(page.tables["Dropped replies"]) == 2


def test_a_run_without_any_evaluation_says_so_everywhere(tmp_path):
    nothing = {"global": {}, "sites": {"mean": {}, "std": {}, "each": {}}}
    never = {"round": 0, "metric": "", "global": {}, "sites": {}}
    page = report(make_run(tmp_path, [], summary(final=nothing, best=never, settings={}, model_sha256=None)))
    assert page.sections[""].count("–not measured") == 3
    titles = (
        "How good the model is",
        "Learning curves",
        "Classes",
        "Confusion",
        "Dropped replies",
        "Time",
        "Settings",
        "Model",
    )
    words = (
        "was not examined",
        "was not evaluated",
        "No recall",
        "No confusion",
        "No reply",
        "No time",
        "No settings",
        "No global model",
    )
    assert all(said in page.sections[title] for title, said in zip(titles, words, strict=True))
    assert page.tables["Sites"][1][5:] == ["–", "–", "–"]
    assert "script" not in page.tags


def test_the_local_method_has_no_global_figures(tmp_path):
    rows = [line for line in lines() if line["scope"] in ("round", "sites", "site")]
    final = summary()["final"] | {"global": {}}
    page = report(make_run(tmp_path, rows, summary(method="local", final=final)))
    assert page.sections[""].count("–not measured") == 1
    assert "80.3% ± 18.1" in page.sections[""]
    assert page.figures["nll"]["data"][-1]["name"] == "mean over sites"


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("summary.json", None, r"is not a run folder: it has no config.toml"),
        ("metrics.jsonl", None, r"there is no metrics.jsonl"),
        ("federation.json", "{", r"federation.json is not JSON"),
        ("summary.json", "[]", r"summary.json is not what a run writes"),
        ("federation.json", '{"labels": ["a"], "sites": {"b": 3}}', r"is not what a run writes: 'sites.b'"),
        ("metrics.jsonl", '{"round": "x", "scope": "site"}\n', r"line 1, is not what a run writes: 'round'"),
    ],
)
def test_missing_and_broken_files_are_named(tmp_path, file, content, message):
    make_run(tmp_path)
    (tmp_path / file).unlink()
    if content:
        (tmp_path / file).write_text(content, encoding="utf-8")
    with pytest.raises(RunFolderError, match=message):
        write_report(tmp_path)


def test_plotly_is_not_imported_before_a_report_is_written():
    code = "import sys, fedaccord.runs.report; sys.exit('plotly' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
