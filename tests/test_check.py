"""`fedaccord check`: every warning and error it can give, its exit codes, and what a site does not get to see."""

import io

import numpy as np
import pytest
from rich.console import Console

from command_line import SMALL, blobs, command, process, write
from fedaccord.checks.display import print_report
from fedaccord.checks.federation import Finding, check_experiment_data, check_own_data, exit_code
from fedaccord.config import check_experiment, load_experiment
from test_import_time import SLOW, imported

EXACT = '{ kind = "exact" }'
CANDIDATES = '{ kind = "candidates" }'


def labels(*names):
    return f"[labels]\nclasses = {list(names)}\n"


def knows(*names):
    return f'{{ kind = "exact", known = {list(names)} }}'


def coarse(groups):
    inside = ", ".join(f"{name} = {members}" for name, members in groups.items())
    return f'{{ kind = "coarse", correspondence = {{ {inside} }} }}'


def rows(*words, times=4, column="dx", size=lambda i: i % 5):
    """A table in which every annotation occurs several times."""
    return f"size,{column}\n" + "".join(f"{size(i)},{word}\n" for i, word in enumerate(words * times))


class Federation:
    """Sites in a folder, added one by one."""

    def __init__(self, folder, head=""):
        self.folder, self.text = folder, head

    def site(self, name, view, table, label="dx", more=""):
        (self.folder / f"{name}.csv").write_text(table)
        key = f'label = "{label}"\n' if label else ""
        self.text += f'\n[[sites]]\nname = "{name}"\ndata = "{name}.csv"\n{key}view = {view}\ntest = 0\n{more}\n'
        return self

    @property
    def file(self):
        return write(self.folder, self.text, "federation.toml")

    def report(self):
        return check_experiment_data(*load_experiment(self.file))

    def warnings(self):
        report = self.report()
        assert report.exit_code == (1 if report.findings else 0)
        assert {finding.level for finding in report.findings} <= {"warning"}
        return [finding.text for finding in report.findings]


@pytest.fixture
def federation(tmp_path):
    return lambda head="": Federation(tmp_path, head)


@pytest.fixture
def sound(federation):
    return (
        federation(labels("cold", "flu", "well"))
        .site("north", EXACT, rows("cold", "flu", "well", ""))
        .site("school", coarse({"ill": ["cold", "flu"], "fine": ["well"]}), rows("ill", "fine"))
        .site("south", CANDIDATES, rows("cold|flu", "well", "flu|well"))
    )


class TestASoundFederation:
    def test_has_no_findings(self, sound):
        assert sound.warnings() == []

    def test_sites_are_counted_in_their_own_words(self, sound):
        north, school, south = sound.report().sites
        assert (north.labels, north.unannotated) == ({"cold": 4, "flu": 4, "well": 4}, 4)
        assert (school.labels, school.unannotated, school.train, school.test) == ({"ill": 4, "fine": 4}, 0, 8, 0)
        assert south.labels == {"cold": 4, "flu": 8, "well": 8}
        assert south.set_size == pytest.approx(5 / 3)
        assert sound.report().coverage["cold"] == {"north": "exact", "school": "coarse", "south": "candidates"}

    def test_is_printed(self, sound, tmp_path):
        done = command("check", sound.file, cwd=tmp_path)
        assert (done.code, done.err) == (0, "")
        plain = [line.split() for line in done.out.splitlines()]
        assert ["label", "north", "school", "south"] in plain
        assert ["flu", "exact", "coarse", "candidates"] in plain
        assert ["school", "coarse", "8", "0", "0"] in plain
        assert "size    number    its cells are numbers" in done.out
        assert "dx      label     declared by every site that has it" in done.out
        assert ["ill", "4"] in plain
        assert "candidate sets hold 1.67 labels on average" in done.out
        assert done.out.rstrip().endswith("sound")
        assert "│" not in done.out  # plain where nobody looks at a terminal

    def test_missing_cells_are_counted(self, federation, tmp_path):
        table = "size,kind,dx\n1,x,a\n,y,b\n?,x,a\n4,,\n"
        one = federation(labels("a", "b")).site("x", EXACT, table)
        assert one.report().sites[0].missing == {"size": 2, "kind": 1}
        for whose in ((), ("--site", "x")):
            assert "missing cells: size 2, kind 1" in command("check", one.file, *whose, cwd=tmp_path).out

    def test_in_a_terminal_it_has_lines_and_colours(self, sound):
        said = io.StringIO()
        print_report(sound.report(), Console(file=said, force_terminal=True, width=60, color_system="standard"))
        assert "│ well  │ exact │ coarse │ candidates │" in said.getvalue()

    def test_with_many_sites_the_matrix_lists_names(self, federation, tmp_path):
        many = federation(labels("a", "b"))
        for number in range(13):
            many.site(f"s{number:02d}", knows("a", "b") if number else knows("a"), rows("a"))
        done = command("check", many.file, cwd=tmp_path)
        assert "b      s01, s02, s03, s04, s05, s06, s07, s08, s09, s10 and 2 more" in done.out


class TestLabels:
    def test_no_site_knows_it(self, federation):
        found = federation(labels("a", "b", "c", "d")).site("x", knows("a", "b"), rows("a", "b")).warnings()
        assert found == ["no site knows 'c', 'd'; the model cannot learn what nobody teaches"]

    def test_one_site_only_knows_it(self, federation):
        both = federation(labels("a", "b", "c")).site("x", EXACT, rows("a", "b", "c"))
        assert both.warnings() == []  # a single site is no matter of one site only
        found = both.site("y", knows("a", "b"), rows("a", "b")).warnings()
        assert found == ["only site 'x' knows 'c': the model depends on the quality of that site's labels"]

    def test_no_sample_has_it(self, federation):
        one = federation(labels("a", "b", "c")).site("x", EXACT, rows("a", "b"))
        assert one.warnings() == ["no site has a training sample of 'c'"]
        view = coarse({"low": ["a"], "high": ["b", "c"]})
        assert one.site("y", view, rows("low", "high")).warnings() == []  # a coarse label speaks of all behind it

    def test_groups_that_no_site_connects(self, federation):
        apart = federation(labels("a", "b", "c", "d"))
        for name, own in (("w", "ab"), ("x", "ab"), ("y", "cd"), ("z", "cd")):
            apart.site(name, knows(*own), rows(*own))
        (found,) = apart.warnings()
        assert found.startswith("no site connects these groups of labels: 'a', 'b'; 'c', 'd'. Scores are only compared")
        assert "cannot learn to tell a label of one group from a label of another" in found
        assert apart.site("bridge", knows("a", "c"), rows("a", "c")).warnings() == []

    def test_tags_need_no_connection(self, federation):
        tags = federation(labels("a", "b")).site("x", '{ kind = "tags" }', rows("a;b", "a", ";"))
        tags.site("y", '{ kind = "tags", known = ["a", "b"] }', rows("b", ""))
        assert tags.warnings() == []
        x, y = tags.report().sites
        assert (x.labels, x.unannotated) == ({"a": 8, "b": 4}, 0)
        assert (y.labels, y.unannotated) == ({"a": 0, "b": 4}, 4)

    def test_tags_beside_single_labels(self, federation):
        mixed = federation(labels("a", "b")).site("x", '{ kind = "tags" }', rows("a;b", "a"))
        found = mixed.site("y", EXACT, rows("a", "b")).warnings()
        assert found == ["some sites have tags, others one label each; a tag's score is not a class probability"]

    def test_classes_that_nobody_separates(self, federation):
        view = coarse({"low": ["a", "b"], "high": ["c"]})
        both = federation(labels("a", "b", "c")).site("x", view, rows("low", "high"))
        both.site("y", CANDIDATES, rows("a|b", "c", "a|b|c"))
        text = "no coarse label and no site tells 'a', 'b' apart; the model can only learn them together"
        assert both.warnings() == [text]
        assert both.site("z", CANDIDATES, rows("a|c", "b", "c")).warnings() == []

    def test_classes_that_no_coarse_label_covers(self, federation):
        one = federation(labels("a", "b", "c")).site("x", EXACT, rows("a", "b", "c")).site("y", EXACT, rows("a", "c"))
        found = one.site("z", coarse({"low": ["a"], "high": ["b"]}), rows("low", "high")).warnings()
        assert found == ["no coarse label of site 'z' covers 'c'; the site is taken not to know them"]

    def test_nothing_to_learn_from_is_an_error(self, federation, tmp_path):
        none = federation(labels("a", "b")).site("x", '{ kind = "unlabelled" }', "size\n1\n2\n", label=None)
        assert Finding("error", "no site has annotations, so there is nothing to learn from") in none.report().findings
        done = command("check", none.file, cwd=tmp_path)
        assert done.code == 2
        assert "error: no site has annotations" in done.out
        assert done.out.rstrip().endswith("1 error")

    @pytest.mark.parametrize(
        ("more", "said"),
        [
            ('[model]\nname = "cnn"\n', "the model 'cnn' needs images"),
            ('[stop]\nmetric = "global.accuracy"\npatience = 2\n', "unknown metric 'global.accuracy'"),
            ("[network]\ntarget = 0.5\n", "network.metric: unknown metric 'global.accuracy'"),
            ('[method]\nname = "fedavg"\nsites = ["z"]\n', "method.sites: there is no site 'z'"),
        ],
    )
    def test_what_a_run_would_refuse_is_an_error(self, federation, tmp_path, more, said):
        one = federation(labels("a", "b")).site("x", EXACT, rows("a", "b"))
        one.text += more
        (found,) = one.report().findings
        assert found.level == "error"
        assert said in found.text
        assert command("run", one.file, "--workers", "0", cwd=tmp_path).code == 2

    def test_sites_that_have_nothing_annotated_are_an_error_too(self, federation):
        silent = federation(labels("a", "b")).site("x", EXACT, rows("", "")).report()
        assert silent.exit_code == 2
        assert silent.findings[-1] == Finding("error", "no site that may train has labelled samples")


class TestOneSite:
    def own(self, federation, view, table, head=labels("a", "b", "c"), **more):  # noqa: B008
        alone = federation(head).site("x", view, table, **more)
        return [finding.text for finding in check_own_data(*load_experiment(alone.file), "x").findings]

    def test_candidate_sets_that_never_exclude_anything(self, federation):
        never = "its candidate sets never exclude anything: each holds every label, so they teach nothing"
        assert self.own(federation, CANDIDATES, rows("a|b|c", "c|b|a", "")) == [never]
        assert self.own(federation, CANDIDATES, rows("a|b|c", "c|b")) == []

    def test_no_annotation_at_all(self, federation):
        silent = ["none of its training rows is annotated, so it teaches nothing"]
        assert self.own(federation, EXACT, rows("", "")) == silent
        assert self.own(federation, '{ kind = "tags" }', rows("", "")) == silent
        assert self.own(federation, '{ kind = "unlabelled" }', rows("")) == []

    def test_a_label_it_is_said_to_know_but_never_uses(self, federation):
        text = "no row is annotated with 'b', which it is declared to know"
        assert self.own(federation, knows("a", "b"), rows("a")) == [text]
        groups = coarse({"low": ["a"], "high": ["b", "c"]})
        assert self.own(federation, groups, rows("low")) == [text.replace("'b'", "'high'")]

    def test_a_sensitive_group_too_small_to_measure(self, federation):
        table = "size,sex,dx\n" + "1,f,a\n" * 5 + "2,f,b\n" * 4 + "3,m,a\n" * 9 + "3,f|m,b\n" * 20 + "4,m,b\n" * 5
        (found,) = self.own(federation, EXACT, table, more='sensitive = "sex"')
        assert found.startswith("a sensitive group is too small to measure")
        assert found.endswith(": b in f (4)")  # a group that is not certain is not counted
        site = check_own_data(*load_experiment(federation().folder / "federation.toml"), "x")
        assert site.cells == {"f": {"a": 5, "b": 4}, "m": {"a": 9, "b": 5}}


class TestFeatures:
    def pair(self, federation, left, right, head=labels("a", "b"), features=""):  # noqa: B008
        both = federation(head + features).site("x", EXACT, rows("a", "b", times=10, size=left))
        return both.site("y", EXACT, rows("a", "b", times=10, size=right))

    def test_the_same_unit(self, federation):
        assert self.pair(federation, lambda i: i % 5, lambda i: 3 + i % 7).warnings() == []

    @pytest.mark.parametrize("features", ["", "[features]\nnumbers = { size = [0, 1] }\n"])
    def test_another_mean(self, federation, features):
        far = 50 if features == "" else 9.9  # beyond ten given deviations it is cut
        small = self.pair(federation, lambda i: (i % 5) / 50, lambda i: far - (i % 5) / 50, features=features)
        (found,) = small.warnings()
        assert found.startswith("column 'size' has means at sites 'x' and 'y' that are ")
        assert found.endswith("times the spread within the sites apart; is it the same unit?")

    def test_units_that_are_often_mixed_up(self, federation):
        """Cholesterol in mg/dL and mmol/L, weights in kg and lb: in both the means are far apart."""
        for size, factor in ((lambda i: 190 + 11 * (i % 11), 1 / 38.67), (lambda i: 64 + 3 * (i % 11), 2.2046)):
            (found,) = self.pair(federation, size, lambda i, size=size, factor=factor: factor * size(i)).warnings()
            assert found.startswith("column 'size' has means at sites ")

    def test_another_spread(self, federation):
        (found,) = self.pair(federation, lambda i: i % 5, lambda i: 200 * (i % 5)).warnings()
        assert found == "column 'size' varies 200 times more at site 'y' than at site 'x'; is it the same unit?"

    def test_a_column_that_never_varies_or_is_empty(self, federation):
        (found,) = self.pair(federation, lambda i: 0, lambda i: i % 5).warnings()
        assert found == "column 'size' never varies at site 'x', but does elsewhere"
        (found,) = self.pair(federation, lambda i: "", lambda i: i % 5).warnings()
        assert found == "site 'x' has no value at all in 'size'"

    def test_many_columns_of_another_unit_are_one_line(self, federation):
        names = [f"c{i}" for i in range(30)]
        both = federation(labels("a", "b"))
        for site, unit in (("x", 1), ("y", 1000)):
            rows = [
                f"{dx}," + ",".join(str(unit * (5 + (i + j) % 4)) for j in range(30)) for i in range(15) for dx in "ab"
            ]
            both.site(site, EXACT, "\n".join([",".join(["dx", *names]), *rows, ""]))
        (found,) = both.warnings()
        start, end = "30 columns differ wildly in scale between the sites; column 'c", "; are they in the same units?"
        assert (found.startswith(start), found.endswith(f" and 19 more{end}")) == (True, True)

    @pytest.mark.parametrize("way", ["federation", "site", "none"])
    def test_arrays_on_another_scale(self, tmp_path, way):
        x, y = blobs(40)
        text = f'features.standardise = "{way}"\n'
        for name, scale in (("x", [1, 1, 1, 1]), ("y", [1, 1, 1, 300])):
            np.savez(tmp_path / f"{name}.npz", x=x * np.array(scale, dtype=np.float32), y=y)
            text += f'[[sites]]\nname = "{name}"\ndata = "{name}.npz"\ntest = 0\n'
        found = check_experiment_data(*load_experiment(write(tmp_path, text))).findings
        assert [finding.text for finding in found] == [
            "feature 3 varies 300 times more at site 'y' than at site 'x'; is it the same unit?"
        ]

    @pytest.mark.parametrize("way", ["federation", "site", "none"])
    def test_the_sites_of_one_table(self, tmp_path, way):
        """A hospital's cholesterol is always 0; a sparse feature that it never has is no reason for a warning."""
        rng = np.random.default_rng(0)
        hospital = np.repeat(["a", "b", "c"], 40)
        x = np.stack([np.where(hospital == "b", 0, rng.normal(240, 50, 120)), rng.random(120) < 0.1], 1)
        x[hospital == "c", 1] = 0
        np.savez(tmp_path / "all.npz", x=x.astype(np.float32), y=np.arange(120) % 2, hospital=hospital)
        text = (
            f'[data]\ndataset = "all.npz"\nstandardise = "{way}"\npartition = {{ kind = "natural", by = "hospital" }}'
        )
        found = check_experiment_data(*load_experiment(write(tmp_path, text))).findings
        assert [finding.text for finding in found] == ["feature 0 never varies at site 'b', but does elsewhere"]

    def test_channels_of_signals_are_numbers_and_pixels_are_not(self, tmp_path):
        """Signals by channel and time are standardised; images of floats are not, and neither are they compared."""
        rng = np.random.default_rng(0)
        ward, unit = np.repeat(["a", "b"], 30), np.repeat([1.0, 50.0], 30)
        for shape, lines in (((2, 3), 1), ((1, 2, 3), 0)):
            x = rng.normal(size=(60, *shape))
            x[:, -1] *= unit.reshape(-1, *[1] * (len(shape) - 1))
            np.savez(tmp_path / "all.npz", x=x.astype(np.float32), y=np.arange(60) % 2, ward=ward)
            text = '[data]\ndataset = "all.npz"\npartition = { kind = "natural", by = "ward" }'
            found = check_experiment_data(*load_experiment(write(tmp_path, text))).findings
            assert len([f for f in found if "feature 1, 2 varies" in f.text]) == lines

    def test_another_kind_is_an_error(self, federation, tmp_path):
        both = self.pair(federation, lambda i: i % 5, lambda i: "big", head=labels("a", "b", "c"))
        done = command("check", both.file, cwd=tmp_path)
        assert (done.code, done.err) == (2, "")
        said = done.out[done.out.index("== the federation ==") :]
        assert "error: column 'size' holds numbers at site 'x' but words at site 'y'; name every" in said
        assert "y.csv, line 2 and 19 more, column 'size': 'big' is not a number" in said
        assert "warning: no site has a training sample of 'c'" in said  # what can be told besides is told
        ran = command("run", both.file, "--workers", "0", cwd=tmp_path)
        assert (ran.code, "line 2 and 19 more, column 'size': 'big' is not a number" in ran.err) == (2, True)

    def test_numbers_taken_for_words(self, federation):
        both = self.pair(federation, lambda i: "x" if i % 5 == 0 else i, lambda i: "y" if i % 5 == 0 else i)
        (found,) = both.report().sites[0].findings
        assert found.text == (
            "column 'size' is read as words, although 16 of 20 cells hold numbers: 'x' (4 cells); "
            "if these mean that a value is missing, put this line under [features]:\n"
            'missing = ["", "?", "NA", "N/A", "nan", "NaN", "null", "None", "x"]'
        )
        (own,) = check_own_data(*load_experiment(both.file), "y").findings
        assert own.text.startswith(
            "column 'size' is read as words, although 16 of 20 cells hold numbers: 'y' (4 cells)"
        )
        both.text += '[features]\ncategories = ["size"]\n'
        assert both.warnings() == []


class TestExitCodes:
    def test_of_findings(self):
        found = [Finding("warning", "w"), Finding("error", "e")]
        assert [exit_code(found[:n]) for n in range(3)] == [0, 1, 2]

    def test_warnings(self, federation, tmp_path):
        done = command("check", federation(labels("a", "b", "c")).site("x", EXACT, rows("a", "b")).file, cwd=tmp_path)
        assert done.code == 1
        assert "warning: no site has a training sample of 'c'" in done.out
        assert done.out.rstrip().endswith("1 warning")
        assert not (tmp_path / "runs").exists()  # nothing was trained

    def test_one_class_is_an_error(self, federation, tmp_path):
        """Whether the files name one class only, or the training samples have one of several."""
        one = federation().site("x", EXACT, rows("a", "")).site("y", CANDIDATES, rows("a"))
        wrong = "every label is 'a', the only class, so no model can learn anything"
        done = command("check", one.file, cwd=tmp_path)
        assert (done.code, f"error: {wrong}" in done.out, "sound" in done.out) == (2, True, False)
        ran = command("run", one.file, "--workers", "0", cwd=tmp_path)
        assert (ran.code, ran.err.startswith(f"error: {wrong}")) == (2, True)
        (tmp_path / "more").mkdir()
        several = Federation(tmp_path / "more", labels("a", "b")).site("x", EXACT, rows("a")).report()
        assert several.findings[0].level == "error"
        assert several.findings[0].text.startswith("every label in the training samples is 'a', so no model")

    def test_one_tag_is_fine(self, federation):
        assert federation().site("x", '{ kind = "tags" }', rows("a", ";")).warnings() == []

    def test_a_correspondence_that_does_not_sum_to_one(self, federation, tmp_path):
        view = coarse({"low": "{ a = 0.5, b = 1 }", "high": "{ a = 0.4 }"})
        wrong = "site 'x': correspondence: the probabilities given class 'a' sum to 0.9, not to 1"
        one = federation(labels("a", "b")).site("x", view, rows("low"))
        done = command("check", one.file, cwd=tmp_path)
        assert (done.code, done.err) == (2, "")
        assert f"error: {wrong}" in done.out
        assert "warning: no row is annotated with 'high'" in done.out  # what can be told besides is told
        ran = command("run", one.file, "--workers", "0", cwd=tmp_path)
        assert (ran.code, ran.err.strip()) == (2, f"error: {wrong}")

    def test_a_coarse_label_that_maps_to_nothing(self, federation, tmp_path):
        view = coarse({"low": ["a"], "high": []})
        done = command("check", federation(labels("a", "b")).site("x", view, rows("low")).file, cwd=tmp_path)
        assert (done.code, "the coarse label 'high' maps to no class" in done.out) == (2, True)
        assert "warning: no coarse label of site 'x' covers 'b'" in done.out

    def test_all_errors_are_told_together(self, federation, tmp_path):
        halves = coarse({"low": "{ a = 0.5, b = 1 }", "high": "{ a = 0.4 }"})
        all_ = federation(labels("a", "b") + '[server]\ntest = "held.csv"\n')
        all_.site("x", halves, "size,age,dx\nbig,1,low\n1,2,lo\n").site("y", EXACT, "size,age,dx\n1,2,a\n2,?,b\n")
        all_.site("z", coarse({"low": ["aa"], "high": []}), "size,age,dx\n3,3,low\n")
        (tmp_path / "held.csv").write_text("size,age,dx\n1,1,c\n")
        errors = [finding.text for finding in all_.report().findings if finding.level == "error"]
        assert [text.split(":")[0] for text in errors] == [
            "column 'size' holds numbers at sites 'y', 'z' but words at site 'x'; name every feature column in "
            "features.numbers or features.categories",
            "site 'x'",
            "site 'z'",
            "a cell cannot be read",
            "a cell cannot be read",
        ]
        assert errors[2].endswith("did you mean 'a'?; correspondence: the coarse label 'high' maps to no class")
        assert "x.csv, line 3, column 'dx': 'lo' is not one of the labels" in errors[3]
        assert "held.csv, line 2, column 'dx': 'c' is not one of the labels" in errors[4]

    def test_a_wrong_cell_is_among_the_findings_of_its_site(self, federation, tmp_path):
        both = federation(labels("a", "b")).site("x", EXACT, rows("a", "bb")).site("y", EXACT, rows("a", "b"))
        done = command("check", both.file, "--site", "x", cwd=tmp_path)
        assert (done.code, done.err) == (2, "")
        assert "error: 4 cells cannot be read: x.csv, line 3 and 3 more, column 'dx': 'bb' is not one of" in done.out
        assert command("check", both.file, "--site", "y", cwd=tmp_path).code == 0

    def test_the_bundled_data_and_a_change(self, tmp_path):
        done = command("check", write(tmp_path, SMALL), "--set", "data.samples=300", cwd=tmp_path)
        assert (done.code, done.err) == (0, "")
        assert "site-1  exact    120    30              0" in done.out
        done = command("check", write(tmp_path, SMALL), "--set", "data.samples=3000", cwd=tmp_path)
        assert "note: data.samples asks for 3000, but there are 1797; all are used" in done.out

    def test_a_wrong_file_does_not_wait_for_torch(self, sound, tmp_path):
        code, packages = imported("-m", "fedaccord", "check", sound.file, "--set", "method.rouns=3", cwd=tmp_path)
        assert code == 2
        assert not packages & SLOW

    def test_as_a_process(self, sound, tmp_path):
        done = process("check", sound.file, cwd=tmp_path)
        assert (done.code, done.err) == (0, "")
        assert "== site north ==" in done.out


class TestPrivacy:
    """No site's part holds a label name that only another site has."""

    @pytest.fixture
    def secretive(self, federation):
        return (
            federation(labels("shared", "common", "secret-a", "secret-b"))
            .site("a", knows("shared", "common", "secret-a"), rows("shared", "common", "secret-a"))
            .site("b", knows("shared", "common", "secret-b"), rows("shared", "common", "secret-b"))
            .site("open", EXACT, rows("shared", "common"))
            .site("sets", CANDIDATES, rows("shared|common", "shared", ""))
            .site("groups", coarse({"any": ["shared"], "other": ["common"]}), rows("any", "other"))
        )

    def test_parts_are_separate(self, secretive, tmp_path):
        out = command("check", secretive.file, cwd=tmp_path).out
        parts = dict(part.split(" ==", 1) for part in out.split("== ")[1:] if " ==" in part)
        assert set(parts) == {"site a", "site b", "site open", "site sets", "site groups", "the federation"}
        assert "secret-b" not in parts["site a"]
        assert "secret-a" not in parts["site b"]
        for name in ("open", "sets", "groups"):
            assert "secret" not in parts[f"site {name}"]
        assert "secret-a" in parts["site a"]
        assert "secret-b" in parts["the federation"]

    @pytest.mark.parametrize("name", ["a", "b", "open", "sets", "groups"])
    def test_a_site_sees_its_own_part_only(self, secretive, tmp_path, name):
        done = command("check", secretive.file, "--site", name, cwd=tmp_path)
        assert (done.code, done.err) == (0, "")
        assert done.out.split("==")[1].strip() == f"site {name}"
        assert "federation" not in done.out
        hidden = {"secret-a", "secret-b"} - {f"secret-{name}"}
        assert not [word for word in hidden if word in done.out]

    def test_the_other_files_are_not_even_read(self, secretive, tmp_path):
        secretive.site("c", '{ kind = "unlabelled" }', "size\n1\n", label=None)
        path = secretive.file
        (tmp_path / "a.csv").unlink()
        (tmp_path / "b.csv").write_text("size,dx\n1,wrong\n")
        assert command("check", path, cwd=tmp_path).code == 2
        assert command("check", path, "--site", "open", cwd=tmp_path).code == 0
        without_classes = write(tmp_path, secretive.text.split("\n", 2)[2], "other.toml")
        assert command("check", without_classes, "--site", "c", cwd=tmp_path).code == 0

    def test_a_site_of_a_split_data_set(self, tmp_path):
        done = command("check", write(tmp_path, SMALL), "--site", "site-1", cwd=tmp_path)
        assert done.code == 0
        assert "site-0" not in done.out

    def test_a_wrong_correspondence_tells_no_names_of_others(self, secretive, tmp_path):
        sums = coarse({"any": "{ shared = 0.5 }", "other": "{ common = 1 }"})
        names = coarse({"any": ["shred"], "other": ["nothing"]})
        secretive.site("sums", sums, rows("any")).site("names", names, rows("any"))
        out = command("check", secretive.file, cwd=tmp_path).out
        parts = dict(part.split(" ==", 1) for part in out.split("== ")[1:] if " ==" in part)
        assert "given class 'secret-a' sum to 0" in parts["the federation"]
        for name, said in (("sums", "'shared' sum to 0.5"), ("names", "'shred' is not a label of this federation")):
            assert "secret" not in parts[f"site {name}"]
            done = command("check", secretive.file, "--site", name, cwd=tmp_path)
            assert (done.code, said in done.out) == (2, True)
            assert "secret" not in done.out + done.err

    def test_a_site_of_a_split_reads_of_its_own_errors_only(self, tmp_path):
        wrong = "{kind='coarse',correspondence={low={0=0.5}}}"
        path = write(tmp_path, SMALL)
        change = ("--set", f"data.views.site-1={wrong}")
        assert command("check", path, *change, "--site", "site-0", cwd=tmp_path).code == 0
        done = command("check", path, *change, "--site", "site-1", cwd=tmp_path)
        assert (done.code, "error: site 'site-1': correspondence" in done.out) == (2, True)

    def test_an_unknown_site_learns_no_names(self, secretive, tmp_path):
        done = command("check", secretive.file, "--site", "opn", cwd=tmp_path)
        assert (done.code, done.out) == (2, "")
        assert done.err.strip() == "error: --site: there is no site 'opn'"


class TestPrivateLabels:
    METHOD = '[method]\nname = "private-labels"\nrounds = 1\n'

    def federation(self, folder, view):
        made = Federation(folder, self.METHOD).site("a", view, rows("cat", "dog"))
        return made.site("b", knows("dog", "cow"), rows("dog", "cow"))

    @pytest.mark.parametrize("view", [EXACT, CANDIDATES])
    def test_a_site_whose_view_names_no_label_is_warned_of(self, tmp_path, view):
        found = [text for text in self.federation(tmp_path, view).warnings() if "private" in text]
        assert len(found) == 1
        assert found[0].startswith("no label is private to 'a'")

    @pytest.mark.parametrize("kind", ["exact", "candidates"])
    def test_what_occurs_in_its_file_is_enough(self, tmp_path, kind):
        made = self.federation(tmp_path, f'{{ kind = "{kind}", known = "own" }}')
        assert not [text for text in made.warnings() if "private" in text]
        assert made.report().coverage["cow"].keys() == {"b"}


class TestMixedTypes:
    def report(self, tmp_path, method="fedmt+", **server):
        server = server or {"labelled": {"per_class": 3}}
        data = {
            "dataset": "digits",
            "partition": {"kind": "iid", "sites": 2},
            "view": {"kind": "coarse", "correspondence": "parity"},
        }
        return check_experiment_data(
            check_experiment({"data": data, "server": server, "method": {"name": method}}), tmp_path
        )

    def test_a_federation_for_fedmt_is_recognised_and_what_only_the_server_tells_apart(self, tmp_path):
        report = self.report(tmp_path)
        assert report.exit_code == 0
        assert "the server has 30 labelled samples and 2 of 2 sites coarse names: the methods fedmt and fedmt+ " in (
            " ".join(report.notes)
        )
        evens = "no coarse label separates '0', '2', '4', '6', '8'; only the server's samples tell them apart, at least"
        assert any(note.startswith(evens) for note in report.notes)

    def test_without_labelled_samples_nothing_tells_them_apart_and_fedmt_is_refused(self, tmp_path):
        report = self.report(tmp_path, unlabelled=10)
        texts = [finding.text for finding in report.findings]
        assert any("tells '0', '2', '4', '6', '8' apart" in text for text in texts)
        assert texts[-1] == "the method trains on labelled samples of the server; set labelled in [server]"
        assert not any("fedmt" in note for note in report.notes)

    def test_a_method_that_does_not_look_at_them_is_told(self, tmp_path):
        (finding,) = self.report(tmp_path, "fedavg").findings
        assert finding.text == "the method 'fedavg' does not use the server's labelled samples"
        assert not self.report(tmp_path, "accord").findings

    def test_a_tuning_without_inputs_is_told(self, tmp_path):
        table = {
            "data": {"dataset": "digits", "samples": 200, "partition": {"kind": "iid", "sites": 2}},
            "method": {"name": "private-labels", "labels": "public", "tuning": "mse"},
        }
        (finding,) = check_experiment_data(check_experiment(table), tmp_path).findings
        assert finding.text.startswith('method.tuning = "mse" has no effect: the server has no inputs')
        table["server"] = {"unlabelled": 20}
        assert not check_experiment_data(check_experiment(table), tmp_path).findings

    def test_names_alone(self, tmp_path):
        (tmp_path / "a.csv").write_text("x,y\n" + "1,low\n2,high\n" * 5)
        (tmp_path / "few.csv").write_text("x,class\n1,p\n2,r\n")
        table = {
            "labels": {"classes": ["p", "q", "r"]},
            "server": {"labelled": "few.csv", "label": "class"},
            "sites": [
                {"name": "a", "data": "a.csv", "label": "y", "view": {"kind": "coarse", "names": ["low", "high"]}}
            ],
            "method": {"name": "fedmt+"},
        }
        report = check_experiment_data(check_experiment(table), tmp_path)
        assert [finding.text for finding in report.findings] == [
            "no site knows 'q'; the model cannot learn what nobody teaches",
            "site 'a' has coarse names, but nobody says what they stand for; accord and fedmt estimate it, from the "
            "server's labelled samples or other sites' labels",
        ]

    def test_a_class_that_the_server_lacks(self, tmp_path):
        (tmp_path / "a.csv").write_text("x,y\n" + "1,low\n2,high\n" * 5)
        (tmp_path / "few.csv").write_text("x,class\n1,p\n2,q\n")
        view = {"kind": "coarse", "correspondence": {"low": ["p", "q"], "high": ["r"]}}
        table = {
            "labels": {"classes": ["p", "q", "r"]},
            "server": {"labelled": "few.csv", "label": "class"},
            "sites": [{"name": "a", "data": "a.csv", "label": "y", "view": view}],
            "method": {"name": "fedmt"},
        }
        report = check_experiment_data(check_experiment(table), tmp_path)
        assert any("no labelled sample of 'r'; correspondences are estimated" in f.text for f in report.findings)
        table["method"]["correspondence"] = "known"
        report = check_experiment_data(check_experiment(table), tmp_path)
        assert not any("no labelled sample" in finding.text for finding in report.findings)
        assert any("no labelled sample of 'r'; only the sites' labels teach them" in note for note in report.notes)
