"""The comparison groups runs by seed, compares the same seeds only, and says what else the runs differ in."""

import json
import math
import subprocess
import sys

import pytest
from test_report import Page

from command_line import command
from fedaccord.errors import RunFolderError, UserError
from fedaccord.runs.compare import write_comparison
from fedaccord.runs.contestants import paired

LABELS = ["a", "b", "c"]
SECTIONS = ["Learning curves", "Figures", "Seed by seed", "Sites", "What differs in the settings", "Runs"]
# Worked by hand: means 0.82 and 0.80, both standard deviations 0.02; differences 0.02, 0.04, 0 over the seeds.
FIRST, SECOND = (0.80, 0.84, 0.82), (0.78, 0.80, 0.82)
FIRST_NLL, SECOND_NLL = (0.5, 0.7, 0.6), (0.6, 0.6, 0.6)


def federation(**changes):
    site = {"view": {"kind": "exact"}, "train": 100, "test": 20, "informs": LABELS}
    return {"labels": LABELS, "sites": {"A": site, "B": site}, "test": "the published test part"} | changes


def figures(accuracy, nll, sites, std=0.0):
    each = {site: {"accuracy": value, "nll": nll} for site, value in sites.items()}
    mean = {"accuracy": sum(sites.values()) / len(sites), "nll": nll}
    return {
        "global": {"accuracy": accuracy, "nll": nll},
        "sites": {"mean": mean, "std": {"accuracy": std}, "each": each},
    }


def make_run(
    folder,
    accuracy=0.8,
    nll=0.6,
    seed=0,
    name="small",
    method="fedavg",
    sites=None,
    lines=None,
    federation_=None,
    config="",
    **told,
):
    sites = sites or {"A": accuracy, "B": accuracy}
    best = {"round": 3, "metric": "sites.mean.accuracy"} | figures(accuracy + 0.05, nll, sites)
    summary = {
        "name": name,
        "method": method,
        "seed": seed,
        "rounds": 4,
        "seconds": 2.5,
        "dropped": 1,
        "final": figures(accuracy, nll, sites, std=0.1),
        "best": best,
    } | told
    curve = [{"round": r, "scope": "global", "metrics": {"accuracy": accuracy * r / 4}} for r in range(1, 5)]
    folder.mkdir(parents=True)
    (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    (folder / "federation.json").write_text(json.dumps(federation_ or federation()), encoding="utf-8")
    rows = curve if lines is None else lines
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    toml = f"name = {json.dumps(name)}\nseed = {seed or 0}\n[method]\nname = {json.dumps(method)}\n{config}"
    (folder / "config.toml").write_text(toml, encoding="utf-8")
    return folder


def three_against_three(folder):
    runs = [make_run(folder / f"fedavg-{s}", FIRST[s], FIRST_NLL[s], s) for s in (2, 0, 1)]
    return runs + [make_run(folder / f"local-{s}", SECOND[s], SECOND_NLL[s], s, method="local") for s in range(3)]


def compare(runs, target=None):
    return Page(write_comparison(runs, target or runs[0].parent / "page.html"))


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return compare(three_against_three(tmp_path_factory.mktemp("runs")))


def test_the_sections_stand_in_order_under_what_is_compared(page):
    assert list(page.sections) == ["", *SECTIONS]
    assert "small: fedavg, local" in page.sections[""]
    assert "2 contestants · 6 runs · 2 sites · 3 labels" in page.sections[""]
    assert "Global figures: the published test part." in page.sections[""]
    assert "not of the same federation" not in page.sections[""]


def test_the_last_round_has_means_and_sample_standard_deviations_over_seeds(page):
    last, best = page.tables["Figures"][:3], page.tables["Figures"][3:]
    # The intervals are the means +- t(2) / sqrt(3) = 2.484 standard deviations.
    both = ["82.0% ± 2.0 (77.0 to 87.0)", "0.600 ± 0.100 (0.352 to 0.848)"]
    assert last[1] == ["fedavg", "3", *both, *both, "± 10.0"]
    both = ["80.0% ± 2.0 (75.0 to 85.0)", "0.600 ± 0.000 (0.600 to 0.600)"]
    assert last[2] == ["local", "3", *both, *both, "± 10.0"]
    assert best[0][:3] == ["Contestant", "Best round", "Picked by"]
    assert best[1][:4] == ["fedavg", "3, 3, 3", "Mean over sites, accuracy", "87.0% ± 2.0"]
    assert "Best round, not last" in page.sections["Figures"]
    assert "optimistic: quote the last round" in page.sections["Figures"]


def test_pairs_have_the_difference_its_interval_the_seeds_ahead_and_a_verdict(page):
    rows = page.tables["Seed by seed"][1:]
    assert rows[0] == [
        "fedavg",
        "local",
        "Global model, accuracy",
        "3",
        "82.0%",
        "80.0%",
        "+2.00",
        "−2.97 to +6.97",
        "2 of 3, 1 level",
        "undecided",
    ]
    assert rows[1][2:7] == ["Global model, nll", "3", "0.600", "0.600", "0.000"]
    assert rows[1][7:] == ["−0.248 to +0.248", "1 of 3, 1 level", "undecided"]
    assert [row[2] for row in rows[2:]] == ["Mean over sites, accuracy", "Mean over sites, nll"]
    assert "compared only on the seeds" not in page.sections["Seed by seed"]
    assert "Not compared" not in page.sections["Seed by seed"]


def test_paired_numbers_are_exact_and_take_shared_seeds_only():
    first, second = dict(enumerate(FIRST)) | {7: 0.1, None: 0.9}, dict(enumerate(SECOND)) | {9: 0.9, None: 0.1}
    found = paired(first, second, more_is_better=True)
    assert (found.seeds, found.ahead, found.level) == ([0, 1, 2], 2, 1)
    assert (found.first, found.second) == pytest.approx((0.82, 0.80))
    assert found.difference.mean == pytest.approx(0.02)
    assert found.difference.high == pytest.approx(0.02 + 4.302653 * 0.02 / math.sqrt(3))
    assert paired(first, second, more_is_better=False).ahead == 0
    assert paired({1: 0.5}, {1: 0.25}, more_is_better=True).judgement.verdict == "undecided"
    assert paired({1: 0.5}, {2: 0.25}, more_is_better=True) is None
    assert paired({None: 0.5}, {None: 0.25}, more_is_better=True) is None


def test_the_verdict_follows_the_better_direction_and_a_seed_without_a_figure_leaves_it_open():
    lower, higher = {0: 0.30, 1: 0.32, 2: 0.31}, {0: 0.40, 1: 0.43, 2: 0.41}
    assert paired(lower, higher, more_is_better=False).judgement.verdict == "holds"
    assert paired(lower, higher, more_is_better=True).judgement.verdict == "refuted"
    found = paired({**lower, 3: None}, {**higher, 3: 0.4}, more_is_better=False)
    assert (found.seeds, found.judgement.verdict, found.judgement.failed) == ([0, 1, 2], "undecided", 1)


def test_curves_are_means_over_seeds_in_a_band_from_lowest_to_highest(page):
    low, high, mean = page.figures["global-accuracy"]["data"][:3]
    assert low["y"] == pytest.approx([0.2, 0.4, 0.6, 0.8])
    assert high["y"] == pytest.approx([0.21, 0.42, 0.63, 0.84])
    assert mean["y"] == pytest.approx([0.205, 0.41, 0.615, 0.82])
    assert (mean["name"], high["fill"], low["line"]["color"]) == ("fedavg", "tonexty", mean["line"]["color"])
    assert "fedavg, 3 seeds" in page.sections["Learning curves"]
    assert list(page.figures) == ["global-accuracy"]  # no other curve was measured


def test_a_round_that_a_seed_did_not_measure_is_left_out_of_the_curve(tmp_path):
    curves = {0: {1: 0.1, 2: 0.3, 3: 0.5}, 1: {1: 0.2, 2: float("nan"), 3: 0.7}}
    lines = {
        seed: [{"round": r, "scope": "sites", "mean": {"nll": v}} for r, v in curve.items()]
        for seed, curve in curves.items()
    }
    page = compare([make_run(tmp_path / str(seed), seed=seed, lines=lines[seed]) for seed in curves])
    assert page.figures["sites-nll"]["data"][2]["x"] == [1, 3]
    assert page.figures["sites-nll"]["data"][2]["y"] == pytest.approx([0.15, 0.6])


def test_only_the_seed_may_differ_within_a_contestant(tmp_path):
    run = {1: "workers = 1\ntrack = []", 3: "workers = 3\ntrack = ['mlflow']"}
    runs = [
        make_run(tmp_path / f"{lr}-{seed}", seed=seed, config=f"lr = {lr}\n[run]\n{run[seed]}\n")
        for lr in (0.1, 0.05)
        for seed in (3, 1)
    ]
    page = compare(runs)
    assert [row[:3] for row in page.tables["Runs"][1:]] == [
        ["lr=0.1", "fedavg", "1"],
        ["lr=0.1", "fedavg", "3"],
        ["lr=0.05", "fedavg", "1"],
        ["lr=0.05", "fedavg", "3"],
    ]
    assert page.tables["What differs in the settings"] == [
        ["Setting", "lr=0.1", "lr=0.05"],
        ["method.lr", "0.1", "0.05"],
    ]


def test_runs_with_other_names_go_by_their_names_and_a_second_run_of_a_seed_by_its_folder(tmp_path):
    runs = [make_run(tmp_path / folder, name=name) for folder, name in (("x", "one"), ("y", "two"), ("z", "two"))]
    page = compare(runs)
    assert [row[0] for row in page.tables["Figures"][1:4]] == [
        "one",
        f"two · {tmp_path / 'y'}",
        f"two · {tmp_path / 'z'}",
    ]
    assert "Nothing that changes a figure" in page.sections["What differs in the settings"]


def test_contestants_that_differ_in_much_go_by_their_folders_and_only_differing_keys_are_listed(tmp_path):
    config = 'momentum = 0.9\n[data]\ndataset = "{0}"\nview = {{ kind = "{0}" }}\n[[sites]]\nname = "A"\ntest = 0.{0}\n'
    first = make_run(tmp_path / "x", config=config.format(1))
    page = compare([first, make_run(tmp_path / "y", config="batch = 8\nclip = 0.125\n" + config.format(2))])
    rows = page.tables["What differs in the settings"]
    assert rows[0] == ["Setting", str(tmp_path / "x"), str(tmp_path / "y")]
    assert sorted(rows[1:]) == [
        ["data.dataset", '"1"', '"2"'],
        ["data.view.kind", '"1"', '"2"'],
        ["method.batch", "–", "8"],
        ["method.clip", "–", "0.125"],
        ["sites.A.test", "0.1", "0.2"],
    ]


def test_seeds_of_one_contestant_are_summed_up_alone(tmp_path):
    page = compare([make_run(tmp_path / str(s), FIRST[s], seed=s) for s in range(3)])
    assert page.tables["Figures"][1][:3] == ["small", "3", "82.0% ± 2.0 (77.0 to 87.0)"]
    assert "nothing to compare it with" in page.sections["Seed by seed"]


def test_without_a_shared_seed_nothing_is_compared_and_that_is_said(tmp_path):
    runs = [
        make_run(tmp_path / "x", 0.9, seed=0),
        make_run(tmp_path / "y", 0.8, seed=1, method="local"),
        make_run(tmp_path / "z", 0.8, seed=None, method="pooled"),
    ]
    page = compare(runs)
    said = page.sections["Seed by seed"]
    assert "Not compared, because they share no seed: fedavg and local (seeds 0 against 1)" in said
    assert "fedavg and pooled (seeds 0 against unknown)" in said
    assert page.tables["Seed by seed"] == []


def test_seeds_that_match_in_part_are_compared_in_part_and_that_is_said(tmp_path):
    runs = three_against_three(tmp_path)
    page = compare([run for run in runs if run.name not in ("fedavg-2", "local-0")])
    assert "fedavg and local (shared: 1; left out: 0 of fedavg, 2 of local)" in page.sections["Seed by seed"]
    assert page.tables["Seed by seed"][1][3:] == ["1", "84.0%", "80.0%", "+4.00", "–", "1 of 1", "undecided"]


def test_each_sites_own_accuracy_stands_by_contestant(tmp_path):
    each = [{"A": 0.5, "B": 0.9}, {"A": 0.7}]
    runs = [make_run(tmp_path / f"f{s}", seed=s, sites=each[s]) for s in (0, 1)]
    page = compare([*runs, make_run(tmp_path / "l", method="local", sites={"A": 0.25})])
    assert page.tables["Sites"] == [
        ["Site", "fedavg", "local"],
        ["A", "60.0% ± 14.1", "25.0%"],
        ["B", "90.0% (1 of 2 seeds)", "–"],
    ]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"labels": ["a", "b", "d"]}, "labels (not in every run: c, d)"),
        ({"sites": {"A": federation()["sites"]["A"]}}, "sites (not in every run: B)"),
        (
            {"sites": federation()["sites"] | {"B": {"view": {"kind": "tags"}, "train": 1, "test": 1, "informs": []}}},
            "views (of B)",
        ),
        ({"test": "a file of the server"}, "global test data (the published test part; a file of the server)"),
    ],
)
def test_runs_of_different_federations_are_warned_of(tmp_path, change, said):
    other = make_run(tmp_path / "y", method="local", federation_=federation(**change))
    page = compare([make_run(tmp_path / "x"), other])
    assert f"These runs are not of the same federation. They differ in: {said}." in page.sections[""]
    assert ("p", "class", "warning") in page.attributes


def test_other_sizes_of_the_same_sites_are_no_other_federation(tmp_path):
    site = federation()["sites"]["A"] | {"train": 77}
    other = make_run(tmp_path / "y", method="local", federation_=federation(sites={"B": site, "A": site}))
    assert "federation" not in compare([make_run(tmp_path / "x"), other]).sections[""]


def test_a_federation_drawn_by_the_seed_is_told_but_not_warned_of(tmp_path):
    def drawn(seed):
        site = federation()["sites"]["A"] | {"view": {"kind": "exact", "known": LABELS[seed:]}}
        return federation(sites={"A": site, "B": federation()["sites"]["B"]})

    runs = {
        (method, seed): make_run(tmp_path / f"{method}-{seed}", seed=seed, method=method, federation_=drawn(seed))
        for method in ("fedavg", "local")
        for seed in (0, 1)
    }
    page = compare(list(runs.values()))
    assert "The federation is drawn anew with each seed. Between seeds differ: views (of A)." in page.sections[""]
    assert ("p", "class", "warning") not in page.attributes
    at_one_seed = compare([runs["fedavg", 0], make_run(tmp_path / "z", method="local", federation_=drawn(1))])
    assert "not of the same federation" in at_one_seed.sections[""]


def test_runs_that_were_never_evaluated_say_so(tmp_path):
    nothing = {"final": {}, "best": {"round": 0, "metric": "", "global": {}, "sites": {}}, "lines": []}
    page = compare([make_run(tmp_path / method, method=method, **nothing) for method in ("fedavg", "local")])
    assert "No run was evaluated" in page.sections["Learning curves"]
    assert page.tables["Figures"][1] == ["fedavg", "1", "–", "–", "–", "–", "–"]
    assert page.tables["Figures"][4] == ["fedavg", "–", "–", "–", "–", "–", "–", "–"]
    assert "No two contestants have a figure of the same seed." in page.sections["Seed by seed"]
    assert "script" not in page.tags


def test_names_from_files_stay_text(tmp_path):
    evil = "<script>alert('x')</script><img src=http://evil.example/x>\"&"
    account = federation(labels=[evil], sites={evil: federation()["sites"]["A"]}, test=evil)
    lines = [{"round": 1, "scope": "global", "metrics": {"accuracy": 0.5}}]
    best = {"round": 1, "metric": f"global.{evil}"}
    told = {"method": evil, "sites": {evil: 0.5}, "best": best, "lines": lines, "federation_": account}
    config = f"{json.dumps(evil)} = {json.dumps(evil)}"
    runs = [make_run(tmp_path / f"<i>{s}", name=f"{s}{evil}", seed=s, config=config, **told) for s in (0, 1)]
    page = compare([*runs, make_run(tmp_path / "other")], tmp_path / "page.html")
    assert page.tags.count("script") == 3  # plotly.js, the figures' data, our few lines
    assert not {"img", "i"} & set(page.tags)
    assert all("<script>alert('x')</script>" in page.sections[title] for title in ["", *SECTIONS])
    assert page.figures["global-accuracy"]["data"][0]["name"].startswith("0&lt;script&gt;")  # plotly reads tags, too
    assert not [a for a in page.attributes if a[1] in ("src", "href", "srcset", "data", "action", "poster")]


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("config.toml", None, r"there is no config.toml in .*; name the folder of a finished run"),
        ("config.toml", "name = ", r"config.toml is not TOML: "),
        ("config.toml", "a = '\udcff'", r"config.toml is not TOML: "),
        ("summary.json", "{}", r"summary.json is not what a run writes: 'name'"),
    ],
)
def test_missing_and_broken_files_are_named(tmp_path, file, content, message):
    runs = [make_run(tmp_path / name) for name in "xy"]
    (runs[1] / file).unlink()
    if content:
        (runs[1] / file).write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(RunFolderError, match=message):
        write_comparison(runs, tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


def test_a_folder_named_twice_is_refused(tmp_path):
    run = make_run(tmp_path / "x")
    with pytest.raises(UserError, match="is named twice; a run cannot be compared with itself"):
        write_comparison([run, tmp_path / "x" / ".." / "x"], tmp_path / "page.html")


def test_the_command_writes_one_report_or_a_comparison(tmp_path):
    runs = three_against_three(tmp_path)
    alone = command("report", runs[0], cwd=tmp_path)
    assert (alone.code, alone.out) == (0, f"report: {runs[0] / 'report.html'}\n")
    assert Page(runs[0] / "report.html").sections[""].strip().startswith("small")
    together = command("report", *runs, cwd=tmp_path)
    assert (together.code, together.out) == (0, "comparison: comparison.html\n")
    assert Page(tmp_path / "comparison.html").tables["Figures"][1][:2] == ["fedavg", "3"]
    assert command("report", *runs[:2], "--out", "two.html", cwd=tmp_path).code == 0
    assert (tmp_path / "two.html").exists()


def test_compare_prints_figures_and_verdicts_and_writes_the_page_of_folders_of_seeds(tmp_path):
    better, worse = (0.80, 0.83, 0.81), (0.70, 0.72, 0.71)
    for seed in range(3):
        make_run(tmp_path / "ours" / f"seed-{seed}", better[seed], seed=seed)
        make_run(tmp_path / "theirs" / f"seed-{seed}", worse[seed], seed=seed, method="local")
    (tmp_path / "theirs" / "seed-3").mkdir()  # of a run that failed
    ended = command("compare", "ours", "theirs", cwd=tmp_path)
    assert (ended.code, ended.err.count("\n")) == (0, 1)
    assert "note: the run in theirs/seed-3 is not finished, so it is left out" in ended.err
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in ended.out.splitlines() if "│" in line]
    assert ["fedavg", "Global model, accuracy", "3", "81.3%", "1.5", "77.5 to 85.1"] in cells
    # Differences 10, 11 and 10 points: 10.33 +- 4.303 * 0.577 / sqrt(3).
    assert "fedavg better than local?" in ended.out
    assert ["Global model, accuracy", "3", "+10.33", "+8.90 to +11.77", "holds"] in cells
    assert ended.out.endswith("comparison: comparison.html\n")
    assert Page(tmp_path / "comparison.html").tables["Seed by seed"][1][-1] == "holds"


def test_problems_of_a_run_stand_on_top_of_the_page_and_in_the_terminal(tmp_path):
    make_run(tmp_path / "good")
    make_run(tmp_path / "bad", seed=1, problems=[{"kind": "diverged", "text": "training diverged", "fatal": False}])
    ended = command("compare", "good", "bad", cwd=tmp_path)
    assert ended.code == 0
    assert "problem: small, seed 1: training diverged" in ended.err
    assert "Problem of small, seed 1: training diverged" in Page(tmp_path / "comparison.html").sections[""]
    assert ended.err.count("problem:") == 1


def test_compare_refuses_what_it_cannot_compare(tmp_path):
    make_run(tmp_path / "one" / "seed-0")
    (tmp_path / "none" / "seed-0").mkdir(parents=True)
    for folder, code, message in (("one", 2, "needs at least two runs"), ("none", 3, "no run in 'none' is finished")):
        ended = command("compare", folder, cwd=tmp_path)
        assert (ended.code, ended.err.count("\n"), ended.out) == (code, 1, "")
        assert message in ended.err


def test_the_command_tells_a_mistake_in_one_sentence(tmp_path):
    runs = [make_run(tmp_path / name) for name in "xy"]
    (tmp_path / "no-run").mkdir()
    (runs[1] / "federation.json").write_text("{", encoding="utf-8")
    for arguments, code, message in (
        (runs, 3, f"error: {runs[1] / 'federation.json'} is not JSON\n"),
        ([runs[1]], 3, f"error: {runs[1] / 'federation.json'} is not JSON\n"),
        ([runs[0], tmp_path / "no-run"], 3, "there is no summary.json in"),
        ([tmp_path / "no-run"], 3, "is not a run folder: it has no config.toml"),
        ([runs[0], tmp_path / "nowhere"], 3, "name the folder of a finished run"),
        ([runs[0], runs[0]], 2, "is named twice"),
        ([runs[0], "--out", "here.html"], 2, "--out is for a comparison of several runs"),
    ):
        ended = command("report", *arguments, cwd=tmp_path)
        assert (ended.code, ended.err.count("\n"), ended.out) == (code, 1, "")
        assert message in ended.err


def test_a_page_that_cannot_be_written_leaves_nothing_behind(tmp_path):
    runs = [make_run(tmp_path / name, method=name) for name in "xy"]
    before = sorted(tmp_path.iterdir())
    assert command("report", *runs, "--out", "no/such/page.html", cwd=tmp_path).code == 3
    ended = command("report", *runs, "--out", runs[0], cwd=tmp_path)
    assert (ended.code, "cannot be written" in ended.err) == (3, True)
    assert sorted(tmp_path.iterdir()) == before


def test_neither_torch_nor_plotly_is_imported_before_a_page_is_written():
    code = "import sys, fedaccord.runs.compare; sys.exit(bool({'torch', 'plotly'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
